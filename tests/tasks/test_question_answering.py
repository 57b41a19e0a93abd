import collections
import dataclasses
import json

import numpy as np
import pytest
import tensorflow as tf

from electra_tf.serving.export import ServingModule
from electra_tf.tasks.batching import Outputs
from electra_tf.tasks.question_answering import Answer, QuestionAnswering
from electra_tf.tasks.span_head import best_span
from electra_tf.tasks.squad import Question
from tests.tasks import common

TOKENS = common.tokenizer().vocabulary.tokens
ODD = (
    "the caf\u00e9 is e\u0301 g\u200bood\ufe0f, \uff21 \U0001f600 movie\u00a0was",
    "not \u6771\u4eac bad\r\nsong \u0130n a very  poor book!",
    "",
)


def task(*, v2=True, **kwargs):
    options = {"name": "squad2" if v2 else "squad1", "max_query_length": 4}
    options |= {"unanswerable": v2, "answerability": v2, "doc_stride": 3, **kwargs}
    return QuestionAnswering(source=None, **options)


def question(context, answer=None, *, name="q", text="is the movie good ?"):
    answers = () if answer is None else ((answer, context.index(answer)),)
    return Question(name, text, context, answers)


def test_task_json_has_the_options_of_subclasses():
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Own(QuestionAnswering):
        extra: int = 3

    about = Own(name="mine", source=None, extra=7).to_json()
    assert (about["extra"], about["doc_stride"]) == (7, 128)
    assert not {"name", "source", "epochs"} & about.keys()


def pieces(row):
    return [TOKENS[index] for index in row]


def bert_windows(length, room, stride):
    """Starts and lengths of windows, written from BERT's loop."""
    found, start = [], 0
    while True:
        size = min(length - start, room)
        found.append((start, size))
        if start + size == length:
            return found
        start += min(size, stride)


@pytest.mark.parametrize(
    ("stride", "length", "count"),
    # A last window that is shorter by over 100 loses by its length alone.
    [*((stride, 12, 18) for stride in (1, 3, 5, 9)), (128, 270, 400)],
)
def test_windows_and_maximum_context_are_those_of_bert(stride, length, count):
    query, context = 3, "a " * (count - 1) + "b"
    data = [question(context, text=text) for text in ("x y z x y z", "x")]
    made = task(max_query_length=query, doc_stride=stride)
    rows = made.featurize(data, common.tokenizer(), length)
    for number, room in enumerate((length - 6, length - 4)):
        expected = bert_windows(count, room, stride)
        mine = [i for i, owner in enumerate(rows.example) if owner == number]
        # Every word piece is a letter and a space.
        token = [rows.notes["char_start"][row] // 2 for row in mine]
        assert [(row[row >= 0].min(), (row >= 0).sum()) for row in token] == expected
        for position in range(count):
            scores = [
                min(position - start, start + size - 1 - position) + 0.01 * size
                if start <= position < start + size
                else -1
                for start, size in expected
            ]
            marked = [
                rows.notes["max_context"][row][at == position].sum()
                for row, at in zip(mine, token, strict=True)
            ]
            assert sum(marked) == 1
            assert np.argmax(marked) == np.argmax(scores)


def test_a_row_is_question_separator_paragraph_separator():
    data = [question("g\u200bood  movie"), question("")]
    rows = task().featurize(data, common.tokenizer(), 16)
    # The fifth piece of the question is truncated.
    question_part = ["[CLS]", "is", "the", "movie", "good", "[SEP]"]
    row, nothing = map(pieces, rows.inputs["input_ids"])
    assert row == [*question_part, "good", "movie", "[SEP]"]
    assert nothing == [*question_part, "[SEP]"]
    assert rows.inputs["segment_ids"][0].tolist() == [0] * 6 + [1] * 3
    assert rows.notes["char_start"][0].tolist() == [-1] * 6 + [0, 7, -1]
    assert rows.notes["char_end"][0].tolist() == [-1] * 6 + [5, 12, -1]
    with pytest.raises(ValueError, match=r"4 pieces \(--max_query_length\).*no room"):
        task().featurize([question("a")], common.tokenizer(), 7)


def test_training_windows_without_the_answer_point_at_cls_and_stay_answerable():
    """Pitfall 38."""
    context = "a b c d e f g h i"
    data = [question(context, "g h"), question(context)]
    rows = task().featurize(data, common.tokenizer(), 11, training=True)
    assert len(rows) == 6
    starts, ends = rows.targets["start_logits"], rows.targets["end_logits"]
    for row in range(3):
        shown = pieces(rows.inputs["input_ids"][row])
        if "g" in shown and "h" in shown:
            assert shown[starts[row] : ends[row] + 1] == ["g", "h"]
        else:
            assert starts[row] == ends[row] == 0
    assert sorted(starts[:3] > 0) == [False, False, True]
    assert not starts[3:].any()
    assert rows.targets["null_logits"].tolist() == [0, 0, 0, 1, 1, 1]
    np.testing.assert_array_equal(rows.inputs["start_positions"], starts)
    off = task(v2=False).featurize(data[:1], common.tokenizer(), 11, training=True)
    assert set(off.targets) == {"start_logits", "end_logits"}


def test_half_an_answer_is_none_and_an_answer_without_pieces_is_left_out():
    # Such questions give a batch without rows, with the usual columns.
    nothing = [question("a \u200d b", "\u200d")]
    none = task().featurize(nothing, common.tokenizer(), 9, training=True)
    data = [question("a b c d e f g h", "d e f"), *nothing]
    rows = task().featurize(data, common.tokenizer(), 9, training=True)
    # Windows of two pieces cannot contain an answer of three.
    assert not rows.targets["start_logits"].any()
    assert set(rows.example) == {0}
    assert len(none) == len(none.lengths) == 0
    assert {*none.inputs, *none.targets} == {*rows.inputs, *rows.targets}
    halves = [question("xy z", "x"), question("xy z", "y")]
    rows = task().featurize(halves, common.tokenizer(), 20, training=True)
    for row, piece in enumerate(("x", "##y")):
        start, end = (rows.targets[f"{x}_logits"][row] for x in ("start", "end"))
        assert pieces(rows.inputs["input_ids"][row])[start : end + 1] == [piece]


def test_halves_of_surrogate_pairs_keep_their_place():
    data = [question("a \ud83d book", "book", text="is \ud83d it ?")]
    rows = task().featurize(data, common.tokenizer(), 16)
    whole = [question("a \ufffd book", "book", text="is \ufffd it ?")]
    expected = task().featurize(whole, common.tokenizer(), 16).inputs["input_ids"][0]
    assert rows.inputs["input_ids"][0].tolist() == expected.tolist()
    assert rows.notes["char_start"][0].max() == data[0].context.index("book")


def beam(starts, ends, scores, **more):
    return {
        "start_index": np.array(starts),
        "end_index": np.array(ends),
        "start_log_probs": np.array(scores, float),
        "end_log_probs": np.zeros(np.shape(ends)),
        **more,
    }


@pytest.mark.parametrize("length", [16, 64])
def test_perfect_logits_give_perfect_scores(length):
    """Pitfall 38."""
    context = "the caf\u00e9 is  very good , the \uff21book\u00a0was not ( bad ) !"
    texts = ("caf\u00e9", "very good , the", "\uff21book", "was", "bad", None)
    data = [question(context, text) for text in texts]
    found, tokenizer = task(), common.tokenizer()
    rows = found.featurize(data, tokenizer, length)
    targets = found.featurize(data, tokenizer, length, training=True)
    starts, ends = targets.targets["start_logits"], targets.targets["end_logits"]
    outputs = [
        beam([start, 0], [[end], [0]], [0, -9], null_logits=-5.0 if start else 5.0)
        for start, end in zip(starts, ends, strict=True)
    ]
    answers = found.decode(outputs, rows, data)
    scores = found.score(answers, data)
    assert scores["exact_match"] == scores["f1"] == 100
    assert [answer.text for answer in answers[:5]] == [e.texts[0] for e in data[:5]]
    # The minimum over the windows: one window with the answer suffices.
    assert [answer.null_odds for answer in answers] == [-5] * 5 + [5]


def best(rows, **limits):
    """Returns characters and score of the best span of one question's windows."""
    outputs, notes = (
        {name: np.stack([column[name] for column in columns]) for name in columns[0]}
        for columns in zip(*rows, strict=True)
    )
    notes["example"] = np.zeros(len(rows), np.int64)
    served = best_span(outputs, notes, **limits)
    return [served[name].numpy().item() for name in ("start", "end", "score")]


def test_the_best_span_that_is_allowed():
    notes = {
        "char_start": np.array([-1, 0, 3, 6, 9, -1]),
        "char_end": np.array([-1, 2, 5, 8, 11, -1]),
        "max_context": np.array([0, 1, 1, 0, 1, 0]),
    }
    # Best first: [CLS], end before start, less context, too long, [SEP], NaN; then
    # valid spans.
    output = beam(
        [0, 2, 3, 1, 5, 1, 2, 4],
        [[0], [1], [3], [4], [5], [1], [2], [4]],
        [0, -1, -2, -3, -4, np.nan, -5, -6],
    )
    assert best([(output, notes)], max_answer_length=3) == [3, 5, np.exp(-5)]
    assert best([(output, notes)], max_answer_length=9) == [0, 11, np.exp(-3)]
    assert best([(beam([0], [[0]], [0]), notes)], max_answer_length=9) == [-1, -1, 0]
    # The best of all windows wins.
    rows = []
    for place, score in ((0, -2), (3, -1)):
        columns = {"char_start": place, "char_end": place + 2, "max_context": 1}
        notes = {name: np.array([-1, value]) for name, value in columns.items()}
        rows.append((beam([1], [[1]], [score]), notes))
    assert best(rows, max_answer_length=9) == [3, 5, np.exp(-1)]
    # Equal probabilities: the first window.
    rows[0][0]["start_log_probs"] += 1
    assert best(rows, max_answer_length=9)[:2] == [0, 2]


def test_row_numbers_do_not_overflow():
    # 1,500 windows per question: row ids of the original are 1000 * question + window.
    context = "a " * 1502
    rows = task(doc_stride=1).featurize([question(context)] * 2, common.tokenizer(), 10)
    assert rows.example.dtype == np.int64
    assert collections.Counter(rows.example.tolist()) == {0: 1500, 1: 1500}


def some_questions():
    contexts = [*ODD, "the movie is very good . " * 4, "a"]
    return [question(text, name=str(n)) for n, text in enumerate(contexts)]


@pytest.mark.parametrize("v2", [True, False])
def test_served_answers_are_those_of_python(v2):
    """Python predicts three rows at once, the served model all (pitfall 40)."""
    found = task(v2=v2, max_answer_length=5)
    data = [*some_questions(), question("a", text=" ")]
    rows = found.featurize(data, common.tokenizer(), 14)
    assert len(rows) > 2 * len(data)
    model = found.build_model(common.encoder(layers=1))
    # Larger weights; otherwise all spans are about equally probable.
    model.set_weights([3 * weight for weight in model.get_weights()])
    answers = found.decode(Outputs(model, 3)(rows), rows, data)
    # Eagerly: tests/serving has the SavedModel.
    module = ServingModule(model, found, common.tokenizer(), 14)
    texts = {
        "question": tf.constant([example.question for example in data]),
        "context": tf.constant([example.context for example in data]),
    }
    served = {name: value.numpy() for name, value in module.answer(**texts).items()}
    assert ("null_odds" in served) == v2
    for row, (example, answer) in enumerate(zip(data, answers, strict=True)):
        assert served["answer"][row].decode() == answer.text
        span = answer.start, answer.end
        assert (served["start"][row], served["end"][row]) == span
        assert answer.text == example.context[max(span[0], 0) : max(span[1], 0)]
        assert served["score"][row] == pytest.approx(answer.score, rel=1e-3)
        if v2:
            assert served["null_odds"][row] == pytest.approx(answer.null_odds, abs=1e-4)
            is_answerable = answer.null_odds <= found.null_threshold
            assert served["answerable"][row] == is_answerable
    nothing = module.answer(**{name: column[:0] for name, column in texts.items()})
    assert {len(tensor) for tensor in nothing.values()} == {0}
    assert (answers[2].text, answers[2].start) == ("", -1)
    assert len({answer.text for answer in answers}) > 3


def test_served_contexts_may_hold_invalid_bytes():
    texts = {"question": [b"is \xff it ?"], "context": [b"a \xff book"]}
    texts = {name: tf.constant(column) for name, column in texts.items()}
    inputs = task(v2=False).serving_inputs(common.tokenizer(), 16, **texts)
    assert inputs["context"].numpy()[0].decode() == "a \ufffd book"
    starts = inputs["char_start"].numpy()[0]
    assert starts[starts >= 0].tolist() == [0, 4]


def test_files_are_in_the_official_layouts(tmp_path):
    data = [question("ab cd", "ab", name="x"), question("ab cd", name="y")]
    answers = [Answer("ab", null_odds=-4.0), Answer("ab", null_odds=1.0)]
    task().write(answers, data, str(tmp_path / "predictions_dev.tsv"))
    read = {x.stem: json.loads(x.read_text("utf-8")) for x in tmp_path.iterdir()}
    assert read == {
        "predictions_dev": {"x": "ab", "y": "ab"},
        "null_odds_dev": {"x": -4.0, "y": 1.0},
    }


def test_baseline_and_failures():
    data = [question("ab cd", "ab"), question("ab cd")]
    found = task()
    baseline = found.baseline(data, data)
    assert baseline["exact_match"] == baseline["best_f1"] == 50
    assert "not better" in found.failure(None, baseline, baseline)
    assert found.failure(None, {"f1": 51.0}, baseline) == ""
    assert task(v2=False).baseline(data, data[:1]) == {"exact_match": 0, "f1": 0}
    with pytest.raises(ValueError, match="answerability must be on"):
        QuestionAnswering(name="x", source=None, unanswerable=True)


@pytest.mark.parametrize("v2", [True, False])
def test_a_resample_of_questions_is_scored_as_a_dataset(v2):
    random, texts = np.random.default_rng(1), ("good movie", "movie", "a book", "")
    data, answers = [], []
    for number in range(30):
        right = None if v2 and number % 3 == 0 else random.choice(texts[:3])
        data.append(question("a very good movie and a book", right, name=str(number)))
        text = str(random.choice(texts))
        answers.append(Answer(text, null_odds=float(random.normal(-2.75, 2))))
    made = task(v2=v2)
    rows = random.integers(0, 30, 30)
    expected = made.score([answers[row] for row in rows], [data[row] for row in rows])
    assert made.scorer(answers, data)(rows) == pytest.approx(expected)
