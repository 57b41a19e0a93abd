import numpy as np

from electra_tf.analysis.inspector import Inspector
from electra_tf.folders.pretraining import SHIPPED, PretrainingFolder, named
from electra_tf.layers.encoder import TextEncoder

# Sentences with a wrong word and its index; written for this test.
WRONG = [
    ("the children are playing in the which .", 6),
    ("he went to the station by but .", 6),
    ("they were born in a small of .", 6),
    ("it is one of the largest cities is europe .", 7),
    ("the film was directed by and smith .", 5),
    ("i have never seen is before .", 4),
    ("the war ended in the same and .", 6),
    ("she was the first woman to the a degree .", 6),
    ("the university was founded in the october century .", 6),
]


def test_the_discriminator_suspects_words_that_do_not_belong():
    inspector, ranks = Inspector("mini", log=print), []
    for text, place in WRONG:
        found = inspector.verdicts(text)
        assert len(found.tokens) == len(text.split()) + 2, "a word piece a word"
        scores = np.array(found.probabilities[1:-1])
        ranks.append((scores < scores[place]).sum() / (len(scores) - 1))
    # Random probabilities have a mean rank of 0.5, with standard error 0.3 / sqrt(12).
    assert np.mean(ranks) > 0.75, ranks


def test_the_files_are_small_and_whole():
    folder = PretrainingFolder(named("mini"))
    assert folder.path == SHIPPED / "mini"
    assert sorted(path.name for path in folder.path.iterdir()) == [
        *("README.md", "config.json", "discriminator.safetensors"),
        *("generator.safetensors", "metrics.jsonl", "recipe.json", "vocab.txt"),
    ]
    assert sum(path.stat().st_size for path in folder.path.iterdir()) < 12e6
    encoder = folder.load("encoder", TextEncoder)
    assert all(np.isfinite(weight).all() for weight in encoder.get_weights())
    assert len(folder.vocabulary()) == encoder.embeddings.vocab_size


def test_a_folder_of_that_name_comes_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mini").mkdir()
    assert named("mini").resolve() == tmp_path / "mini"
    assert named("no_such").name == "no_such"
