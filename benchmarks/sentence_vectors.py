"""Spearman correlation of cosine similarity with human similarity, by layer.

    python benchmarks/sentence_vectors.py --data=glue/STS-B --model=mini

Reads ``train.tsv`` and ``dev.tsv``, with the columns sentence1, sentence2 and score.
Whitening, to 128 dimensions, is fitted on the training sentences. TF-IDF is fitted on
them too.
"""

from pathlib import Path

import harness
import numpy as np
from scipy.stats import spearmanr
from sklearn.decomposition import PCA
from sklearn.feature_extraction.text import TfidfVectorizer


def _pairs(path):
    lines = [line.split("\t") for line in path.read_text("utf-8").splitlines()]
    places = [lines[0].index(name) for name in ("sentence1", "sentence2", "score")]
    rows = [[line[place] for place in places] for line in lines[1:]]
    first, second, scores = zip(*rows, strict=True)
    return list(first), list(second), np.array(scores, float)


def _correlation(vectors, pairs):
    """Returns 100 times Spearman's correlation; ``vectors`` maps texts to [N, D]."""
    first, second = (np.asarray(vectors(texts)) for texts in pairs[:2])
    norms = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    cosines = (first * second).sum(axis=1) / np.maximum(norms, 1e-12)
    return 100 * spearmanr(cosines, pairs[2]).statistic


def main(data: Path, model: str, output: Path | None) -> None:
    """Prints and writes the correlations of all layers and poolings."""
    import electra_tf as et

    encoder = et.load(model)
    train, dev = _pairs(data / "train.tsv"), _pairs(data / "dev.tsv")
    texts = [*train[0], *train[1]]
    tfidf = TfidfVectorizer().fit(texts)
    sides = {"TF-IDF": lambda texts: tfidf.transform(texts).toarray()}
    for pooling in ("cls", "mean"):
        for layer in (*range(encoder.encoder.num_layers + 1), None):
            if (pooling, layer) == ("cls", 0):
                # The same vector for all texts.
                continue

            def encode(texts, pooling=pooling, layer=layer):
                return encoder.encode(texts, pooling, layer)

            whitening = PCA(128, whiten=True).fit(encode(texts))
            name = f"{pooling}, {'all layers' if layer is None else f'layer {layer}'}"
            sides[name] = encode
            sides[f"{name}, whitened"] = lambda texts, encode=encode, pca=whitening: (
                pca.transform(encode(texts))
            )
    rows = [
        {"what": name, "unit": f"Spearman, {split}", "ours": _correlation(side, pairs)}
        for name, side in sides.items()
        for split, pairs in (("train", train), ("dev", dev))
    ]
    harness.report("sentence_vectors", rows, output)


if __name__ == "__main__":
    made = harness.parser(__doc__)
    made.add_argument("--data", type=Path, required=True, help="folder of tables")
    made.add_argument("--model", default="mini")
    made.add_argument("--output", type=Path, help="JSON file to write")
    harness.run(main, made)
