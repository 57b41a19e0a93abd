"""Flags of predict, evaluate, inspect, score, analyze, convert, doctor and compare."""

import dataclasses
import os
import re
from typing import Any, ClassVar, Literal

from electra_tf.config.fields import MAX_SEED, Group, field, require

_FINE_TUNED = "Folder of a fine-tuning run, or a SavedModel."
_PRETRAINED = "Folder of a pretraining run or of an import; or mini."


@dataclasses.dataclass(frozen=True, kw_only=True)
class PredictConfig(Group):
    r"""Predicts with a fine-tuned model, without a server.

    Examples:
      python -m electra_tf predict --model=runs/cola "The book was written by John."
      python -m electra_tf predict --model=runs/rte "It rained." --text_pair="It was."
      python -m electra_tf predict --model=runs/cola < lines.txt
      python -m electra_tf predict --model=runs/rte --input=pairs.jsonl
      python -m electra_tf predict --model=runs/squad2 --context="It rained." "Why?"
      python -m electra_tf predict --model=runs/topics --input=mails.csv --text=body \
          --output=answered.csv

    Writes one JSON object per text to standard output. The columns of --input are kept;
    predictions of the same name get the prefix "predicted_".
    """

    model: str | None = field(None, _FINE_TUNED, required=True)
    text_pair: str | None = field(None, "Second text of every pair.")
    context: str | None = field(None, "Paragraph; the texts are questions about it.")
    input: str | None = field(
        None,
        "Table to predict: .csv, .tsv or .jsonl, also with .gz; its columns are kept.",
    )
    output: str | None = field(
        None,
        "Table to write: .csv, .tsv or .jsonl; default: JSON Lines on standard output.",
        only_with="input",
    )
    text: tuple[str, ...] = field(
        (),
        "Columns of --input: the text, text and text_pair, or question and context. "
        "Default: columns with these names.",
        only_with="input",
    )
    label_separator: str = field("|", "Separator of labels in one cell.")
    batch_size: int = field(32, "Texts per batch.", min=1)
    overwrite: bool = field(False, "Replace an existing --output.", only_with="output")


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluateConfig(Group):
    r"""Scores a fine-tuned model on labeled data.

    Examples:
      python -m electra_tf evaluate --model=runs/topics --input=more.csv
      python -m electra_tf evaluate --model=runs/topics --input=dev.csv --text=body \
          --label=topic
      python -m electra_tf evaluate --model=runs/ner --input=test.conll

    Prints the metrics of the task, as fine-tuning does for --eval.
    """

    model: str | None = field(
        None, "Folder of a finished fine-tuning run, or its model.keras.", required=True
    )
    input: str | None = field(
        None,
        "A file as for --eval of fine-tuning: a table, .conll, .conllu, SQuAD's JSON "
        "or a folder of a GLUE task.",
        required=True,
    )
    text: tuple[str, ...] = field(
        (), "Columns with the texts; default: as in the fine-tuning run, as below."
    )
    label: tuple[str, ...] = field((), "Columns with the labels.")
    label_separator: str | None = field(None, "Separator of labels in one cell.")
    word_column: str | None = field(None, "Column of the words of a tagging task.")
    tag_column: str | None = field(None, "Column of the tags.")
    batch_size: int = field(32, "Texts per batch.", min=1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class InspectConfig(Group):
    """Shows the predictions of a pretrained discriminator and generator on a text.

    Examples:
      python -m electra_tf inspect --model=runs/tiny "the chef ate the meal"
      python -m electra_tf inspect --model=runs/tiny --html=out.html < lines.txt
      python -m electra_tf inspect --model=runs/tiny --corrupt "the chef ate a meal"
      python -m electra_tf inspect --model=runs/tiny --fill "the chef [MASK] the meal"

    The first two print the probability that each token was replaced. --corrupt lets the
    generator replace tokens first. --fill prints the generator's tokens for each
    [MASK].
    """

    model: str | None = field(None, _PRETRAINED, required=True)
    corrupt: bool = field(False, "The generator replaces tokens first.")
    fill: bool = field(False, "Fill each [MASK] with the generator.")
    mask_rate: float | None = field(
        None,
        "Mask rate of --corrupt; default: as at the end of pretraining.",
        above=0,
        max=1,
        only_with="corrupt",
    )
    seed: int = field(0, "Seed of --corrupt.", min=0, max=MAX_SEED, only_with="corrupt")
    top: int = field(5, "Tokens per mask of --fill.", min=1, only_with="fill")
    html: str | None = field(None, "Also write this HTML page.")
    overwrite: bool = field(False, "Replace an existing file.")
    json: bool = field(False, "Print one JSON object per text.")

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            not (self.corrupt and self.fill),
            "--corrupt and --fill exclude each other: leave one of them out.",
        )


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
    "reference": ...}. The first-pass score is a log-probability and defaults to 0; the
    reference is optional. The score of a hypothesis is the first-pass score plus the
    weight times the model's score. Without --weight, the weight is tuned for the lowest
    word error rate, which is reported on lists held out from tuning.
    """

    # Removed flags of earlier versions with their defaults.
    REMOVED: ClassVar[dict[str, Any]] = {
        "lower_case": None,
        "strip_accents": None,
        "vocab_file": None,
    }

    model: str | None = field(None, _PRETRAINED, required=True)
    data: tuple[str, ...] = field(
        (), "Minimal pairs: JSON lines, or folders of .jsonl files."
    )
    input: str | None = field(None, "N-best lists: JSON lines.")
    output: str | None = field(
        None,
        "JSON lines to write: the best hypothesis of each list of --input.",
        only_with="input",
    )
    report: str | None = field(None, "Also write the numbers to this file, as JSON.")
    overwrite: bool = field(False, "Replace existing files.")
    method: Literal["auto", "detection", "energy", "masked_lm"] = field(
        "auto",
        "detection: log P(original) of the discriminator; energy: negative "
        "energies of Electric; masked_lm: log-probabilities of the generator or masked "
        "LM, one pass per token; auto: by the objective of the run.",
    )
    by: Literal["sum", "mean", "worst"] = field(
        "sum", "Aggregate of the token scores: sum, mean or, for --input, the minimum."
    )
    limit: int | None = field(
        None,
        "Pairs to read from each file of --data; default: all.",
        min=1,
        only_with="data",
    )
    weight: float | None = field(
        None,
        "Weight of the model's score; default: tuned on the references of --input.",
        min=0,
        only_with="input",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            not (self.data and self.input),
            "--data and --input exclude each other: minimal pairs, or n-best lists.",
        )
        require(
            not self.data or self.by != "worst",
            "--by=worst needs --input; minimal pairs are compared by sum or mean.",
        )
        require(
            self.input is None or self.output is not None,
            "--input needs --output, the file for the best hypotheses.",
        )
        paths = [path for path in (self.input, self.output, self.report) if path]
        require(
            len({*map(os.path.realpath, paths)}) == len(paths),
            "--input, --output and --report must be different files.",
        )


# Parts of an analysis, in the order of the report.
PARTS = ("calibration", "errors", "bias", "representations")


@dataclasses.dataclass(frozen=True, kw_only=True)
class AnalyzeConfig(Group):
    r"""Analyzes a pretrained discriminator and writes a report with figures.

    Examples:
      python -m electra_tf analyze --model=runs/small --output=report
      python -m electra_tf analyze --model=imported --output=report \
          --text=my_text/ --only=calibration

    Trains only linear probes. Writes report.html, which works offline, and report.json.
    Without data, small samples show how the parts look. A part without suitable data is
    skipped with a note. Needs the extra `analysis`.

    calibration: P(replaced) against the fraction of replaced tokens, on text corrupted
    by its own, a unigram and a uniform generator.
    errors: detection of wrong words in --errors.
    bias: P(replaced) of original tokens in --tagged by part of speech, frequency and
    piece, with the generator's accuracy.
    representations: layers and linear probes on --tagged, also of --encoders. It is
    the only part that supports masked LMs and Electric.
    """

    model: str | None = field(None, _PRETRAINED, required=True)
    output: str | None = field(None, "Folder to write the report to.", required=True)
    overwrite: bool = field(False, "Replace an existing report.")
    only: tuple[str, ...] = field(
        (), f"Parts: {', '.join(PARTS)}. Default: all parts with data."
    )
    text: tuple[str, ...] = field(
        (),
        "Files and folders of plain text, or installed; default: the run's held-out "
        "text.",
    )
    limit: int = field(1_000, "Maximum rows of text.", min=2)
    errors: tuple[str, ...] = field(
        (),
        "Sentences with marked errors: M2 (.m2); columns of words and labels (c: "
        "correct, i: incorrect); or BLiMP's minimal pairs (.jsonl, or a folder).",
    )
    tagged: tuple[str, ...] = field(
        (),
        "Sentences with parts of speech: CoNLL-U (UPOS), or columns of words and tags.",
    )
    encoders: tuple[str, ...] = field(
        (), "Folders of further encoders to compare with the model's."
    )
    sentences: int = field(300, "Maximum sentences per file.", min=4)
    seed: int = field(0, "Seed of corruptions and splits.", min=0, max=MAX_SEED)
    batch_size: int = field(32, "Rows per batch.", min=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        unknown = [name for name in self.only if name not in PARTS]
        require(
            not unknown,
            f"--only={','.join(unknown)} is unknown. Allowed are {', '.join(PARTS)}.",
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConvertConfig(Group):
    r"""Converts weights from and to other libraries.

    Examples:
      # Import a local folder, a checkpoint, or owner/name on the Hugging Face hub.
      python -m electra_tf convert --from=electra_small/ --to=imported
      python -m electra_tf convert --from=disc_dir --generator=gen_dir --to=imported

      # Fine-tune it, or continue pretraining on your own text.
      python -m electra_tf finetune --flagfile=configs/tasks/mrpc.cfg \
          --data_dir=glue/MRPC --encoder=imported/encoder.keras
      python -m electra_tf pretrain --flagfile=configs/small_plus_plus.cfg \
          --init_from=imported --corpus=my_domain/

      # Export for transformers (or TensorFlow 1, or keras-hub).
      python -m electra_tf convert --from=runs/mine --to=hf_dir --format=hugging_face

      # Export a fine-tuned model as ElectraForSequenceClassification, and import it.
      python -m electra_tf convert --from=runs/cola --to=hf_cola --format=hugging_face
      python -m electra_tf convert --from=hf_cola --to=runs/cola_again

      # Upload to the Hugging Face hub.
      python -m electra_tf convert --from=runs/cola --to=hf_cola --format=hugging_face \
          --push_to_hub=me/my-cola

      # Store float16 weights, half the size; every command reads them.
      python -m electra_tf convert --from=runs/mine --to=small --float16

    Model sizes are inferred from the weights. A variable that is missing, unknown or of
    another shape is an error.
    """

    source: str | None = field(
        None,
        "Source: a folder of transformers or owner/name on its hub, a TensorFlow "
        "1 checkpoint or its folder, a preset or backbone of keras-hub, a finished run "
        "or an imported folder.",
        flag="from",
        required=True,
    )
    to: str | None = field(None, "Folder to write.", required=True)
    format: Literal["electra_tf", "google_tf1", "keras_hub", "hugging_face"] = field(
        "electra_tf", "Format to write."
    )
    generator: str | None = field(
        None,
        "The generator's folder (hugging_face).",
        only_with="only!=discriminator",
    )
    only: Literal["discriminator", "generator"] | None = field(
        None,
        "Leave the other tower out. For a fine-tuned model, or an objective other than "
        "replaced token detection, discriminator is the encoder without its head.",
    )
    pair: bool | None = field(
        None,
        "Whether a fine-tuned Hugging Face model reads pairs, which its files do not "
        "state. Default: single texts.",
    )
    num_heads: int | None = field(
        None,
        "Attention heads of the discriminator, or of a lone generator. Shapes do not "
        "determine them. Default: config file, or hidden size // 64.",
        min=1,
    )
    vocab_file: str | None = field(
        None, "Vocabulary, one token per line; default: the source's."
    )
    trained_length: int | None = field(
        None,
        "Number of trained positions; fine-tuning warns about longer rows. Default: "
        "the source's, or the whole position table.",
        min=1,
    )
    lower_case: bool | None = field(None, "Lower-case text; default: the source's.")
    strip_accents: bool | None = field(None, "Strip accents; default: the source's.")
    float16: bool = field(
        False, "Store 16-bit weights, in half the space (electra_tf, hugging_face)."
    )
    overwrite: bool = field(False, "Replace an earlier conversion.")
    push_to_hub: str | None = field(
        None,
        "owner/name: Hugging Face hub repository to upload the export to "
        "(hugging_face). The hub's client authenticates (HF_TOKEN, hf auth login).",
    )
    private: bool = field(
        False,
        "Create the repository of --push_to_hub as private; refuse a public one.",
        only_with="push_to_hub",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            not self.push_to_hub or self.format == "hugging_face",
            f"--push_to_hub needs --format=hugging_face, got {self.format}.",
        )
        name = self.push_to_hub or "owner/name"
        require(
            bool(re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", name)),
            f"--push_to_hub={name} is not a repository: give owner/name.",
        )
        require(
            not self.float16 or self.format in ("electra_tf", "hugging_face"),
            f"--float16 needs --format=electra_tf or hugging_face, got {self.format}.",
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class DoctorConfig(Group):
    """Checks a checkpoint or a config for known problems and suggests remedies.

    Examples:
      python -m electra_tf doctor --model=runs/tiny
      python -m electra_tf doctor --flagfile=configs/small.cfg
      python -m electra_tf doctor --model=hf/discriminator --generator=hf/generator
      python -m electra_tf doctor --model=electra_small/electra_small

    Does not modify files. Exit codes: 0 no problem (warnings do not count), 1 problem.
    """

    model: str | None = field(
        None,
        "Checkpoint to examine: the folder of a pretraining run or of an import, a "
        "Hugging Face folder, a checkpoint of Google's TensorFlow 1 code (folder or "
        "prefix), or a keras-hub preset.",
    )
    flagfile: str | None = field(None, "Pretraining config to examine.")
    generator: str | None = field(
        None,
        "Folder of the generator, if --model holds only one network.",
        only_with="model",
    )
    json: bool = field(False, "One JSON object per line.")

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            (self.model is None) != (self.flagfile is None),
            "give either --model or --flagfile.",
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompareConfig(Group):
    r"""Pretrains systems at equal FLOPs, probes their encoders, and tests differences.

    Examples:
      # Print steps, FLOPs and parameters of each system without training.
      python -m electra_tf compare --flagfile=configs/compare/table5.cfg --dry_run \
          --data_root=data --pretrain=--corpus=data/text.txt

      # The paper's Table 5 on your text, two runs at a time.
      python -m electra_tf compare --flagfile=configs/compare/table5.cfg --workers=2 \
          --data_root=data --pretrain=--corpus=data/text.txt

      # Your own comparison.
      python -m electra_tf compare --output_dir=runs/mine --budget=electra:2000 \
          --pretrain=--flagfile=configs/tiny.cfg --system=electra: \
          --system='mlm: --objective=mlm --mask_rule=bert' \
          --probe='tiny: --flagfile=configs/tasks/tiny.cfg'

    Writes table.md, scores.png, results.jsonl (one line per finished run and probe),
    ladder.json (settings), data/ and runs/ to --output_dir. The same command resumes an
    interrupted comparison. Exit codes: 0 done, 1 error or failed run, 75 stopped by
    SIGTERM or SIGINT.
    """

    pretrain: tuple[str, ...] = field(
        (),
        "Flags of electra-tf pretrain that all systems share. May be given several "
        "times; later flags win.",
        repeated=True,
    )
    system: tuple[str, ...] = field(
        (),
        "A system: 'NAME: FLAGS', with its own flags of electra-tf pretrain. Once for "
        "each system.",
        repeated=True,
    )
    probe: tuple[str, ...] = field(
        (),
        "A fine-tuning task for every encoder: 'NAME: FLAGS' of electra-tf finetune. "
        "Once for each probe.",
        repeated=True,
    )
    pairs: tuple[str, ...] = field(
        (),
        "A probe without training: 'NAME: FLAGS' of electra-tf score, such as "
        "'blimp: --data={data}/blimp'. Once for each probe.",
        repeated=True,
    )
    data_root: str = field(
        "data", "Folder that replaces {data} in --pretrain, --system, --probe, --pairs."
    )
    output_dir: str = field("runs/compare", "Output folder.")
    budget: str = field(
        "electra:1000", "SYSTEM:STEPS; every run gets the FLOPs of these steps."
    )
    equal: Literal["flops", "steps"] = field(
        "flops",
        "Equal quantity of all runs: FLOPs, or steps as in the paper's Figure 3, left.",
    )
    flops_rule: Literal["matmul", "original"] = field(
        "matmul",
        "Rule for counting FLOPs. matmul: matrix products, backward twice forward; "
        "original: as the paper's script, look-ups as dense products.",
    )
    seeds: int = field(
        5, "Pretraining runs per system, with seeds seed, seed + 1...", min=1
    )
    seed: int = field(0, "Seed of the first run of every system.", min=0, max=MAX_SEED)
    probe_seeds: int = field(
        1, "Fine-tuning runs per encoder and probe, averaged.", min=1
    )
    reference: str = field("electra", "System that all others are tested against.")
    untrained: str = field(
        "", "Also probe this system's encoder as initialized, in a row 'untrained'."
    )
    threshold_auc: float = field(
        0.65,
        "Minimum AUC of a discriminator over replaceable held-out tokens, below which "
        "it is not ranked; 0: none.",
        min=0,
        below=1,
    )
    threshold_nats: float = field(
        0.3,
        "Minimum gain of a masked LM over the best trivial predictor, in nats, below "
        "which it is not ranked.",
        min=0,
    )
    workers: int = field(
        1,
        "Parallel runs, each in a separate process with a share of the cores.",
        min=1,
    )
    overwrite: bool = field(
        False, "Delete the results of systems and probes with changed settings."
    )
    dry_run: bool = field(
        False, "Build data and print steps, FLOPs and parameters of each system."
    )
