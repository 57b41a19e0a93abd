"""Import and export against `transformers`: outputs, losses and gradients."""

import dataclasses
import json

import numpy as np
import pytest
import tensorflow as tf

import electra_tf as et
from electra_tf.__main__ import main as command
from electra_tf.data.masking import Masking, row_keys
from electra_tf.features import derive_inputs
from electra_tf.interop import hugging_face, networks, run_folder
from electra_tf.interop.imported import Source
from electra_tf.interop.names import HUGGING_FACE, Tensors
from electra_tf.pretraining import GreedySampler
from tests.interop.models import assert_agree, outputs, same

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from tests.interop import make_golden  # noqa: E402  needs both of them

CASES = make_golden.CASES


@pytest.fixture(scope="module", params=CASES)
def models(request, tmp_path_factory):
    """A `transformers` pair, its folder, inputs and outputs."""
    folder = tmp_path_factory.mktemp(request.param)
    pair = make_golden.pair(*CASES[request.param], seed=11)
    make_golden.save(folder, *pair)
    arrays = make_golden.inputs(11)
    return pair, folder, arrays, make_golden.outputs(*pair, arrays)


def read(path, **options):
    return hugging_face.read(Source(str(path), **options))


def test_import(models):
    _, folder, arrays, wanted = models
    assert_agree(outputs(read(folder), arrays), wanted, arrays)


def test_import_of_pickled_weights(models, tmp_path):
    (discriminator, generator), folder, _, _ = models
    for model, below in (
        (discriminator, tmp_path),
        (generator, tmp_path / "generator"),
    ):
        below.mkdir(exist_ok=True)
        torch.save(model.state_dict(), below / "pytorch_model.bin")
        model.config.save_pretrained(below)
    # Pickled weights contain the tied output matrix.
    assert "generator_lm_head.weight" in torch.load(
        tmp_path / "generator" / "pytorch_model.bin", weights_only=True
    )
    assert same(read(tmp_path), read(folder))


def test_a_pickle_that_runs_code_is_refused(models, tmp_path):
    class Evil:
        def __reduce__(self):
            return (print, ("executed",))

    torch.save({"electra.x": Evil()}, tmp_path / "pytorch_model.bin")
    models[0][0].config.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"pytorch_model\.bin cannot be read"):
        read(tmp_path)


def loaded(model_class, folder):
    """Loads a `transformers` model; fails on missing or unexpected tensors."""
    model, report = model_class.from_pretrained(folder, output_loading_info=True)
    problems = {name: found for name, found in report.items() if found}
    assert not problems, problems
    return model.eval()


def test_export_is_loaded_whole_and_agrees(models, tmp_path):
    _, folder, arrays, wanted = models
    imported = tmp_path / "imported"
    assert command(["convert", f"--from={folder}", f"--to={imported}"]) == 0
    out = tmp_path / "out"
    flags = [f"--from={imported}", f"--to={out}", "--format=hugging_face"]
    assert command(["convert", *flags]) == 0
    pair = (
        loaded(transformers.ElectraForPreTraining, out),
        loaded(transformers.ElectraForMaskedLM, out / "generator"),
    )
    tied = pair[1].generator_lm_head.weight
    assert tied is pair[1].electra.embeddings.word_embeddings.weight
    found = make_golden.outputs(*pair, arrays)
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)
    ours = outputs(run_folder.read(Source(str(imported))), arrays)
    assert_agree(ours, found, arrays)
    assert isinstance(
        transformers.AutoModelForPreTraining.from_pretrained(out), type(pair[0])
    )


@pytest.mark.parametrize("lower_case", [True, False])
def test_the_exported_tokenizer(models, tmp_path, lower_case):
    casing = f"--{'' if lower_case else 'no'}lower_case"
    flags = [f"--from={models[1]}", f"--to={tmp_path / 'out'}", casing]
    flags += ["--format=hugging_face", "--trained_length=12"]
    assert command(["convert", *flags]) == 0
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    vocabulary = read(models[1]).vocabulary
    ours = et.data.WordPiece(vocabulary, lower_case=lower_case, strip_accents=True)
    for text in ("The cats, walking.", "thé dogs see a CAT", "two blue houses"):
        (ids,) = ours.encode([text])
        wanted = [vocabulary.cls_id, *ids, vocabulary.sep_id]
        assert tokenizer(text)["input_ids"] == wanted
    assert tokenizer.model_max_length == 12
    assert tokenizer.mask_token == "[MASK]"
    # Tokenizer files that `transformers` writes can be read.
    tokenizer.save_pretrained(tmp_path / "again")
    again = hugging_face.tokenizer_files.read_tokenizer(tmp_path / "again")
    assert again.vocabulary.tokens == vocabulary.tokens
    assert again.lower_case == lower_case


@pytest.mark.parametrize(
    ("name", "heads"),
    [
        ("ElectraForSequenceClassification", "classifier."),
        ("ElectraForTokenClassification", "classifier."),
        ("ElectraForQuestionAnswering", "qa_outputs."),
        ("ElectraForMultipleChoice", ("classifier.", "sequence_summary.")),
        ("ElectraModel", ()),
    ],
)
def test_the_encoder_of_other_classes(name, heads, tmp_path):
    sizes = make_golden.config(**CASES["projected"][0])
    random = torch.Generator().manual_seed(3)
    model = make_golden.randomized(getattr(transformers, name)(sizes), random)
    model.save_pretrained(tmp_path)
    imported = read(tmp_path, only="discriminator")
    assert bool(imported.not_taken) == bool(heads)
    assert all(taken.startswith(heads) for taken in imported.not_taken)
    arrays = make_golden.inputs(5)
    with torch.no_grad():
        encoder = getattr(model, "electra", model)
        hidden = encoder(**make_golden.torch_inputs(arrays)).last_hidden_state
    assert_agree(outputs(imported, arrays), {"encoder_hidden": hidden.numpy()}, arrays)


def pretraining_batch(arrays, vocabulary):
    """Inputs with masked tokens, as in pretraining."""
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
    scores = discriminator(**given | {"input_ids": corrupted}).logits
    detection = torch.nn.functional.binary_cross_entropy_with_logits(
        scores[real], labels[real]
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
        terms = model.compute_losses(
            batch, model.loss_totals(batch), seed=tf.constant([0, 0]), training=False
        )
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
    gradients = dict(
        zip(
            [id(v) for v in model.trainable_variables],
            tape.gradient(total, [v.value for v in model.trainable_variables]),
            strict=True,
        )
    )
    count = compare_encoder(
        pair[0], imported.discriminator, built["encoder"], gradients
    )
    generator = built["generator"]
    count += compare_encoder(pair[1], imported.generator, generator.encoder, gradients)
    for role, half, head in (
        ("discriminator", pair[0], model.objective.head),
        ("generator", pair[1], generator.head),
    ):
        count += compare_head(half, imported.towers[role], role, head, gradients)
    # The five shared embedding variables were compared twice.
    assert count == len(gradients) + 5


def torch_gradients(half):
    named = dict(half.named_parameters())
    return Tensors({name: p.grad.numpy() for name, p in named.items()}, "gradients")


def compare_encoder(half, tower, encoder, gradients):
    rows = HUGGING_FACE.encoder(tower.sizes, "electra.", "electra.")
    wanted = torch_gradients(half).read(rows)
    return compare(wanted, networks.encoder_variables(encoder), gradients)


def compare_head(half, tower, role, head, gradients):
    wanted = torch_gradients(half).read(HUGGING_FACE.head(role, tower.sizes))
    return compare(wanted, networks.head_variables(head), gradients)


def compare(wanted, variables, gradients):
    assert wanted.keys() == variables.keys()
    largest = max(np.abs(value).max() for value in wanted.values())
    for name, value in wanted.items():
        found = tf.convert_to_tensor(gradients[id(variables[name])]).numpy()
        # The detection loss has weight 50: compare relative to the largest gradient.
        np.testing.assert_allclose(
            found, value, atol=1e-5 * max(1.0, largest), rtol=1e-4, err_msg=name
        )
    return len(wanted)


def test_classes_of_the_configs_are_what_transformers_writes(models, tmp_path):
    """`transformers` accepts every key and keeps its value."""
    imported = dataclasses.replace(
        read(models[1]), lower_case=True, strip_accents=True, trained_length=12
    )
    hugging_face.write(tmp_path, imported)
    ours = json.loads((tmp_path / "config.json").read_text())
    theirs = transformers.ElectraConfig.from_pretrained(tmp_path).to_dict()
    assert {k: theirs.get(k) for k in ours if k != "position_embedding_type"} == {
        k: v for k, v in ours.items() if k != "position_embedding_type"
    }
