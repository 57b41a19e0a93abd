"""Flags of `electra-tf compare`."""

import dataclasses
from typing import Literal

from electra_tf.config.fields import MAX_SEED, Group, field


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
