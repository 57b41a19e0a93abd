import csv
import gzip
import json
import shutil

import keras
import numpy as np
import pytest
import safetensors.numpy
import tensorflow as tf

import electra_tf as et
from electra_tf.__main__ import main as command
from electra_tf.api.loading import ExportedModel, PretrainedModel
from electra_tf.config.commands import ConvertConfig
from electra_tf.interop.convert import main as convert
from tests.api.common import make
from tests.golden.archive import unpack


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Finished runs of an older version."""
    return unpack("runs", tmp_path_factory.mktemp("golden"))


@pytest.fixture(scope="module")
def tuned(runs):
    return et.load(runs / "task")


@pytest.fixture(scope="module")
def pretrained(runs):
    return et.load(runs / "finished")


@pytest.fixture(scope="module")
def exported(runs):
    return et.load(runs / "task" / "saved_model")


@pytest.fixture(scope="module")
def theirs(runs, tmp_path_factory):
    path = tmp_path_factory.mktemp("converted") / "theirs"
    options = {"source": str(runs / "finished"), "to": str(path)}
    convert(ConvertConfig(format="hugging_face", **options), log=lambda line: None)
    return path


def texts(runs):
    with (runs / "eval.csv").open(newline="") as file:
        return [row["text"] for row in csv.DictReader(file)]


def test_a_fine_tuned_run_answers_as_it_did(runs, tuned, exported, capsys):
    assert isinstance(tuned, et.TextClassifier)
    assert isinstance(exported, ExportedModel)
    with (runs / "task" / "predictions.tsv").open(newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    for model in (tuned, exported):
        found = model.predict(texts(runs), batch_size=7)
        assert [row["label"] for row in found] == [row["prediction"] for row in rows]
        for answer, row in zip(found, rows, strict=True):
            expected = {label: float(row[f"p({label})"]) for label in tuned.labels}
            assert answer["probabilities"] == pytest.approx(expected, abs=2e-6)
    (seed,) = json.loads((runs / "task" / "results.json").read_text())["seeds"]
    found = tuned.evaluate(runs / "eval.csv", batch_size=7)
    assert found == pytest.approx(seed["scores"]["eval"])
    flags = [f"--model={runs / 'task'}", f"--input={runs / 'eval.csv'}"]
    capsys.readouterr()
    assert command(["evaluate", *flags]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said == [f"{name} {value:.2f}" for name, value in found.items()]
    with pytest.raises(SystemExit, match="has no column 'topic'"):
        command(["evaluate", *flags, "--label=topic"])


def test_tables_have_the_columns_of_the_model(runs, tuned, preset, tmp_path):
    folder = shutil.copytree(runs / "task", tmp_path / "sst")
    for name, change in (
        ("task.json", lambda about: about | {"task": "sst"}),
        # The unused default of a GLUE task.
        ("config.json", lambda it: it | {"config": it["config"] | {"text": ["none"]}}),
    ):
        path = folder / name
        path.write_text(json.dumps(change(json.loads(path.read_text()))))
    scores = et.load(folder).evaluate(runs / "eval.csv")
    assert scores["accuracy"] == tuned.evaluate(runs / "eval.csv")["accuracy"]
    pair = make("TextClassifier", preset, pair=True)
    table = tmp_path / "pairs.csv"
    table.write_text("text,text_pair,label\ngood,bad,pos\nbad,bad,neg\n")
    assert 0 <= pair.evaluate(table)["accuracy"] <= 100
    with pytest.raises(ValueError, match="1 columns, but the model reads text and"):
        pair.evaluate(table, text="text")
    with pytest.raises(ValueError, match="does not take steps or threshold"):
        pair.evaluate(table, threshold=0.9, steps=1)
    with pytest.raises(ValueError, match="does not take labels or weights"):
        pair.evaluate(table, ["pos", "neg"], sample_weight=[1, 2])
    reader = make("QuestionAnswering", preset)
    reader.task["columns"] = {"text": ["text"]}
    answer = {"text": "good", "answer_start": 0}
    question = {"id": "1", "question": "is it ?", "answers": [answer]}
    article = {"paragraphs": [{"context": "good book", "qas": [question]}]}
    (tmp_path / "dev.json").write_text(json.dumps({"data": [article]}))
    assert 0 <= reader.evaluate(tmp_path / "dev.json")["f1"] <= 100
    tagger = make("TokenClassifier", preset, tags=["X", "Y"])
    table = tmp_path / "dev.conllu.gz"
    (predicted,) = tagger.predict([["good"]])[0]["tags"]
    for tag in ("X", "Y"):
        row = f"1\tgood\t_\t{tag}\t_\t_\t0\troot\t_\t_\n"
        table.write_bytes(gzip.compress(row.encode()))
        right = 100 * (tag == predicted)
        assert tagger.evaluate(table)["accuracy"] == right
        (tmp_path / "dev.txt").write_text(f"{tag} good\n")
        columns = {"word_column": 1, "tag_column": 0}
        assert tagger.evaluate(tmp_path / "dev.txt", **columns)["accuracy"] == right


def by_hand(model, text, pooling, layer):
    """Computes the vector of one text, without padding, in NumPy."""
    vocabulary = model.tokenizer.vocabulary
    (pieces,) = model.tokenizer.encode([text])
    pieces = list(pieces)[: model.max_seq_length - 2]
    ids = tf.constant([[vocabulary.cls_id, *pieces, vocabulary.sep_id]], tf.int32)
    states = model.encoder.states({"input_ids": ids})
    states = [np.asarray(state[0], np.float64) for state in states]
    state = np.mean(states, axis=0) if layer is None else states[layer]
    return state[0] if pooling == "cls" else state.mean(axis=0)


@pytest.mark.parametrize(("pooling", "layer"), [("mean", None), ("cls", 1)])
def test_vectors_are_those_of_the_encoder(pretrained, tuned, runs, pooling, layer):
    lines = [*texts(runs)[:3], "", "a very " * 200]
    for model in (pretrained, tuned):
        found = model.encode(lines, pooling, layer, batch_size=2)
        expected = [by_hand(model, line, pooling, layer) for line in lines]
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, expected, atol=1e-5)
    assert pretrained.encode([]).shape == (0, found.shape[1])


def test_a_pretrained_model_scores_tokens(pretrained, runs):
    """Batched probabilities equal the discriminator's on single texts."""
    lines = texts(runs)[:3]
    assert isinstance(pretrained, PretrainedModel)
    loaded = keras.saving.load_model(runs / "finished" / "discriminator.keras")
    vocabulary = pretrained.tokenizer.vocabulary
    for line, answer in zip(lines, pretrained.predict(lines), strict=True):
        ids = [vocabulary.tokens.index(token) for token in answer["tokens"]]
        (pieces,) = pretrained.tokenizer.encode([line])
        assert ids == [vocabulary.cls_id, *pieces, vocabulary.sep_id]
        expected = tf.sigmoid(loaded({"input_ids": tf.constant([ids])}))[0]
        np.testing.assert_allclose(answer["replaced"], expected, atol=1e-5)
    assert pretrained.predict([]) == []


def test_encoders_have_the_global_policy_if_it_is_mixed(runs, pretrained):
    keras.config.set_dtype_policy("mixed_bfloat16")
    mixed = et.load(runs / "finished")
    vectors = mixed.encode(texts(runs)[:3])
    assert mixed.encoder.compute_dtype == "bfloat16"
    assert {v.dtype for v in mixed.encoder.variables if v.path != "seed"} >= {"float32"}
    expected = pretrained.encode(texts(runs)[:3])
    assert vectors.dtype == np.float32
    assert 0 < np.abs(vectors - expected).max() < 0.1


def test_errors_name_the_folder_of_another_library(pretrained, theirs, tmp_path):
    # Without its head, the model is not a discriminator.
    theirs = shutil.copytree(theirs, tmp_path / "bare")
    path = theirs / "model.safetensors"
    tensors = {
        name: value
        for name, value in safetensors.numpy.load_file(path).items()
        if not name.startswith("discriminator_predictions")
    }
    safetensors.numpy.save_file(tensors, path, {"format": "pt"})
    config = theirs / "tokenizer_config.json"
    settings = json.loads(config.read_text()) | {"tokenize_chinese_chars": False}
    config.write_text(json.dumps(settings))
    with pytest.warns(UserWarning, match="tokenizer differs: tokenize_ch"):
        model = et.load(theirs)
    texts = ["a bad book", "very good"]
    expected = pretrained.encode(texts)
    np.testing.assert_allclose(model.encode(texts), expected, atol=1e-6)
    with pytest.raises(ValueError, match="no replaced-token discriminator: it can"):
        model.predict(["a"])


@keras.saving.register_keras_serializable(package="tests")
class OwnClassifier(et.TextClassifier):
    pass


def test_a_preset_of_a_subclass_is_loaded(preset, tmp_path):
    model = OwnClassifier.from_preset(preset, ["a", "b"])
    model.save_to_preset(tmp_path / "own")
    for load in (et.load, OwnClassifier.from_preset):
        loaded = load(tmp_path / "own")
        assert type(loaded) is OwnClassifier
        expected = model.predict_proba(["b a"])
        np.testing.assert_array_equal(loaded.predict_proba(["b a"]), expected)


def test_errors_of_loading_and_arguments(runs, tuned, pretrained, exported, tmp_path):
    with pytest.raises(FileNotFoundError, match=f"^{tmp_path}/none is not a folder"):
        et.load(tmp_path / "none")
    (tmp_path / "task.json").write_text("{}")
    with pytest.raises(ValueError, match="did not finish"):
        et.load(tmp_path)
    run = shutil.copytree(runs / "task", tmp_path / "run")
    about = json.loads((run / "task.json").read_text()) | {"max_seq_length": 10**6}
    (run / "task.json").write_text(json.dumps(about))
    with pytest.raises(ValueError, match=r"task\.json: max_seq_length is 1000000; it"):
        et.load(run)
    # A SavedModel does not need the file.
    shutil.copy(run / "saved_model" / "saved_model.pb", run / "saved_model.pb")
    (run / "task.json").write_text("{")
    with pytest.raises(ValueError, match=f"{run} cannot be loaded"):
        et.load(run)
    for options, message in (
        ({"pooling": "max"}, "pooling is 'max'; allowed are mean, cls"),
        ({"layer": 3}, "the encoder has 2 blocks"),
        ({"layer": 1.0}, r"layer is 1\.0; the encoder has"),
    ):
        with pytest.raises(ValueError, match=message):
            tuned.encode(["a"], **options)
    for method in (exported.predict, pretrained.predict, pretrained.encode):
        for size in (0, -1, 2.0):
            with pytest.raises(ValueError, match="batch_size must be a positive"):
                method(["a", "b"], batch_size=size)
        assert len(method(["a", "b"], batch_size=None)) == 2
    with pytest.raises(FileNotFoundError, match="No table"):
        tuned.evaluate(tmp_path / "none.csv")
