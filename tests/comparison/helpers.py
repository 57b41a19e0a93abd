import types

from electra_tf.comparison import plan
from electra_tf.config.commands import CompareConfig

VOCAB = 400


def plan_of(**values):
    values = {
        "system": ("electra:", "mlm: --objective=mlm"),
        "probe": ("cola: --task=cola", "sst: --task=sst"),
        "budget": "electra:100",
    } | values
    config = CompareConfig(**values)
    files = {"train_files": ("a-0", "a-1"), "eval_files": ("b",)}
    data = types.SimpleNamespace(vocabulary=range(VOCAB), **files)
    systems = plan.budgeted(plan.systems(config), config, VOCAB)
    return plan.Plan(config, systems, plan.probes(config), data)
