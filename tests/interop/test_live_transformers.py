"""Export, encoders of other classes, loss and gradients against `transformers`."""

import json

import numpy as np
import pytest
import tensorflow as tf

import electra_tf as et
from electra_tf.data.masking import Masking, row_keys
from electra_tf.features import derive_inputs
from electra_tf.interop import networks, run_folder
from electra_tf.interop.names import HUGGING_FACE, Tensors
from electra_tf.interop.networks import Source
from electra_tf.pretraining import GreedySampler
from tests.interop.models import assert_agree, assert_same_arrays, outputs
from tests.interop.test_convert import run
from tests.interop.test_hugging_face import read


@pytest.fixture(scope="module", autouse=True)
def _libraries():
    """Imports them late: both test workers collect this file, and it takes seconds."""
    pytest.importorskip("torch")
    pytest.importorskip("transformers")


@pytest.fixture(scope="module", params=["projected", "sixteen_heads"])
def models(request, tmp_path_factory):
    """A `transformers` pair, its folder, inputs and outputs."""
    from tests.interop import make_golden

    folder = tmp_path_factory.mktemp(request.param)
    pair = make_golden.pair(*make_golden.CASES[request.param], seed=11)
    make_golden.save(folder, *pair)
    arrays = make_golden.inputs(11)
    return pair, folder, arrays, make_golden.outputs(*pair, arrays)


def test_export_is_loaded_whole_and_agrees(models, tmp_path):
    import transformers

    from tests.interop import make_golden

    _, folder, arrays, wanted = models
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
        # No missing or unexpected tensors.
        assert not any(report.values()), report
        pair.append(model.eval())
    tied = pair[1].generator_lm_head.weight
    assert tied is pair[1].electra.embeddings.word_embeddings.weight
    found = make_golden.outputs(*pair, arrays)
    assert_same_arrays(found, wanted)
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


@pytest.mark.parametrize(
    ("name", "heads"),
    [
        ("ElectraForMultipleChoice", {"classifier", "sequence_summary"}),
        ("ElectraModel", set()),
    ],
)
def test_the_encoder_of_other_classes(name, heads, tmp_path):
    import torch
    import transformers

    from tests.interop import make_golden

    sizes = make_golden.CASES["projected"][0]
    model = getattr(transformers, name)(make_golden.config(**sizes))
    make_golden.randomized(model, torch.Generator().manual_seed(3))
    model.save_pretrained(tmp_path)
    imported = read(tmp_path, only="discriminator")
    assert {taken.partition(".")[0] for taken in imported.not_taken} == heads
    arrays = make_golden.inputs(5)
    with torch.no_grad():
        encoder = getattr(model, "electra", model)
        hidden = encoder(**make_golden.torch_inputs(arrays)).last_hidden_state
    assert_agree(outputs(imported, arrays), {"encoder_hidden": hidden.numpy()}, arrays)


def pretraining_batch(arrays, vocabulary):
    ids, mask = tf.constant(arrays["input_ids"]), tf.constant(arrays["input_mask"])
    masker = Masking(
        len(vocabulary),
        vocabulary.mask_id,
        never_masked=(vocabulary.cls_id, vocabulary.sep_id),
        max_seq_length=ids.shape[1],
        mask_rate=0.4,
    )
    rows = tf.range(len(ids), dtype=tf.int64)
    inputs = derive_inputs(ids, mask, vocabulary.sep_id)
    inputs["segment_ids"] = tf.constant(arrays["segment_ids"])
    return {**inputs, **masker(ids, mask, row_keys(rows, tf.zeros_like(rows)))}


def torch_loss(pair, batch):
    """MLM + 50 * detection loss in PyTorch, means over slots and over real tokens."""
    import torch

    from tests.interop import make_golden

    discriminator, generator = pair
    arrays = {name: np.asarray(value) for name, value in batch.items()}
    given = make_golden.torch_inputs(arrays)
    rows = torch.arange(len(arrays["input_ids"]))[:, None]
    positions = torch.tensor(arrays["masked_lm_positions"]).long()
    used = torch.tensor(arrays["masked_lm_weights"]) > 0
    masked = given | {"input_ids": torch.tensor(arrays["masked_input_ids"]).long()}
    logits = generator(**masked).logits[rows, positions][used]
    originals = given["input_ids"][rows, positions][used]
    mlm = torch.nn.functional.cross_entropy(logits, originals)
    corrupted = given["input_ids"].clone()
    corrupted[rows.expand_as(positions)[used], positions[used]] = logits.argmax(-1)
    labels = (corrupted != given["input_ids"]).float()
    real = given["attention_mask"] > 0
    assert 0 < labels.sum() < real.sum()
    detection = torch.nn.functional.binary_cross_entropy_with_logits(
        discriminator(**given | {"input_ids": corrupted}).logits[real], labels[real]
    )
    return mlm, detection, mlm + 50 * detection


def test_pretraining_loss_and_gradients(models):
    """Compares one batch; samples are the generator's most probable tokens."""
    pair, folder, arrays, _ = models
    imported = read(folder)
    built = networks.models(imported)
    model = et.Electra(
        built["generator"],
        built["encoder"],
        objective=built["discriminator"].objective,
        sampler=GreedySampler(),
    )
    batch = pretraining_batch(arrays, imported.vocabulary)
    assert batch["masked_lm_weights"].numpy().sum() > 5
    for tower in (model.generator.encoder, model.discriminator):
        assert tower.embeddings is model.discriminator.embeddings
    with tf.GradientTape() as tape:
        options = {"seed": tf.constant([0, 0]), "training": False}
        terms = model.compute_losses(batch, model.loss_totals(batch), **options)
        total = tf.add_n(terms)
    mlm, detection, wanted = torch_loss(pair, batch)
    assert float(terms[0]) == pytest.approx(mlm.item(), abs=1e-5)
    assert float(terms[1]) / 50 == pytest.approx(detection.item(), abs=1e-5)
    assert float(total) == pytest.approx(wanted.item(), rel=1e-5)

    for half in pair:
        half.zero_grad()
    # `transformers` drops the gradient of the [PAD] row, even if [PAD] was sampled as a
    # replacement. The original code and this library keep it.
    pair[0].electra.embeddings.word_embeddings.padding_idx = None
    torch_loss(pair, batch)[-1].backward()
    variables = model.trainable_variables
    values = tape.gradient(total, [v.value for v in variables])
    gradients = dict(zip(map(id, variables), values, strict=True))
    count = 0
    for half, role, text_encoder, head in (
        (pair[0], "discriminator", built["encoder"], model.objective.head),
        (pair[1], "generator", model.generator.encoder, model.generator.head),
    ):
        sizes = imported.towers[role].sizes
        # Apart, because the tolerance depends on the largest gradient.
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
        found = tf.convert_to_tensor(gradients[id(variables[name])]).numpy()
        np.testing.assert_allclose(found, value, rtol=1e-4, atol=atol, err_msg=name)
    return len(wanted)
