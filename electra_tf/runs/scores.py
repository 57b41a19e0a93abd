"""Token scores of a pretrained model, without training.

* ``detection``: log P(original), from one pass of a discriminator;
* ``energy``: the negative energy, Electric's pseudo-log-likelihood (Clark et al.,
  2020b, section 3), from one pass;
* ``masked_lm``: log p of the token with only this token masked (Salazar et al., 2020),
  from one pass per token.

Letters: B rows, S tokens.
"""

from collections.abc import Callable, Sequence

import keras
import numpy as np
import tensorflow as tf

from electra_tf import cli
from electra_tf.cli import Log
from electra_tf.config.commands import ScoreConfig
from electra_tf.data.tokenizer import WordPiece
from electra_tf.data.vocabulary import Vocabulary
from electra_tf.errors import UserError
from electra_tf.features import derive_inputs
from electra_tf.folders.pretraining import PretrainingFolder, named
from electra_tf.pretraining import EnergyModel, MaskedLM, ReplacedTokenDetector

_CLASSES = {
    "detection": ReplacedTokenDetector,
    "energy": EnergyModel,
    "masked_lm": MaskedLM,
}


def load(config: ScoreConfig, log: Log) -> tuple[str, keras.Model, WordPiece]:
    """Returns the method ("auto" follows the run's objective), model and tokenizer."""
    folder, method = PretrainingFolder(named(config.model)), config.method
    folder.reject_fine_tuned("give the pretraining run it started from.")
    tokenizer = folder.tokenizer(log)
    is_masked = method == "masked_lm"
    is_masked |= method == "auto" and not folder.has_model("discriminator")
    name = "generator" if is_masked else "discriminator"
    path = folder.model_path(name)
    hint = f"--method={method} needs it: name a finished run, or choose another."
    model = folder.load(name, keras.Model, hint)
    for kind, cls in _CLASSES.items():
        if isinstance(model, cls) and method in ("auto", kind):
            folder.check_vocabulary(name, model.encoder)
            return kind, model, tokenizer
    raise UserError(
        f"{path} holds a {type(model).__name__}, which does not score tokens by "
        f"--method={method}: choose another --method, such as masked_lm."
    )


def token_scores(
    method: str,
    model: keras.Model,
    tokenizer: WordPiece,
    texts: Sequence[str],
    *,
    batch_size: int = 64,
    log: Log = lambda line: None,
) -> list[np.ndarray]:
    """Computes float32 scores of all tokens of each text; higher is better."""
    vocabulary, rows = tokenizer.vocabulary, []
    most = model.encoder.embeddings.max_positions - 2
    for text, ids in zip(texts, tokenizer.encode(texts), strict=True):
        if not 0 < len(ids) <= most:
            raise UserError(
                f"{text[:60]!r} has {len(ids)} tokens; the model takes from 1 to "
                f"{most}."
            )
        rows.append((vocabulary.cls_id, *ids, vocabulary.sep_id))
    # Each row once: in different batches its scores differ by rounding, which would
    # break ties.
    unique = list(dict.fromkeys(rows))
    scores = row_scores(
        method, model, vocabulary, unique, batch_size=batch_size, log=log
    )
    by_row = dict(zip(unique, scores, strict=True))
    return [by_row[row] for row in rows]


def row_scores(
    method: str,
    model: keras.Model,
    vocabulary: Vocabulary,
    rows: Sequence[Sequence[int]],
    *,
    batch_size: int = 64,
    log: Log = lambda line: None,
) -> list[np.ndarray]:
    """Computes ``token_scores`` of token ids; [CLS] and [SEP] get no score."""
    # A row and its scored token (masked LM), or None for all.
    queries = [(row, None) for row in range(len(rows))]
    if method == "masked_lm":
        queries = [
            (row, at) for row, ids in enumerate(rows) for at in range(1, len(ids) - 1)
        ]
    # Rows of similar length share a batch.
    queries.sort(key=lambda each: len(rows[each[0]]))
    score = _scorer(method, model, vocabulary.mask_id)
    scores = [np.zeros(len(ids) - 2, np.float32) for ids in rows]
    progress = cli.Progress(len(queries), unit="row", log=log)
    for start in range(0, len(queries), batch_size):
        part = queries[start : start + batch_size]
        ids = keras.utils.pad_sequences(
            [rows[row] for row, _ in part], padding="post", value=vocabulary.pad_id
        )
        lengths = np.array([[len(rows[row])] for row, _ in part])
        mask = (np.arange(ids.shape[1]) < lengths).astype(np.int32)
        inputs = derive_inputs(tf.constant(ids), tf.constant(mask), vocabulary.sep_id)
        if method == "masked_lm":
            at = np.array([[position] for _, position in part], np.int32)
            inputs["masked_lm_positions"] = tf.constant(at)
        values = score(inputs).numpy()
        for (row, position), own in zip(part, values, strict=True):
            if position is None:
                scores[row][:] = own[1 : len(rows[row]) - 1]
            else:
                scores[row][position - 1] = own[0]
        progress.update(start + len(part), method)
    return scores


def _scorer(method: str, model: keras.Model, mask_id: int) -> Callable:
    """Returns the traced function of a method: inputs to scores [B, S] or [B, 1]."""

    @tf.function(reduce_retracing=True)
    def score(inputs: dict[str, tf.Tensor]) -> tf.Tensor:
        if method == "detection":
            return tf.math.log_sigmoid(-model(inputs))
        if method == "energy":
            return -model(inputs)
        ids, at = inputs["input_ids"], inputs["masked_lm_positions"]
        is_scored = tf.range(tf.shape(ids)[1])[tf.newaxis] == at
        shown = {**inputs, "masked_input_ids": tf.where(is_scored, mask_id, ids)}
        original = tf.gather(ids, at, batch_dims=1)
        return tf.gather(tf.nn.log_softmax(model(shown)), original, batch_dims=2)

    return score
