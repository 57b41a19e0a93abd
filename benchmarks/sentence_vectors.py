"""Spearman correlation of cosine similarity with human similarity, by layer.

    python benchmarks/sentence_vectors.py --data=glue/STS-B --model=mini

Reads ``train.tsv`` and ``dev.tsv``, with the columns sentence1, sentence2 and score.
Whitening, to 128 dimensions, is fitted on the training sentences. TF-IDF is fitted on
them too.
"""

from pathlib import Path

import harness
from scipy.stats import spearmanr
from sklearn.decomposition import PCA
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.preprocessing import normalize

import electra_tf as et


def _correlation(vectors, table):
    """Returns 100 times Spearman's correlation; ``vectors`` maps texts to [N, D]."""
    columns = (table["sentence1"].tolist(), table["sentence2"].tolist())
    first, second = (normalize(vectors(texts)) for texts in columns)
    return 100 * spearmanr((first * second).sum(axis=1), table["score"]).statistic


def main() -> None:
    """Prints and writes the correlations of all layers and poolings."""
    parser = harness.parser(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of tables")
    parser.add_argument("--model", default="mini")
    given = parser.parse_args()
    encoder = et.load(given.model)
    train, dev = (harness.read_tsv(given.data / f"{s}.tsv") for s in ("train", "dev"))
    texts = [*train["sentence1"], *train["sentence2"]]
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
        {"what": name, "unit": f"Spearman, {split}", "ours": _correlation(side, table)}
        for name, side in sides.items()
        for split, table in (("train", train), ("dev", dev))
    ]
    harness.report("sentence_vectors", rows, given.output)


if __name__ == "__main__":
    main()
