import pytest

from electra_tf import cli
from electra_tf.comparison import plan
from electra_tf.config import fields, validation
from electra_tf.config.commands import CompareConfig
from electra_tf.systems import costs
from tests.examples.common import ROOT

FILES = sorted((ROOT / "configs" / "compare").glob("*.cfg"))
VOCAB = 8192


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_resolves(path):
    config = cli.parse(CompareConfig, [f"--flagfile={path}", "--data_root=my"])
    found = plan.budgeted(plan.systems(config), config, VOCAB)
    text = path.read_text()
    assert len(found) == text.count("\n--system=") > 1
    assert f"electra_tf compare --flagfile=configs/compare/{path.stem}.cfg" in text
    assert config.seeds >= 5
    assert config.output_dir == f"runs/compare/{path.stem}"
    work = [costs.run_flops(run, VOCAB) for run in found.values()]
    assert min(work) == pytest.approx(max(work), rel=2e-3)
    assert len({str(fields.to_flat(run)) for run in found.values()}) == len(found)
    for run in found.values():
        assert run.optimizer.warmup_steps == round(run.run.num_train_steps / 10)
        assert not validation.warnings(run) or path.stem in ("figure3_size", "tying")
    probes = plan.probes(config)
    data = [probe.data for probe in probes.values()]
    assert data
    assert all((given.data_dir or given.train).startswith("my/") for given in data)
