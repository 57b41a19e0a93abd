import numpy as np
import pytest
import sklearn.metrics
import tensorflow as tf

from electra_tf.data.tokenizer import WordPiece
from electra_tf.data.vocabulary import Vocabulary
from electra_tf.serving.export import ServingModule
from electra_tf.serving.predictor import Predictor
from electra_tf.tasks import metrics
from electra_tf.tasks.batching import Outputs
from electra_tf.tasks.sentences import Sentence
from electra_tf.tasks.tagging import TaggedWords, Tagging, word_rows
from tests.tasks import common

EMPTY = "\u200d\ufe0f"  # Format characters, which BERT's cleaning removes.


def sentence(words, tags=None, name="s"):
    words = tuple(words.split(" ") if isinstance(words, str) else words)
    return Sentence(name, words, None if tags is None else tuple(tags.split()))


TRAIN = [
    sentence("the movie is very good", "B-A I-A O O B-B"),
    sentence("the book was bad", "B-A I-A O B-B"),
]


def task(**kwargs):
    train = kwargs.pop("train", TRAIN)
    return Tagging(name="chunking", source=None, **kwargs).prepare(train)


def predict(found, sentences):
    """Answers with random logits."""
    rows = found.featurize(sentences, common.tokenizer(), 32)
    outputs = np.random.default_rng(0).normal(size=[len(rows), 32, found.num_outputs])
    return found.decode(list(outputs), rows, sentences)


def test_the_tag_is_at_the_first_piece_of_each_word_and_segments_are_zero():
    """Pitfall 37."""
    tokens = common.tokenizer().vocabulary.tokens
    data = [sentence("the xy is", "B-A I-A O")]
    rows = task().featurize(data, common.tokenizer(), 32, training=True)
    pieces = [tokens[i] for i in rows.inputs["input_ids"][0]]
    assert pieces == ["[CLS]", "the", "x", "##y", "is", "[SEP]"]
    assert task().labels == ("B-A", "B-B", "I-A", "O")
    assert rows.targets["tag"][0].tolist() == [0, 0, 2, 0, 3, 0]
    assert rows.weights[0].tolist() == [0, 1, 1, 0, 1, 0]
    assert not np.any(rows.inputs["segment_ids"].values)


def test_training_needs_one_known_tag_per_word():
    for tags, message in (
        ("O O", "Sentence s has 3 words but 2 tags"),
        (None, "3 words but 0 tags"),
        ("O B-C O", "has the tag 'B-C', but the task has B-A, B-B, I-A, O"),
    ):
        data = [*TRAIN, sentence("the book is", tags)]
        with pytest.raises(ValueError, match=message):
            task().featurize(data, common.tokenizer(), 16, training=True)


def test_case_is_kept_for_cased_vocabularies():
    """Pitfall 37."""
    tokens = (*common.TOKENS, "Apple", "apple")
    cased = WordPiece(Vocabulary(tokens), lower_case=False)
    found = word_rows([("Apple", "apple")], cased, 8)
    assert [tokens[i] for i in found.inputs["input_ids"][0][1:-1]] == ["Apple", "apple"]


def test_a_sentence_of_200_words_fills_a_row_of_256_and_goes_on_in_the_next():
    """Pitfall 37."""
    # 54 words of two pieces and 146 of one fill the 254 places exactly.
    words = ["xy"] * 54 + ["the"] * 146
    for more, counts in ((["the"], [200]), (["xy"], [200, 0])):
        found = word_rows([[*words[:-1], *more]], common.tokenizer(), 256)
        rows = [found.notes["word"][row] for row in range(len(found.example))]
        assert [int(np.sum(row >= 0)) for row in rows] == counts


def test_a_full_row_goes_on_in_the_next_one_within_a_word_too():
    words = ["the", "xyz", EMPTY, "is", EMPTY, "qqqqqqqqq", "a"]
    found = word_rows([words, ["book"]], common.tokenizer(), 6)
    kept = [row[row >= 0].tolist() for row in found.notes["word"]][:4]
    assert kept == [[0, 1], [3, 5], [], [6]]
    assert found.example.tolist()[:4] == [0, 0, 0, 0]
    assert max(found.inputs["input_ids"].lengths) == 6
    with pytest.raises(ValueError, match="max_seq_length is 2"):
        word_rows([words], common.tokenizer(), 2)


@pytest.mark.parametrize(("reduction", "reduce"), [("sum", np.sum), ("mean", np.mean)])
def test_the_loss_counts_words_and_not_pieces_or_padding(reduction, reduce):
    found = task()
    rows = found.featurize(TRAIN, common.tokenizer(), 32, training=True)
    random = np.random.default_rng(0)
    for length in (7, 20):
        chosen = np.arange(2)
        logits = random.normal(size=[2, length, 4]).astype(np.float32)
        targets = rows.targets["tag"].pad(chosen, length)
        weights = rows.weights.pad(chosen, length)
        value = found.loss(reduction)(targets, logits, sample_weight=weights)
        expected = [
            np.log(np.sum(np.exp(logits[row, at + 1]))) - logits[row, at + 1, target]
            for row, tags in enumerate(([0, 2, 3, 3, 1], [0, 2, 3, 1]))
            for at, target in enumerate(tags)
        ]
        assert float(value) == pytest.approx(reduce(expected), rel=1e-5)
    with pytest.raises(ValueError, match="allowed are sum, mean"):
        found.loss("none")
    assert found.loss("mean").get_config() == {"name": "word_mean"}


def test_perfect_logits_give_perfect_scores_over_split_sentences():
    words, tags = "the movie is very good " * 4, "B-A I-A O O B-B " * 4
    data, found = [sentence(f"{words}book", f"{tags}O")], task()
    rows = found.featurize(data, common.tokenizer(), 8)
    assert len(rows) == 4
    # Other pieces than the first of a word have the number -1, and any tag.
    right = np.array([found.labels.index(tag) for tag in data[0].tags])
    outputs = [np.eye(4)[right[numbers]] for numbers in rows.notes["word"]]
    answers = found.decode(outputs, rows, data)
    assert answers[0].tags == data[0].tags
    assert found.score(answers, data)["f1"] == 100


def test_words_that_tokenize_to_nothing_are_answered():
    data = [sentence([EMPTY, "movie", EMPTY], "O I-A O")]
    found = task()
    (answer,) = predict(found, data)
    assert answer.tags[0] == answer.tags[2] == "O"
    assert answer.probabilities[0] == 0
    found = task(main_metric="accuracy", train=[sentence("a a b", "N N V")])
    (answer,) = predict(found, [sentence([EMPTY], "V")])
    assert answer.tags == ("N",)


def test_tags_that_training_lacks_count_as_wrong():
    unknown = [sentence("the book", "B-A B-C")]
    assert task().score(predict(task(), unknown), unknown)["recall"] < 100
    with pytest.raises(ValueError, match="nothing to learn"):
        task(train=[sentence("a b", "O O")])


@pytest.mark.parametrize("tag", ["movie", "-"])
def test_only_span_tags_are_scored_as_spans(tag):
    wrong = [sentence("the movie", f"O {tag}", name="line 7")]
    message = rf"line 7 has the tag '{tag}' .*--task=pos"
    with pytest.raises(ValueError, match=message):
        task(train=wrong)
    with pytest.raises(ValueError, match=message):
        task().featurize(wrong, common.tokenizer(), 16)
    task(train=wrong, main_metric="accuracy")


def test_baseline_is_the_most_frequent_tag_of_each_word():
    found = task(main_metric="accuracy", train=[sentence("a b a a", "X Y Y Y")])
    train = [sentence("a b a a c", "X Y Y Y X")]
    scores = found.baseline(train, [sentence("a d", "Y X")])
    assert scores["accuracy"] == 50
    assert set(scores) == {"accuracy"}
    # A score of 0 is a failure.
    assert task().failure(None, {"f1": 0.0}, {"f1": 9.0}) == "f1 is 0"
    assert task().failure(None, {"f1": 1.0}, {"f1": 9.0}) == ""


def test_predictions_are_written_as_columns(tmp_path):
    answers = [TaggedWords(("B-A", "O"), np.ones(2)), TaggedWords(("O",), np.ones(1))]
    data = [sentence("a b", "O B-B"), sentence("c")]
    task().write(answers, data, str(tmp_path / "predictions.tsv"))
    text = (tmp_path / "predictions.conll").read_text()
    assert text == "a\tO\tB-A\nb\tB-B\tO\n\nc\tO\n\n"


def test_served_tags_are_those_of_python():
    found = task()
    random = np.random.default_rng(3)
    choice = ["the", "xyz", "is", EMPTY, "good", "q" * 12, "caf\u00e9", "\U0001f600"]
    sizes = random.integers(1, 30, 9)
    sentences = [sentence(list(random.choice(choice, size))) for size in sizes]
    model = found.build_model(common.encoder(layers=1))
    # Larger weights; otherwise all predictions are equal.
    model.set_weights([8 * weight for weight in model.get_weights()])
    rows = found.featurize(sentences, common.tokenizer(), 12)
    answers = found.decode(Outputs(model, 4)(rows), rows, sentences)
    assert len(rows) > len(sentences)
    assert len({tag for answer in answers for tag in answer.tags}) > 1
    # Eagerly: tests/serving has the SavedModel.
    module = ServingModule(model, found, common.tokenizer(), 12)
    texts = [" ".join(s.words) for s in sentences] + ["", " \t"]
    served = module.answer(text=tf.constant(texts))
    nothing = module.answer(text=tf.constant([], tf.string))
    assert {len(tensor) for tensor in nothing.values()} == {0}
    counts = served["num_words"].numpy().tolist()
    assert counts == [len(s.words) for s in sentences] + [0, 0]
    for row, (example, answer) in enumerate(zip(sentences, answers, strict=True)):
        size = counts[row]
        words = [word.decode() for word in served["words"][row, :size].numpy()]
        tags = [tag.decode() for tag in served["tags"][row].numpy()]
        assert tuple(words) == example.words
        assert tuple(tags[:size]) == answer.tags
        assert not any(tags[size:])
        shares = served["probabilities"][row, :size]
        np.testing.assert_allclose(shares, answer.probabilities, atol=1e-5)
    # The predictor leaves the padding out.
    module.text_signature = lambda: module.answer
    read = Predictor(module)([{"text": text} for text in texts])
    assert [row["tags"] for row in read[:9]] == [list(a.tags) for a in answers]


@pytest.mark.parametrize("metric", ["f1", "accuracy"])
def test_a_resample_of_sentences_is_scored_as_a_dataset(metric):
    random = np.random.default_rng(1)
    names = ["O", "B-A", "I-A", "B-B"]
    data, answers = [], []
    for length in random.integers(1, 9, 40):
        tags = random.choice(names, length)
        given = np.where(random.random(length) < 0.7, tags, "O")
        data.append(sentence("w " * (length - 1) + "w", " ".join(tags)))
        answers.append(TaggedWords(tuple(given), np.ones(length)))
    made = task(train=data, main_metric=metric)
    rows = random.integers(0, 40, 40)
    expected = made.score([answers[row] for row in rows], [data[row] for row in rows])
    assert made.scorer(answers, data)(rows) == pytest.approx(expected)
    # tests/tasks/test_text.py has the bounds of the intervals.
    majority = made.scorer(made.majority(data, data), data)
    intervals, above = metrics.intervals(made.scorer(answers, data), majority, 40)
    assert intervals[metric][0] < expected[metric] < intervals[metric][1]
    assert intervals.keys() == above.keys() == expected.keys()


def test_scores_by_type_and_by_tag():
    data = [
        sentence("a b c d e f", "B-X I-X O B-Y B-X O"),
        sentence("a b c d", "B-Y O B-X I-X"),
    ]
    given = [["B-X", "I-X", "B-Y", "B-Y", "O", "O"], ["B-X", "O", "B-X", "O"]]
    answers = [TaggedWords(tuple(tags), np.full(len(tags), 0.9)) for tags in given]
    wanted = [example.tags for example in data]
    found = task(train=data).details_of(answers, data)
    for kind in "XY":
        # One type alone: all other tags become O.
        alone = [
            [[t if t.endswith(kind) else "O" for t in tags] for tags in each]
            for each in (wanted, given)
        ]
        row = dict(found["classes"][kind])
        assert row.pop("support") == {"X": 3, "Y": 2}[kind]
        assert row == common.span_scores(*alone)
    flat = [[tag for tags in each for tag in tags] for each in (wanted, given)]
    right = np.mean([a == b for a, b in zip(*flat, strict=True)])
    assert found["calibration_error"] == pytest.approx(abs(0.9 - right))
    by_tag = task(train=data, main_metric="accuracy").details_of(answers, data)
    names = sorted(set(flat[0]))
    options = {"labels": names, "zero_division": 0}
    expected = sklearn.metrics.precision_recall_fscore_support(*flat, **options)
    columns = ("precision", "recall", "f1", "support")
    rows = [[by_tag["classes"][name][c] for c in columns] for name in names]
    np.testing.assert_allclose(rows, np.transpose(expected))
