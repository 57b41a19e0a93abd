import json
import os
from pathlib import Path

import pytest

from electra_tf.tasks import Question, QuestionAnswering
from electra_tf.tasks.question_answering import Answer
from tests.tasks.common import span_scores
from tests.tasks.official_scores import PATH, SQUAD_FILES, THRESHOLD, file_answers

OFFICIAL = json.loads(PATH.read_text("utf-8"))
DATA = os.environ.get("ELECTRA_TF_DATA")


def ours(version, rows):
    is_v2 = version == "v2"
    options = {"unanswerable": is_v2, "answerability": is_v2}
    options["null_threshold"] = THRESHOLD
    task = QuestionAnswering(name="squad", source=None, **options)
    given = [Answer(text, null_odds=odds * is_v2) for _, text, odds, _ in rows]
    right = [tuple((text, 0) for text in texts) for *_, texts in rows]
    return task.score(given, [Question("", "", "", answers) for answers in right])


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_squad_scores_are_those_of_the_official_scripts(version):
    """Pitfall 38."""
    official = OFFICIAL[version]
    found = ours(version, official["rows"])
    assert found == pytest.approx(official["scores"], rel=1e-12)
    # Some rows are right, some wrong.
    assert all(5 < found[name] < 95 for name in ("exact_match", "f1"))


@pytest.mark.skipif(not DATA, reason="ELECTRA_TF_DATA is not set")
@pytest.mark.parametrize("name", SQUAD_FILES)
def test_squad_scores_of_real_files(name):
    found = ours(SQUAD_FILES[name], file_answers(Path(DATA) / "squad" / name))
    assert found == pytest.approx(OFFICIAL["files"][name], rel=1e-12)


@pytest.mark.parametrize("case", OFFICIAL["tagging"])
def test_span_scores_are_those_of_seqeval(case):
    labels = [row.split() for row in case["labels"]]
    found = [row.split() for row in case["predictions"]]
    assert span_scores(labels, found) == pytest.approx(case["scores"], rel=1e-12)
