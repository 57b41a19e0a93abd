import json

import numpy as np
import pytest

import electra_tf as et
from electra_tf.interop import networks, run_folder
from electra_tf.interop.names import HUGGING_FACE, Tensors
from electra_tf.interop.networks import Source
from electra_tf.pretraining import GreedySampler
from tests import tiny
from tests.interop.models import assert_agree, outputs
from tests.interop.test_convert import run
from tests.interop.test_hugging_face import read


@pytest.fixture(scope="module")
def make_golden():
    """Imports it late: both test workers collect this file, and it takes seconds."""
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from tests.interop import make_golden

    return make_golden


@pytest.fixture(scope="module")
def models(make_golden, tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    sizes, changes = make_golden.CASES["projected"]
    sizes = sizes | {"max_position_embeddings": tiny.LENGTH}
    pair = make_golden.pair(sizes, changes, seed=11)
    make_golden.save(folder, *pair)
    return pair, folder


def test_export_is_loaded_whole_and_agrees(models, make_golden, tmp_path):
    import transformers

    originals, folder = models
    arrays = make_golden.inputs(11)
    imported = tmp_path / "imported"
    run(folder, imported, "--trained_length=12")
    out = tmp_path / "out"
    run(imported, out, "--format=hugging_face")
    pair = []
    for model_class, place in (
        (transformers.ElectraForPreTraining, out),
        (transformers.ElectraForMaskedLM, out / "generator"),
    ):
        model, report = model_class.from_pretrained(place, output_loading_info=True)
        assert not any(report.values()), report
        pair.append(model.eval())
    tied = pair[1].generator_lm_head.weight
    assert tied is pair[1].electra.embeddings.word_embeddings.weight
    found = make_golden.outputs(*pair, arrays)
    np.testing.assert_equal(found, make_golden.outputs(*originals, arrays))
    assert_agree(outputs(run_folder.read(Source(str(imported))), arrays), found, arrays)
    # `transformers` accepts every key of the config and keeps its value.
    written = json.loads((out / "config.json").read_text())
    kept = transformers.ElectraConfig.from_pretrained(out).to_dict()
    written.pop("position_embedding_type")
    assert kept | written == kept
    tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    vocabulary = read(folder).vocabulary
    (ids,) = et.data.WordPiece(vocabulary, lower_case=True).encode(["The cats, walk."])
    wanted_ids = [vocabulary.cls_id, *ids, vocabulary.sep_id]
    assert tokenizer("The cats, walk.")["input_ids"] == wanted_ids
    assert tokenizer.model_max_length == 12
    assert tokenizer.mask_token == "[MASK]"


def torch_loss(pair, batch, given):
    """MLM + 50 * detection loss in PyTorch, means over slots and over real tokens."""
    import torch

    discriminator, generator = pair
    ids = given["input_ids"]
    positions = torch.tensor(batch["masked_lm_positions"]).long()
    rows = torch.arange(len(ids))[:, None].expand_as(positions)
    used = torch.tensor(batch["masked_lm_weights"]) > 0
    labels = torch.full_like(ids, -100)
    labels[rows[used], positions[used]] = ids[rows[used], positions[used]]
    masked = torch.tensor(batch["masked_input_ids"]).long()
    mlm = generator(**given | {"input_ids": masked}, labels=labels)
    corrupted = torch.where(labels >= 0, mlm.logits.argmax(-1), ids)
    replaced = (corrupted != ids).long()
    assert 0 < replaced.sum() < given["attention_mask"].sum()
    detection = discriminator(**given | {"input_ids": corrupted}, labels=replaced)
    return mlm.loss + 50 * detection.loss


def test_pretraining_loss_and_gradients(models, make_golden):
    """Compares one batch; samples are the generator's most probable tokens."""
    pair, folder = models
    imported = read(folder)
    built = networks.models(imported)
    model = et.Electra(
        built["generator"],
        built["encoder"],
        objective=built["discriminator"].objective,
        sampler=GreedySampler(),
    )
    batch = tiny.batch((24, 14, 18), vocab=len(imported.vocabulary), mask_rate=0.4)
    arrays = tiny.numpy(batch)
    # `transformers` drops the gradient of the [PAD] row, even if [PAD] was sampled as a
    # replacement. The original code and this library keep it.
    pair[0].electra.embeddings.word_embeddings.padding_idx = None
    wanted = torch_loss(pair, arrays, make_golden.torch_inputs(arrays))
    wanted.backward()
    loss, values = tiny.gradients(model, batch)
    assert loss == pytest.approx(wanted.item(), rel=1e-5)
    gradients = dict(zip(map(id, model.trainable_variables), values, strict=True))
    count = 0
    for half, role, text_encoder, head in (
        (pair[0], "discriminator", built["encoder"], model.objective.head),
        (pair[1], "generator", model.generator.encoder, model.generator.head),
    ):
        sizes = imported.towers[role].sizes
        rows = HUGGING_FACE.encoder(sizes, "electra.", "electra.")
        variables = networks.encoder_variables(text_encoder)
        count += compare(half, rows, variables, gradients)
        rows, variables = HUGGING_FACE.head(role, sizes), networks.head_variables(head)
        count += compare(half, rows, variables, gradients)
    # The five shared embedding variables were compared twice.
    assert count == len(gradients) + 5


def compare(half, rows, variables, gradients):
    theirs = {name: p.grad.numpy() for name, p in half.named_parameters()}
    wanted = Tensors(theirs, "gradients").read(rows)
    assert wanted.keys() == variables.keys()
    # The detection loss has weight 50: compare relative to the largest gradient.
    atol = 1e-5 * max(1.0, *(np.abs(value).max() for value in wanted.values()))
    for name, value in wanted.items():
        found = gradients[id(variables[name])]
        np.testing.assert_allclose(found, value, rtol=1e-4, atol=atol, err_msg=name)
    return len(wanted)
