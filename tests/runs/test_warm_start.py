import dataclasses
import json
import os
import re
import shutil
import types

import numpy as np
import pytest

import electra_tf as et
from electra_tf.config import fields
from electra_tf.config.pretraining import PretrainConfig, RunConfig
from electra_tf.data.vocabulary import SPECIAL_TOKENS, Vocabulary
from electra_tf.folders.pretraining import PretrainingFolder, recommended
from electra_tf.runs import warm_start
from electra_tf.systems import build
from electra_tf.training.checkpoints import CheckpointStore, named_variables
from tests import tiny
from tests.flag_parsing import SMALL, parse
from tests.layers.helpers import randomize

VOCABULARY = Vocabulary((*SPECIAL_TOKENS, "one", "two"))


def save(model, folder, names=("encoder", "generator", "discriminator")):
    for name in names:
        model.artifacts()[name].save(folder / f"{name}.keras")


def built(*flags):
    return build.build_model(parse(*SMALL, *flags), tiny.VOCAB, (2, 3, 4))


def leave(model, folder, files):
    if files == "models":
        save(model, folder, model.artifacts())
    else:
        CheckpointStore(folder / "checkpoints", named_variables(model)).save(3)


def values(model):
    return {
        name: variable.numpy()
        for name, variable in named_variables(model).items()
        if variable.trainable
    }


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    model = tiny.electra(seed=1)
    randomize(model.trainable_variables)
    folder = tmp_path_factory.mktemp("trained")
    save(model, folder)
    leave(model, folder / "run", "checkpoints")
    return folder, values(model)


@pytest.mark.parametrize(
    "place",
    ["", "run", *(f"run/checkpoints{x}" for x in ("", "/ckpt-3", "/ckpt-3.index"))],
)
def test_both_towers_and_heads_also_frozen_ones(trained, place):
    folder, wanted = trained
    model = tiny.electra(seed=2)
    model.generator.trainable = False
    assert not warm_start.load(str(folder / place), model, print)
    model.generator.trainable = True
    np.testing.assert_equal(values(model), wanted)


@pytest.mark.parametrize(
    ("file", "kept"),
    [
        ("discriminator", ("generator", "masked_lm_head")),
        ("generator", ("discriminator", "objective")),
        ("encoder", ("generator", "masked_lm_head", "objective")),
    ],
)
def test_what_the_folder_lacks_is_kept_and_named(trained, tmp_path, file, kept):
    folder, wanted = trained
    model = tiny.electra(seed=2)
    before = values(model)
    # Checkpoints may be deleted from a finished run.
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / f"{file}.keras").symlink_to(folder / f"{file}.keras")
    said = []
    kept_ones = warm_start.load(str(tmp_path), model, said.append)
    missing = {name for name in before if name.split("/")[1] in kept}
    assert kept_ones.keys() == missing
    expected = wanted | {name: before[name] for name in missing}
    np.testing.assert_equal(values(model), expected)
    assert "kept as initialized: model/" in said[0]


def test_names_of_the_models_do_not_matter(trained):
    """Covers models that a user built and named."""
    folder, wanted = trained
    table = et.layers.TextEmbedding(tiny.VOCAB, 12, max_positions=32, name="mine")
    generator = tiny.encoder(table, hidden_size=16, num_heads=1, name="small")
    model = et.Electra(et.MaskedLM(generator), tiny.encoder(table, name="large"))
    assert not warm_start.load(str(folder), model, print)
    expected = wanted["model/embeddings/word_embeddings"]
    np.testing.assert_array_equal(table.word_embeddings.numpy(), expected)


@pytest.mark.parametrize(
    ("source", "sizes", "message"),
    [
        ("", {}, r"word_embeddings \[97, 12\], this run has .* \[50, 12\]"),
        ("run", {}, r"word_embeddings \[97, 12\], this run has \[50, 12\]"),
        ("", {"num_heads": 4}, r"discriminator.keras .*: num_heads 2, this run"),
        ("", {"num_layers": 3}, r"discriminator.keras .*\w+ \[.* has qkv_k"),
    ],
)
def test_what_does_not_fit_is_named_and_nothing_changes(
    trained, source, sizes, message
):
    table = et.layers.TextEmbedding(97 if sizes else 50, 12, max_positions=32)
    generator = tiny.encoder(table, hidden_size=16, num_heads=1)
    model = et.Electra(et.MaskedLM(generator), tiny.encoder(table, **sizes))
    before = values(model)
    with pytest.raises(ValueError, match=message):
        warm_start.load(str(trained[0] / source), model, print)
    np.testing.assert_equal(values(model), before)


def test_halves_of_two_models_are_refused(trained, tmp_path):
    save(tiny.electra(seed=5), tmp_path, ["generator"])
    (tmp_path / "discriminator.keras").symlink_to(trained[0] / "discriminator.keras")
    with pytest.raises(ValueError, match="embeddings/word_embeddings differs from"):
        warm_start.load(str(tmp_path), tiny.electra(seed=2), print)


HEADS = ("generator", "masked_lm_head", "objective")
TOWERS = ("generator_left_to_right", "generator_right_to_left")
TWO_TOWERS = "objective=electric"


@pytest.mark.parametrize(
    ("files", "there", "here", "kept"),
    [
        ("checkpoints", "objective=mlm", "objective=electra", HEADS),
        ("models", "objective=electra", "objective=mlm", HEADS),
        ("models", "generator_layers=0.5", "generator_layers=1", HEADS[:2]),
        ("checkpoints", "generator_layers=1", "generator_layers=0.5", HEADS[:1]),
        ("checkpoints", TWO_TOWERS, f"{TWO_TOWERS} --generator_layers=0.5", TOWERS),
    ],
)
def test_what_has_other_sizes_starts_anew(tmp_path, files, there, here, kept):
    """Masked LM to discriminator and the reverse, and another generator."""
    wide = "--generator_hidden_size=0.5"
    source, model = (built(wide, *f"--{flag}".split()) for flag in (there, here))
    randomize(source.trainable_variables)
    leave(source, tmp_path, files)
    before, said = values(model), []
    anew = warm_start.load(str(tmp_path), model, said.append)

    def loaded(found):
        parts = {n: v for n, v in found.items() if n.split("/")[1] not in kept}
        return {n.replace("/encoder/", "/discriminator/"): v for n, v in parts.items()}

    found = values(model)
    np.testing.assert_equal(loaded(found), loaded(values(source)))
    same = {name for name in found if np.array_equal(found[name], before[name])}
    assert same == {name for name in found if name.split("/")[1] in kept}
    assert anew.keys() == same
    assert re.search(r"another shape, and kept as initialized: .*model/\w+ \(", said[0])


def test_a_damaged_file_is_named(tmp_path):
    (tmp_path / "encoder.keras").write_bytes(b"nothing")
    with pytest.raises(ValueError, match=r"encoder\.keras cannot be loaded"):
        warm_start.load(str(tmp_path), tiny.electra(), print)
    with pytest.raises(ValueError, match="has no weights of this run's networks"):
        warm_start.load(str(tmp_path / "nothing"), tiny.electra(), print)


SIZES = {
    "num_layers": 2,
    "hidden_size": 768,
    "num_heads": 12,
    "intermediate_size": 3072,
    "embedding_size": 768,
    "generator_hidden_size": 0.33333,
}


def config(init_from, **flags):
    flat = {**SIZES, "init_from": str(init_from), **flags}
    return fields.from_flat(flat, PretrainConfig)


def described(folder, vocabulary=VOCABULARY, data=None, **flags):
    """Writes config.json and vocabulary of a run, and an empty checkpoint file."""
    told = {**SIZES, "max_positions": 512, "lower_case": True, "strip_accents": True}
    told |= {"objective": "electra", "generator_layers": 1.0, **flags}
    about = {"config": told, "data": data or {}}
    (folder / "config.json").write_text(json.dumps(about))
    (folder / "checkpoints").mkdir(exist_ok=True)
    (folder / "checkpoints" / "ckpt-100.index").write_text("")
    vocabulary.save(folder / "vocab.txt")
    return folder


def check(config, vocabulary=VOCABULARY, lower_case=None):
    """Runs both checks: without data, then with data."""
    warm_start.check(config)
    given = config.data.lower_case if lower_case is None else lower_case
    casing = {"lower_case": given, "strip_accents": True}
    warm_start.check(config, types.SimpleNamespace(vocabulary=vocabulary, **casing))


def test_a_run_of_the_same_sizes_passes(tmp_path):
    folder = described(tmp_path, generator_hidden_size=256 / 768, dropout=0.3)
    inside = folder / "checkpoints"
    for place in (folder, inside, inside / "ckpt-100", inside / "ckpt-100.index"):
        check(config(place))
    check(dataclasses.replace(config(None), run=RunConfig()))
    # A generator of other sizes starts anew.
    check(config(described(tmp_path, generator_hidden_size=0.1)))


@pytest.mark.parametrize(
    ("flags", "messages"),
    [
        ({"num_layers": 3}, ["num_layers is 3 there and 2 here", "--num_layers=3"]),
        (
            {"lower_case": False, "strip_accents": False},
            ["lower_case is False there", "Pass --nolower_case."],
        ),
        (
            {"strip_accents": False},
            ["strip_accents is False there", "Pass --nostrip_accents."],
        ),
        ({"hidden_size": 1024}, ["Pass --hidden_size=1024."]),
        (
            {"max_positions": 128, "embedding_size": 128},
            ["max_positions is 128", "--embedding_size=128 --max_positions=128"],
        ),
    ],
)
def test_what_differs_is_one_error_with_the_flags_to_pass(tmp_path, flags, messages):
    with pytest.raises(ValueError, match="does not fit this run") as caught:
        check(config(described(tmp_path, **flags) / "checkpoints"))
    assert all(message in str(caught.value) for message in messages)


def test_another_vocabulary_is_refused(tmp_path):
    other = Vocabulary((*SPECIAL_TOKENS, "one", "three"))
    folder, message = described(tmp_path), r"vocabularies differ.*--vocab_file="
    with pytest.raises(ValueError, match=message):
        check(config(folder), other)
    other.save(tmp_path / "mine.txt")
    with pytest.raises(ValueError, match=message):
        warm_start.check(config(folder, vocab_file=str(tmp_path / "mine.txt")))
    # Nor one that replaced the run's own.
    folder = described(tmp_path, data={"vocabulary_sha256": other.sha256})
    with pytest.raises(ValueError, match=r"vocab\.txt does not have the SHA-256"):
        check(config(folder))


def test_the_casing_is_that_of_the_records(tmp_path):
    folder = described(tmp_path, lower_case=False)
    given = config(folder, records=("x.tfrecord",))
    check(given, lower_case=False)
    with pytest.raises(ValueError, match="lower_case is False there and True here"):
        check(given, lower_case=True)
    # With --records the casing flags of a run have their defaults.
    folder = described(tmp_path, data={"lower_case": False, "strip_accents": False})
    check(config(folder, records=("x.tfrecord",)), lower_case=False)
    with pytest.raises(ValueError, match=r"lower_case is False.*Pass --nolower_case"):
        check(config(folder))


def test_a_folder_without_weights_is_refused_before_anything_is_built(tmp_path):
    (tmp_path / "run").mkdir()
    run = described(tmp_path / "run")
    with pytest.raises(FileNotFoundError, match="has no weights: name the folder"):
        warm_start.check(config(tmp_path))
    # A resumed run has its own weights.
    resumed = config(tmp_path / "gone", model_dir=str(run))
    warm_start.check(resumed)
    anew = dataclasses.replace(resumed.run, overwrite=True)
    with pytest.raises(FileNotFoundError, match="has no weights"):
        warm_start.check(dataclasses.replace(resumed, run=anew))


def test_a_checkpoint_away_from_its_run_is_unchecked_and_that_is_said(tmp_path):
    model = built("--generator=unigram")
    model.generator.set_counts(np.arange(tiny.VOCAB))
    CheckpointStore(tmp_path, named_variables(model)).save(3)
    other, said = built("--generator=uniform"), []
    flags = "--generator=uniform", f"--init_from={tmp_path}"
    data = types.SimpleNamespace(vocabulary=range(tiny.VOCAB))
    warm_start.initialize(parse(*SMALL, *flags), other, data, said.append)
    assert any("no config.json" in line for line in said)
    # A uniform generator stays uniform.
    found = other.generator.log_probabilities.numpy()
    np.testing.assert_allclose(found, -np.log(tiny.VOCAB), rtol=1e-6)


def test_a_fine_tuned_model_is_refused(tmp_path):
    folder = described(tmp_path)
    (folder / "task.json").write_text("{}")
    with pytest.raises(ValueError, match=f"{folder} holds a fine-tuned model: convert"):
        warm_start.completed(config(folder), print)


def test_the_vocabulary_comes_with_the_weights(tmp_path):
    folder = described(tmp_path)
    chosen = warm_start.completed(config(folder), print)
    assert chosen.data.vocab_file == str(folder / "vocab.txt")
    checkpoint = folder / "checkpoints" / "ckpt-3"
    run = dataclasses.replace(chosen.run, init_from=str(checkpoint))
    expected = dataclasses.replace(chosen, run=run)
    assert warm_start.completed(config(checkpoint), print) == expected
    # A resumed run has its own copy.
    gone = config(tmp_path / "gone", model_dir=str(folder))
    assert warm_start.completed(gone, print).data.vocab_file == chosen.data.vocab_file
    for flags in ({"vocab_file": "mine.txt"}, {"records": ("x.tfrecord",)}):
        given = config(folder, **flags)
        assert warm_start.completed(given, print) == given
    plain = fields.from_flat(SIZES, PretrainConfig)
    assert warm_start.completed(plain, print) == plain


def test_sizes_come_with_the_weights_unless_flags_set_them(tmp_path):
    sizes = {"num_layers": 3, "num_heads": 6, "generator_layers": 0.5}
    sizes |= {"lower_case": False, "generator_hidden_size": 0.5}
    folder, said = described(tmp_path, **sizes), []
    plain = parse(f"--init_from={folder}")
    chosen = warm_start.completed(plain, said.append)
    assert sizes.items() <= fields.to_flat(chosen).items()
    assert chosen.encoder.hidden_size == 768
    assert "--num_layers=3" in said[0]
    assert "--nolower_case" in said[0]
    # A resumed run has its own copy; Python has no record of given flags.
    gone = PretrainConfig(run=RunConfig(init_from="gone", model_dir=str(folder)))
    again = warm_start.completed(gone, said.append)
    assert sizes.items() <= fields.to_flat(again).items()
    # A flag at its default value is still an explicit flag.
    flags = ("--num_layers=12", "--generator_hidden_size=0.25")
    given = warm_start.completed(parse(f"--init_from={folder}", *flags), said.append)
    assert given.generator.generator_hidden_size == 0.25
    with pytest.raises(ValueError, match="num_layers is 3 there and 12 here"):
        warm_start.check(given)
    # Records set the casing; a lone discriminator has no generator settings.
    records = parse(f"--init_from={folder}", "--records=x")
    assert warm_start.completed(records, said.append).data.lower_case
    shutil.rmtree(folder / "checkpoints")
    (folder / "encoder.keras").write_text("")
    alone = warm_start.completed(plain, said.append)
    assert alone.generator.generator_hidden_size == 0.25
    assert alone.encoder.num_layers == 3


def test_the_recipe_comes_with_the_weights_unless_flags_set_it(tmp_path):
    recipe = {"num_train_steps": 900, "warmup_steps": 30, "dropout": 0.0}
    recipe |= {"learning_rate": 2e-4, "mask_rate": 0.25, "train_batch_size": 32}
    for name in ("source", "shared"):
        (tmp_path / name).mkdir()
    start = f"--init_from={described(tmp_path / 'source', **recipe)}"

    def chosen(*flags):
        flat = fields.to_flat(warm_start.completed(parse(start, *flags), print))
        return {name: flat[name] for name in recipe}

    assert chosen() == recipe
    # A flag at its default value is still an explicit flag.
    home = described(tmp_path / "shared", sharing="nes")
    shared = warm_start.completed(parse(f"--init_from={home}"), print)
    assert shared.generator.sharing == "nes"
    given = {"dropout": 0.1, "mask_rate": 0.15, "warmup_steps": 10_000}
    flags = [f"--{name}={value}" for name, value in given.items()]
    assert chosen(*flags) == recipe | given
    shorter = {"num_train_steps": 300, "warmup_steps": 10}
    assert chosen("--num_train_steps=300") == recipe | shorter
    # A resumed run keeps its own recipe.
    own = {**recipe, "num_train_steps": 300, "warmup_steps": 7, "dropout": 0.2}
    (tmp_path / "run").mkdir()
    again = f"--model_dir={described(tmp_path / 'run', **own)}"
    assert chosen(again) == own
    assert chosen(again, "--num_train_steps=300") == own
    assert chosen(again, "--overwrite") == recipe
    # The recipe for fine-tuning comes too.
    (tmp_path / "source" / "recipe.json").write_text('{"pooling": "mean"}')
    warm_start.copy_recipe(parse(start), PretrainingFolder(tmp_path / "run"))
    assert recommended(tmp_path / "run") == {"pooling": "mean"}


def test_plain_tables_do_not_fit_borrowed_ones(trained):
    sizes = {"num_layers": 2, "hidden_size": 32, "num_heads": 2, "embedding_size": 12}
    sizes |= {"generator_hidden_size": 0.5, "sharing": "gdes"}
    model = build.build_model(fields.from_flat(sizes, PretrainConfig), tiny.VOCAB)
    before = values(model)
    with pytest.raises(ValueError, match=r"plain tables.*--sharing=tied, nes"):
        warm_start.load(str(trained[0]), model, print)
    np.testing.assert_equal(values(model), before)


def test_a_generator_that_is_missing_or_does_not_fit_is_named(tmp_path):
    frozen = ["--freeze_generator", "--sharing=nes"]
    config = parse(*SMALL, *frozen, f"--generator_init_from={tmp_path}")
    model = built("--sharing=nes")
    data = types.SimpleNamespace(vocabulary=None)
    with pytest.raises(ValueError, match=r"there is no .*generator\.keras"):
        warm_start.check(config)
    wide = built("--generator_hidden_size=0.5")
    heads = model.generator.get_config()
    heads["encoder"]["config"]["num_heads"] = 2
    for other, message in (
        (wide.generator, r"does not fit.*--generator_hidden_size"),
        (et.MaskedLM.from_config(heads), "num_heads 2, this run has num_heads 1"),
    ):
        other.save(tmp_path / "generator.keras")
        with pytest.raises(ValueError, match=message):
            warm_start.initialize(config, model, data, print)
    assert os.listdir(tmp_path) == ["generator.keras"]


@pytest.mark.parametrize("sharing", ["nes", "token", "gdes", "untied"])
def test_tables_of_a_generator_start_from_shared_ones(sharing, tmp_path):
    """They were random, so that a generator to freeze sampled noise."""
    source, model = built("--sharing=tied"), built(f"--sharing={sharing}")
    randomize(source.trainable_variables)
    leave(source, tmp_path, "checkpoints")
    kept = warm_start.load(str(tmp_path), model, print)
    if sharing == "untied":
        # Tables of another width: the generator starts anew.
        anew = {name.split("/")[1] for name in kept}
        assert anew == {"generator", "generator_embeddings", "masked_lm_head"}
        return
    assert all(name.endswith("_delta") for name in kept)
    assert len(kept) == (3 if sharing == "gdes" else 0)
    batch = tiny.batch((16, 9))
    batch = {name: value[:, :16] for name, value in batch.items()}
    for name in ("generator", "discriminator"):
        wanted, got = (getattr(each, name)(batch) for each in (source, model))
        np.testing.assert_array_equal(got, wanted)


def test_deltas_of_a_checkpoint_are_not_dropped(tmp_path):
    run = described(tmp_path, sharing="gdes")
    with pytest.raises(ValueError, match=r"sharing is gdes .* encoder\.keras alone"):
        check(config(run))
    check(config(run, sharing="gdes"))


@pytest.mark.parametrize(
    ("flags", "fix"),
    [
        ("--freeze_generator --sharing=nes", "--generator_init_from"),
        (
            "--training=two_stage --sharing=nes --generator_hidden_size=1",
            "--notwo_stage_copy",
        ),
    ],
)
def test_a_generator_to_freeze_or_copy_must_be_there(flags, fix, tmp_path):
    """Without it, a run sampled noise, or copied random weights over --init_from."""
    leave(built("--objective=mlm"), tmp_path, "checkpoints")
    chosen = parse(*SMALL, *flags.split(), f"--init_from={tmp_path}")
    model = built(*flags.split(), f"--init_from={tmp_path}")
    with pytest.raises(ValueError, match=f"this run's generator .*: add {fix}"):
        warm_start.initialize(chosen, model, None, print)
    leave(built("--sharing=nes", *flags.split()[2:]), tmp_path, "checkpoints")
    warm_start.initialize(chosen, model, None, print)


def test_a_generator_does_not_replace_tables_of_init_from(tmp_path):
    source, other, model = built(), built(), built("--sharing=nes")
    randomize(source.trainable_variables)
    leave(source, tmp_path / "run", "checkpoints")
    other.generator.save(tmp_path / "generator.keras")
    flags = f"--init_from={tmp_path}/run --generator_init_from={tmp_path}"
    for sharing in ("tied", "gdes"):
        with pytest.raises(ValueError, match="would replace tables of --init_from"):
            warm_start.check(parse(*SMALL, f"--sharing={sharing}", *flags.split()))
    chosen = parse(*SMALL, "--sharing=nes", *flags.split())
    warm_start.check(chosen)
    data = types.SimpleNamespace(vocabulary=None)
    warm_start.initialize(chosen, model, data, print)
    batch = tiny.batch((16, 9))
    batch = {name: value[:, :16] for name, value in batch.items()}
    for name, start in (("generator", other), ("discriminator", source)):
        wanted, got = (getattr(each, name)(batch) for each in (start, model))
        np.testing.assert_array_equal(got, wanted)
