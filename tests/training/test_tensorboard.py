"""The folder of a run, read by TensorBoard's own readers."""

import numpy as np
import pytest
from google.protobuf import text_format
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import plugin_data_pb2
from tensorboard.plugins.projector import ProjectorConfig

from electra_tf.training import tensorboard


@pytest.fixture
def events(tmp_path):
    """The held-out run of a folder, as TensorBoard reads it."""

    def read():
        return EventAccumulator(
            str(tmp_path / "mine" / "tensorboard" / "eval")
        ).Reload()

    return tmp_path / "mine" / "tensorboard", read


def test_text(events):
    folder, read = events
    tensorboard.write_text(folder, 7, "samples", "original  a\n\n* b\n")
    (event,) = read().Tensors("samples")
    assert event.step == 7
    (text,) = event.tensor_proto.string_val
    assert text.decode() == "    original  a\n    \n    * b"


def test_settings(events):
    folder, read = events
    settings = {"num_layers": 2, "rate": 0.5, "tied": True, "corpus": ["a"], "no": None}
    tensorboard.write_settings(folder, settings)
    about = read().SummaryMetadata("_hparams_/session_start_info").plugin_data
    data = plugin_data_pb2.HParamsPluginData.FromString(about.content)
    found = data.session_start_info.hparams
    assert found["num_layers"].number_value == 2
    assert found["rate"].number_value == 0.5
    assert found["tied"].bool_value is True
    assert found["corpus"].string_value == "['a']"
    assert found["no"].string_value == "None"
    assert data.session_start_info.group_name == "mine"


def test_odd_text(tmp_path):
    """A file name that is no text; tokens with tabs, which would be columns."""
    tensorboard.write_settings(tmp_path / "a" / "b", {"corpus": "\udcff.txt"})
    tensorboard.write_text(tmp_path / "a" / "b", 1, "samples", "\x00 \x1b[2J\u2028 b")
    about = EventAccumulator(str(tmp_path / "a" / "b" / "eval")).Reload()
    plugin = about.SummaryMetadata("_hparams_/session_start_info").plugin_data
    data = plugin_data_pb2.HParamsPluginData.FromString(plugin.content)
    found = data.session_start_info.hparams["corpus"].string_value
    assert found == "\\udcff.txt"
    tensorboard.write_words(tmp_path, ["a\tb", "c"], np.ones([2, 3], np.float32))
    names = (tmp_path / "train" / "words_names.tsv").read_text("utf-8").split("\n")
    assert names == ["a\\tb", "c", ""]


def test_words(tmp_path):
    vectors = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    tensorboard.write_words(tmp_path, ["the", "##s", "\u00e9t\u00e9"], vectors)
    folder = tmp_path / "train"
    text = (folder / "projector_config.pbtxt").read_text()
    (shown,) = text_format.Parse(text, ProjectorConfig()).embeddings
    found = np.loadtxt(folder / shown.tensor_path, delimiter="\t")
    np.testing.assert_allclose(found, vectors, rtol=1e-3)
    names = (folder / shown.metadata_path).read_text("utf-8").split("\n")
    assert names == ["the", "##s", "\u00e9t\u00e9", ""]
