"""Flags of predict, evaluate, inspect, score, analyze, convert, doctor and compare."""

import dataclasses
import os
from typing import Any, ClassVar, Literal

from electra_tf.config.fields import CASING, MAX_SEED, Group, field, list_field, require

_FINE_TUNED = "Folder of a fine-tuning run, or a SavedModel."
_PRETRAINED = "Folder of a pretraining run or of an import; or mini."


@dataclasses.dataclass(frozen=True, kw_only=True)
class PredictConfig(Group):
    r"""Predicts texts or tables with a fine-tuned model, without a server.

    Examples:
      python -m electra_tf predict --model=runs/cola "The book was written by John."
      python -m electra_tf predict --model=runs/squad2 --context="It rained." "Why?"
      python -m electra_tf predict --model=runs/topics --input=mails.csv --text=body \
          --output=answered.csv

    Writes one JSON object per text to standard output. The columns of --input are kept;
    predictions of the same name get the prefix "predicted_".
    """

    model: str | None = field(_FINE_TUNED, required=True)
    text_pair: str | None = field("Second text of every pair.")
    context: str | None = field("Paragraph; the texts are questions about it.")
    input: str | None = field("Table to predict: .csv, .tsv or .jsonl, also with .gz.")
    output: str | None = field(
        "Table to write, as --input; default: JSON lines on stdout.", only_with="input"
    )
    text: tuple[str, ...] = list_field(
        "Columns: text; text, text_pair; or question, context; default: the run's.",
        only_with="input",
    )
    label_separator: str | None = field(
        "Separator of labels in one cell; default: as in the run, or |."
    )
    batch_size: int = field("Texts per batch.", 32, min=1)
    overwrite: bool = field("Replace an existing table.", False, only_with="output")


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluateConfig(Group):
    r"""Scores a fine-tuned model on labeled data.

    Examples:
      python -m electra_tf evaluate --model=runs/topics --input=dev.csv --text=body \
          --label=topic
      python -m electra_tf evaluate --model=runs/ner --input=test.conll

    Prints the metrics of the task, as fine-tuning does for --eval.
    """

    model: str | None = field(
        "Folder of a finished fine-tuning run, or a saved text model.", required=True
    )
    input: str | None = field(
        "As --eval of fine-tuning: table, .conll(u), SQuAD or GLUE.", required=True
    )
    text: tuple[str, ...] = list_field(
        "Columns with the texts; default, also below: those of the run."
    )
    label: tuple[str, ...] = list_field("Columns with the labels.")
    label_separator: str | None = field("Separator of labels in one cell.")
    word_column: str | None = field("Column of the words of a tagging task.")
    tag_column: str | None = field("Column of the tags.")
    batch_size: int = field("Texts per batch.", 32, min=1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class InspectConfig(Group):
    """Shows the predictions of a pretrained discriminator and generator on a text.

    Examples:
      python -m electra_tf inspect --model=runs/tiny "the chef ate the meal"
      python -m electra_tf inspect --model=runs/tiny --corrupt "the chef ate a meal"
      python -m electra_tf inspect --model=runs/tiny --fill "the chef [MASK] the meal"

    Prints the probability that each token was replaced, or with --fill the generator's
    tokens for each [MASK].
    """

    model: str | None = field(_PRETRAINED, required=True)
    corrupt: bool = field("The generator replaces tokens first.", False)
    fill: bool = field("Fill [MASK] with the generator.", False, only_with="!corrupt")
    mask_rate: float | None = field(
        "Mask rate; default: pretraining's last.",
        above=0,
        max=1,
        only_with="corrupt",
    )
    seed: int = field("Seed of samples.", 0, min=0, max=MAX_SEED, only_with="corrupt")
    top: int = field("Tokens per mask.", 5, min=1, only_with="fill")
    html: str | None = field("Also write this HTML page.")
    overwrite: bool = field("Replace an existing file.", False)
    json: bool = field("Print one JSON object per text.", False)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScoreConfig(Group):
    r"""Scores sentences with a pretrained model: minimal pairs, or n-best lists.

    Examples:
      # Accuracy on minimal pairs in BLiMP's format.
      python -m electra_tf score --model=runs/small --data=blimp/ --limit=100

      # Best hypothesis of each n-best list.
      python -m electra_tf score --model=runs/small --input=lists.jsonl \
          --output=best.jsonl

    A line of --data has sentence_good, sentence_bad, UID and field. Prints the accuracy
    by paradigm and by field, with 95 % confidence intervals.

    A line of --input is {"id": ..., "hypotheses": [{"text": ..., "score": ...}, ...],
    "reference": ...}. First-pass scores (all or none) are log-probabilities; the
    reference is optional. The score of a hypothesis is the first-pass score plus the
    weight times the model's score. Without --weight, the weight is tuned for the lowest
    word error rate, which is reported on lists held out from tuning.
    """

    # Removed flags of earlier versions with their defaults.
    REMOVED: ClassVar[dict[str, Any]] = dict.fromkeys((*CASING, "vocab_file"))

    model: str | None = field(_PRETRAINED, required=True)
    data: tuple[str, ...] = list_field(
        "Minimal pairs: JSON lines, or folders of them.", only_with="!input,by!=worst"
    )
    input: str | None = field("N-best lists: JSON lines.", only_with="output")
    output: str | None = field(
        "JSON lines to write: the best of each list.", only_with="input"
    )
    report: str | None = field("Also write the numbers to this file, as JSON.")
    overwrite: bool = field("Replace existing files.", False)
    method: Literal["auto", "detection", "energy", "masked_lm"] = field(
        "detection: log P(original) of the discriminator; energy: negative "
        "energies of Electric; masked_lm: log-probabilities of the generator or masked "
        "LM, one pass per token; auto: by the objective of the run.",
        "auto",
    )
    by: Literal["sum", "mean", "worst"] = field(
        "Aggregate of the token scores: sum, mean or, for --input, the minimum.", "sum"
    )
    limit: int | None = field("Pairs per file; default: all.", min=1, only_with="data")
    weight: float | None = field(
        "Weight of the model's score; default: tuned.", min=0, only_with="input"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        paths = [path for path in (self.input, self.output, self.report) if path]
        require(
            len({*map(os.path.realpath, paths)}) == len(paths),
            "--input, --output and --report must be different files.",
        )


# Parts of an analysis, in the order of the report.
PARTS = {
    "calibration": "P(replaced) against the fraction of replaced tokens, on text "
    "corrupted by its own generator, or else by token frequency",
    "errors": "detection of wrong words in --errors",
    "bias": "P(replaced) of original tokens in --tagged by part of speech, frequency "
    "and piece, with the generator's accuracy",
    "representations": "layers and linear probes on --tagged, also of masked LMs and "
    "Electric",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class AnalyzeConfig(Group):
    r"""Analyzes a discriminator: calibration, real errors, bias, layers, with figures.

    Examples:
      python -m electra_tf analyze --model=runs/small --output=report
      python -m electra_tf analyze --model=imported --output=report \
          --text=my_text/ --only=calibration

    Trains only linear probes. Writes report.html, which works offline, and report.json.
    Without data, small samples show how the parts look. A part without suitable data is
    skipped with a note. Needs the extra `analysis`.
    """

    model: str | None = field(_PRETRAINED, required=True)
    output: str | None = field("Folder to write the report to.", required=True)
    overwrite: bool = field("Replace an existing report.", False)
    only: tuple[str, ...] = list_field("Parts; default: all with data.", choices=PARTS)
    text: tuple[str, ...] = list_field(
        "Plain text: files, folders, or installed; default: the held-out text."
    )
    limit: int = field("Maximum rows of text.", 1_000, min=2)
    errors: tuple[str, ...] = list_field(
        "Sentences with marked errors, in the format M2."
    )
    tagged: tuple[str, ...] = list_field(
        "Sentences with parts of speech: CoNLL-U, or columns of words and tags."
    )
    sentences: int = field("Maximum sentences per file.", 300, min=4)
    seed: int = field("Seed of corruptions and splits.", 0, min=0, max=MAX_SEED)
    batch_size: int = field("Rows per batch.", 32, min=1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConvertConfig(Group):
    r"""Converts weights from and to other libraries.

    Examples:
      python -m electra_tf convert --from=disc_dir --generator=gen_dir --to=imported
      python -m electra_tf convert --from=runs/mine --to=hf_dir --format=hugging_face

    A variable that is missing, unknown or of another shape is an error.
    """

    source: str | None = field(
        "A folder of transformers or owner/name on its hub, a TensorFlow 1 "
        "checkpoint, a preset of keras-hub, a finished run or an imported folder.",
        flag="from",
        required=True,
    )
    to: str | None = field("Folder to write.", required=True)
    format: Literal["electra_tf", "google_tf1", "keras_hub", "hugging_face"] = field(
        "Format to write.", "electra_tf"
    )
    generator: str | None = field(
        "The generator's folder (hugging_face).", only_with="only!=discriminator"
    )
    only: Literal["discriminator", "generator"] | None = field(
        "Leave the other tower out. For a fine-tuned model, or an objective other than "
        "replaced token detection, discriminator is the encoder without its head."
    )
    pair: bool | None = field(
        "Whether a fine-tuned Hugging Face model reads pairs. Default: as exported."
    )
    num_heads: int | None = field(
        "Attention heads of the discriminator, or of a lone generator (google_tf1). "
        "Default: config file, or hidden size // 64.",
        min=1,
    )
    vocab_file: str | None = field("Vocabulary file; default: the source's.")
    trained_length: int | None = field(
        "Trained positions; fine-tuning warns about longer rows. Default: the "
        "source's, or all.",
        min=1,
        only_with="format=electra_tf|hugging_face",
    )
    lower_case: bool | None = field("Lower-case text; default: the source's.")
    strip_accents: bool | None = field("Strip accents; default: the source's.")
    float16: bool = field(
        "Store 16-bit weights.", False, only_with="format=electra_tf|hugging_face"
    )
    overwrite: bool = field("Replace an earlier conversion.", False)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DoctorConfig(Group):
    """Checks a checkpoint for known problems and suggests remedies.

    Examples:
      python -m electra_tf doctor --model=runs/tiny
      python -m electra_tf doctor --model=hf/discriminator --generator=hf/generator

    Does not modify files. Exit codes: 0 no problem (warnings do not count), 1 problem.
    """

    model: str | None = field(
        "The folder of a pretraining run or an import, a Hugging Face folder, a "
        "checkpoint of Google's TensorFlow 1 code, or a keras-hub preset.",
        required=True,
    )
    generator: str | None = field("Folder of the generator, if it is another one.")
    json: bool = field("One JSON object per line.", False)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompareConfig(Group):
    r"""Pretrains systems at equal FLOPs, probes their encoders, and tests differences.

    Examples:
      # The paper's Table 5 on your text, two runs at a time.
      python -m electra_tf compare --flagfile=configs/compare/table5.cfg --workers=2 \
          --data_root=data --pretrain=--corpus=data/text.txt

      # Your own comparison.
      python -m electra_tf compare --output_dir=runs/mine --budget=electra:2000 \
          --pretrain=--flagfile=configs/tiny.cfg --system=electra: \
          --system='mlm: --objective=mlm --mask_rule=bert' \
          --probe='tiny: --flagfile=configs/tasks/tiny.cfg'

    Writes table.md, results.jsonl (one line per finished run and probe),
    ladder.json (settings), data/ and runs/ to --output_dir. The same command resumes an
    interrupted comparison. Exit codes: 0 done, 1 error or failed run, 75 stopped.
    """

    pretrain: tuple[str, ...] = list_field(
        "Flags of electra-tf pretrain for all systems; later ones win.", repeated=True
    )
    system: tuple[str, ...] = list_field(
        "One system: 'NAME: FLAGS' of electra-tf pretrain.", repeated=True
    )
    probe: tuple[str, ...] = list_field(
        "A task for encoders: 'NAME: FLAGS' of electra-tf finetune.", repeated=True
    )
    pairs: tuple[str, ...] = list_field(
        "A probe without training: 'NAME: FLAGS' of electra-tf score, such as "
        "'blimp: --data={data}/blimp'.",
        repeated=True,
    )
    data_root: str = field(
        "Folder that replaces {data} in --pretrain, --system, --probe, --pairs.", "data"
    )
    output_dir: str = field("Output folder.", "runs/compare")
    budget: str = field("SYSTEM:STEPS; every run gets their FLOPs.", "electra:1000")
    equal: Literal["flops", "steps"] = field(
        "Equal for all runs: FLOPs, or steps as in the paper's Figure 3, left.", "flops"
    )
    flops_rule: Literal["matmul", "original"] = field(
        "Rule for counting FLOPs. matmul: matrix products, backward twice forward; "
        "original: as the paper's script, look-ups as dense products.",
        "matmul",
    )
    seeds: int = field("Pretraining runs per system: seed, seed + 1...", 5, min=1)
    seed: int = field("Seed of the first run of every system.", 0, min=0, max=MAX_SEED)
    probe_seeds: int = field("Runs per encoder and probe, averaged.", 1, min=1)
    reference: str = field("System that all others are tested against.", "electra")
    threshold_auc: float = field(
        "Minimum held-out AUC over replaceable tokens to rank a discriminator; 0: off.",
        0.65,
        min=0,
        below=1,
    )
    threshold_nats: float = field(
        "Minimum nats below the best trivial predictor to rank a masked LM.", 0.3, min=0
    )
    workers: int = field("Parallel processes, which share the cores.", 1, min=1)
    dry_run: bool = field("Build data, print steps, FLOPs, parameters.", False)
