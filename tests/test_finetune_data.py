"""What a run reads: which splits, and which labels the task knows then."""

from electra_tf import config as config_lib
from electra_tf import finetune_build as build
from electra_tf.finetune_config import FinetuneConfig
from electra_tf.finetune_data import TaskData
from tests.tasks import common


def read(**values):
    """The data of a run, and the lines it logs."""
    config = config_lib.from_flat({"cache_dir": "", **values}, FinetuneConfig)
    said = []
    task = build.task(config, said.append)
    return TaskData(config, task, common.tokenizer(), 16, said.append), said


def write(path, *lines):
    path.write_text("".join(f"{line}\n" for line in lines))
    return str(path)


def test_splits_that_a_benchmark_folder_lacks_are_logged(tmp_path):
    for split in ("train", "dev"):
        write(tmp_path / f"{split}.tsv", "x\t1\t\tgood", "x\t0\t\tbad")
    data, said = read(task="cola", data_dir=str(tmp_path))
    assert (data.eval_splits, data.test_splits) == (("dev",), ())
    assert "cola has no test data here: left out" in said
    write(tmp_path / "test.tsv", "index\tsentence", "0\tfine")
    data, said = read(task="cola", data_dir=str(tmp_path))
    assert data.test_splits == ("test",)
    assert not any("left out" in line for line in said)
