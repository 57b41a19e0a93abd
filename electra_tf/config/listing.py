"""The commands of the package, by what follows ``python -m electra_tf.``."""

from __future__ import annotations

from electra_tf.config import commands
from electra_tf.config.comparison import CompareConfig
from electra_tf.config.finetuning import FinetuneConfig
from electra_tf.config.pretraining import PretrainConfig
from electra_tf.config.records import RecordsConfig

COMMANDS: dict[str, type] = {
    "pretrain": PretrainConfig,
    "finetune": FinetuneConfig,
    "predict": commands.PredictConfig,
    "compare": CompareConfig,
    "inspect": commands.InspectConfig,
    "analyze": commands.AnalyzeConfig,
    "curves": commands.CurvesConfig,
    "rerank": commands.RerankConfig,
    "minimal_pairs": commands.MinimalPairsConfig,
    "convert": commands.ConvertConfig,
    "doctor": commands.DoctorConfig,
    "data.build_records": RecordsConfig,
    "tasks.glue": commands.GlueConfig,
}
