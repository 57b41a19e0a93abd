"""Deterministic, resumable input pipeline from TFRecord files to masked batches.

A batch is a pure function of (files, seed, batch number).
"""

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence

import tensorflow as tf

from electra_tf import cli
from electra_tf.data import paths, records
from electra_tf.data.masking import Masking, row_keys
from electra_tf.errors import UserError
from electra_tf.features import PRETRAINING, check_batch, derive_inputs
from electra_tf.files import AnyPath

# Deviation: paper and original mask anew in every pass; here a record has ten masks.
_STATIC_VARIANTS = 10
_NO_INPUT_IDS = "a record has no input_ids: not a pretraining record"
# TensorFlow quotes bytes that it cannot parse, which may not be UTF-8.
_UNPARSED = (tf.errors.InvalidArgumentError, UnicodeDecodeError)

TRAINING, HELD_OUT = "train-*.tfrecord", "eval-*.tfrecord"
_ORIGINAL = "*.tfrecord-*-of-*"


def expand_files(
    files: AnyPath | Sequence[AnyPath], *, in_folder: str = TRAINING
) -> list[str]:
    """Expands comma lists, globs and folders to a sorted list of existing files.

    Existing paths are literal. A folder expands to files that match ``in_folder`` or,
    for training, to ``NAME.tfrecord-N-of-M`` of the original builder.
    """
    if isinstance(files, (str, os.PathLike)):
        files = [files] if paths.exists(files) else str(files).split(",")
    expanded: dict[str, str] = {}
    for pattern in map(str, files):
        if paths.is_folder(pattern):
            matches = paths.inside(pattern, in_folder)
            if not matches and in_folder == TRAINING:
                matches = paths.inside(pattern, _ORIGINAL)
            pattern = os.path.join(pattern, in_folder)
        else:
            matches = [pattern] if paths.exists(pattern) else paths.matching(pattern)
        if not matches:
            raise UserError(
                f"No TFRecord file matches {pattern!r}: correct the path, or build "
                "records with electra-tf records."
            )
        # One file may be given twice, such as with and without "./".
        for path in matches:
            expanded.setdefault(paths.identity(path), path)
    return sorted(expanded.values())


def without_held_out(files: Iterable[str]) -> list[str]:
    """Leaves out ``eval-*`` files, which a glob over a folder of records matches."""
    return [f for f in files if not os.path.basename(f).startswith("eval-")]


def masking_for(manifest: records.Manifest, **overrides: object) -> Masking:
    """Returns the default masking for the manifest's records.

    Examples:
        >>> masking = et.data.masking_for(manifest, mask_rate=0.2)
        >>> masking.max_predictions_per_seq
        3
    """
    pad, _, cls, sep, mask = manifest.vocabulary["special_ids"]
    defaults = {
        "vocab_size": manifest.vocabulary["size"],
        "mask_id": mask,
        "pad_id": pad,
        "never_masked": (cls, sep),
        "max_seq_length": manifest.settings["max_seq_length"],
    }
    return Masking(**defaults | overrides)


def pretraining_dataset(
    files: AnyPath | Sequence[AnyPath],
    *,
    batch_size: int,
    masking: Masking | None = None,
    sep_id: int | None = None,
    training: bool = True,
    seed: int = 0,
    mask_variants: int | None = _STATIC_VARIANTS,
    shuffle_buffer: int = 100_000,
    start_batch: int = 0,
    max_batches: int | None = None,
) -> tf.data.Dataset:
    """Returns masked batches for ``Electra.fit``, dicts of ``features.PRETRAINING``.

    Args:
        files: glob, comma list or sequence of TFRecord files or folders, written by
            ``electra-tf records`` or by the original's builder. A folder stands for its
            training files, or its held-out ones (``eval-*``) if not ``training``.
        batch_size: B, rows per global batch.
        masking: defaults to ``masking_for`` with the manifest beside the files.
        sep_id: id of [SEP], to derive segment ids; defaults to the manifest's.
        training: True shuffles and repeats forever; False reads the files once, in
            order, and pads the last batch with empty rows of weight 0.
        seed: seed of record order and masks, at least 0.
        mask_variants: number of masks per record (static masking); None draws a new
            mask in every pass (dynamic masking, as in the paper).
        shuffle_buffer: size of the shuffle buffer in records.
        start_batch: first batch to produce, for resuming.
        max_batches: number of batches of an evaluation, at least 1. If there are more,
            their records are spread evenly over the files; None reads all.

    Raises ``ValueError`` if no file matches, all are empty, or one has other records.

    Examples:
        >>> _ = et.data.write_shard("three.tfrecord", [[2, 7, 8, 9, 3]] * 8)
        >>> masking = et.data.Masking(10, 4, never_masked=(2, 3), max_seq_length=8)
        >>> batches = et.data.pretraining_dataset(
        ...     "three.tfrecord", batch_size=4, masking=masking, sep_id=3
        ... )
        >>> batch = next(iter(batches))
        >>> batch["masked_input_ids"].shape, batch["masked_lm_ids"].shape
        (TensorShape([4, 8]), TensorShape([4, 1]))
    """
    for name, value, least in (
        ("batch_size", batch_size, 1),
        ("seed", seed, 0),
        ("mask_variants", mask_variants, 1),
        ("shuffle_buffer", shuffle_buffer, 1),
        ("start_batch", start_batch, 0),
        ("max_batches", max_batches, 1),
    ):
        if value is not None and value < least:
            raise UserError(f"{name} must be at least {least}, got {value}")
    if training and max_batches is not None:
        raise UserError("max_batches is for training=False: training repeats forever.")
    matches = expand_files(files, in_folder=TRAINING if training else HELD_OUT)
    if training:
        # A glob over a folder of records matches held-out files, too.
        matches = without_held_out(matches) or matches
    counts = _counts(matches)
    if masking is None or sep_id is None:
        folders = [*dict.fromkeys(map(os.path.dirname, counts))]
        manifest = records.read_manifest(folders[0])
        known = [f for f in folders if paths.exists(os.path.join(f, records.MANIFEST))]
        if len({records.read_manifest(f).vocabulary["sha256"] for f in known}) > 1:
            raise UserError(
                f"The records in {', '.join(folders)} were built with different "
                "vocabularies: read one folder, or rebuild them with one vocabulary."
            )
        expected = masking_for(manifest)
        masking = masking or expected
        for name in ("vocab_size", "mask_id"):
            if (ours := getattr(masking, name)) != (own := getattr(expected, name)):
                raise UserError(f"{folders[0]}: {name} is {own}, not masking's {ours}.")
        sep_id = manifest.vocabulary["special_ids"][3] if sep_id is None else sep_id
    # The original builder writes empty shards for small corpora.
    used = sorted(path for path in counts if counts[path])
    count, start_record = sum(counts.values()), start_batch * batch_size
    if training:
        stream = _endless_records(used, count, seed, shuffle_buffer, start_record)
    else:
        known = tf.data.experimental.assert_cardinality(count)
        stream = tf.data.TFRecordDataset(used).apply(known).skip(start_record)
        if max_batches is not None:
            # The first records would be those of the first corpus.
            most, rest = max_batches * batch_size, max(1, count - start_record)
            spread = stream.enumerate().filter(lambda n, _: n * most % rest < most)
            known = tf.data.experimental.assert_cardinality(min(most, rest))
            stream = spread.map(lambda _, record: record).apply(known)
        stream = stream.map(lambda record: (record, tf.constant(0, tf.int64)))
    for path in used:
        for batch in tf.data.TFRecordDataset(path).take(1).batch(1):
            try:
                parse_batch(batch)
            except _UNPARSED as error:
                raise UserError(f"{path}: {_NO_INPUT_IDS}") from error
    stream = stream.batch(batch_size, drop_remainder=training)
    # Batch n is for step n, also after a resume.
    dataset = stream.enumerate(start_batch).map(
        _batch_maker(masking, sep_id, seed, mask_variants, batch_size),
        num_parallel_calls=tf.data.AUTOTUNE,
    )
    options = tf.data.Options()
    options.deterministic = True
    # Sharding by file would change which records share a batch.
    by_rows = tf.data.experimental.AutoShardPolicy.DATA
    options.experimental_distribute.auto_shard_policy = by_rows
    return dataset.prefetch(tf.data.AUTOTUNE).with_options(options)


def _counts(files: Sequence[str]) -> dict[str, int]:
    known: dict[str, int] = {}
    for folder in {os.path.dirname(path) for path in files}:
        if paths.exists(os.path.join(folder, records.MANIFEST)):
            manifest = records.verify(folder)
            for shard in (*manifest.train, *manifest.eval):
                known[os.path.join(folder, shard.name)] = shard.records
    counts = {f: known[f] if f in known else records.count_records(f) for f in files}
    if not any(counts.values()):
        raise UserError(f"The {len(files)} TFRecord files are empty.")
    return counts


@contextlib.contextmanager
def naming_damage(files: Sequence[str], vocab_size: int) -> Iterator[None]:
    """Raises ValueError with file and record if damaged records stop the block.

    Reads the files again after an error of TensorFlow, which lacks both.
    """
    try:
        yield
    except (*_UNPARSED, tf.errors.DataLossError) as error:
        for path in files:
            if damage := _damage(path, vocab_size):
                again = "Copy or build it again; the same command then resumes."
                raise UserError(f"{path}: {damage}. {again}") from error
        raise


def _damage(path: str, vocab_size: int) -> str:
    """Describes the first damaged record of a file, or returns ""."""
    first = 0
    # Finds the batch, then the record.
    for size in (1000, 1):
        try:
            for batch in tf.data.TFRecordDataset(path).skip(first).batch(size):
                parse_batch(batch, vocab_size)
                first += len(batch)
            return ""
        except (tf.errors.OpError, UnicodeDecodeError) as error:
            reason = cli.reason(error)
    return f"record {first + 1} is damaged ({reason})"


def parse_batch(
    serialized: tf.Tensor, vocab_size: int = tf.int32.max
) -> tf.RaggedTensor:
    """Parses token ids without padding: [B] string to [B, None] int32, ragged.

    In records of the original builder, ``input_mask`` marks the padding. Raises
    ``tf.errors.InvalidArgumentError`` for missing ``input_ids`` or ids out of range.

    Examples:
        >>> _ = et.data.write_shard("two.tfrecord", [[2, 7, 8, 3], [2, 9, 3]])
        >>> (serialized,) = tf.data.TFRecordDataset("two.tfrecord").batch(2)
        >>> et.data.parse_batch(serialized)
        <tf.RaggedTensor [[2, 7, 8, 3], [2, 9, 3]]>
    """
    feature = tf.io.RaggedFeature(tf.int64, row_splits_dtype=tf.int64)
    features = {"input_ids": feature, "input_mask": feature}
    parsed = tf.io.parse_example(serialized, features)
    ids, mask = parsed["input_ids"], parsed["input_mask"]
    tf.debugging.assert_positive(ids.row_lengths(), _NO_INPUT_IDS)
    beyond = f"an id is beyond the vocabulary of {vocab_size} tokens"
    tf.debugging.assert_less(ids.flat_values, tf.cast(vocab_size, tf.int64), beyond)
    tf.debugging.assert_non_negative(ids.flat_values, "an id is negative")
    masked = tf.reduce_sum(mask, axis=1)
    lengths = tf.where(mask.row_lengths() > 0, masked, ids.row_lengths())
    dense = tf.cast(ids.to_tensor(), tf.int32)
    return tf.RaggedTensor.from_tensor(dense, lengths=lengths)


def _endless_records(
    files: Sequence[str], count: int, seed: int, shuffle_buffer: int, start_record: int
) -> tf.data.Dataset:
    """Yields (serialized record, pass number) forever; a pass has ``count`` records."""
    first_pass, skipped = divmod(start_record, count)
    names = tf.constant(list(files))

    @tf.autograph.experimental.do_not_convert
    def one_pass(number: tf.Tensor) -> tf.data.Dataset:
        pass_seed = tf.stack([tf.constant(seed, tf.int64), number])
        order = tf.random.experimental.stateless_shuffle(names, pass_seed)
        dataset = (
            tf.data.Dataset.from_tensor_slices(order)
            .interleave(
                tf.data.TFRecordDataset,
                cycle_length=min(16, len(files)),
                block_length=1,
                num_parallel_calls=tf.data.AUTOTUNE,
                deterministic=True,
            )
            .apply(tf.data.experimental.assert_cardinality(count))
        )
        # `Dataset.shuffle` also depends on `tf.random.set_seed`, and rejects seed 0.
        shuffled = tf.raw_ops.ShuffleDataset(
            input_dataset=tf.data.experimental.to_variant(dataset),
            buffer_size=shuffle_buffer,
            # Two zeros would select a random seed.
            seed=pass_seed[0] + 1,
            seed2=pass_seed[1],
            reshuffle_each_iteration=False,
            output_types=[tf.string],
            output_shapes=[[]],
        )
        dataset = tf.data.experimental.from_variant(shuffled, dataset.element_spec)
        offset = tf.where(number == first_pass, tf.constant(skipped, tf.int64), 0)
        # Skips before parsing and masking: reading bytes is cheap.
        return dataset.skip(offset).map(lambda record: (record, number))

    return tf.data.Dataset.range(first_pass, tf.int64.max).flat_map(one_pass)


def _batch_maker(
    masking: Masking, sep_id: int, seed: int, mask_variants: int | None, batch_size: int
) -> Callable[..., dict[str, tf.Tensor]]:
    variants = tf.int64.max if mask_variants is None else mask_variants
    length = masking.max_seq_length
    too_long = f"a record is longer than max_seq_length={length}: raise it or rebuild"

    def filled(value: tf.Tensor) -> tf.Tensor:
        # Pads a short last batch with empty rows, so shapes stay static.
        missing = batch_size - tf.shape(value)[0]
        rows = tf.pad(value, [[0, missing], [0, 0]])
        return tf.ensure_shape(rows, [batch_size, value.shape[1]])

    # Autograph would take half a second without an effect.
    @tf.autograph.experimental.do_not_convert
    def make_batch(step: tf.Tensor, rows: tuple) -> dict[str, tf.Tensor]:
        serialized, passes = rows
        # Hashes the bytes, so a record's mask does not depend on shard, order or batch.
        fingerprints = tf.strings.to_hash_bucket_fast(serialized, tf.int64.max)
        keys = row_keys(fingerprints, passes % variants, seed=seed)
        ids = parse_batch(serialized, masking.vocab_size)
        lengths = ids.row_lengths()
        tf.debugging.assert_less_equal(lengths, tf.cast(length, tf.int64), too_long)
        padded = ids.to_tensor(masking.pad_id, shape=[None, length])
        mask = tf.sequence_mask(lengths, length, tf.int32)
        batch = derive_inputs(padded, mask, sep_id)
        batch.update(masking(padded, mask, keys, step))
        batch = {name: filled(batch[name]) for name in PRETRAINING}
        check_batch(batch)
        return batch

    return make_batch
