"""Writes `golden/`: small models of `transformers` and their outputs.

    python -m tests.interop.make_golden

Needs PyTorch and transformers; the tests that read the files do not. Every parameter is
random, biases and LayerNorms included, because initial zeros and ones hide mistakes.
"""

import shutil

import numpy as np
import torch
import transformers
from transformers import ElectraConfig, ElectraForMaskedLM, ElectraForPreTraining

from tests.interop.models import GOLDEN, batch

TOKENS = (
    *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
    *("the", "a", "cat", "dog", "sees", "likes", "old", "young", "in", "garden"),
    *("house", ".", ",", "##s", "##ing", "walk", "run", "one", "two", "three", "red"),
    *("blue", "and", "or", "not", "we", "they", "it", "was", "is"),
)

# Sizes of the discriminator, and different sizes in the generator.
CASES = {
    # Like small: embeddings narrower than both towers, which differ.
    "projected": (
        {"embedding_size": 8, "hidden_size": 16, "num_attention_heads": 4},
        {"hidden_size": 12, "num_attention_heads": 3, "intermediate_size": 20},
    ),
    # Like base: no projection in the discriminator, one in the generator.
    "equal": (
        {"embedding_size": 16, "hidden_size": 16, "num_attention_heads": 2},
        {"hidden_size": 8, "num_attention_heads": 1, "intermediate_size": 32},
    ),
    # Like large: 16 heads, more layers than the generator, no projections.
    "sixteen_heads": (
        {
            "embedding_size": 32,
            "hidden_size": 32,
            "num_attention_heads": 16,
            "num_hidden_layers": 3,
        },
        {"num_attention_heads": 8, "num_hidden_layers": 1},
    ),
}


def config(**sizes):
    shared = {"vocab_size": len(TOKENS), "pad_token_id": 0, "num_hidden_layers": 2}
    shared |= {"max_position_embeddings": 16, "intermediate_size": 24}
    return ElectraConfig(**{**shared, **sizes})


def randomized(model, generator):
    """Gives every parameter distinctive values; returns the model in eval mode."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator) * 0.3
            parameter.copy_(noise + 1 if name.endswith("LayerNorm.weight") else noise)
    return model.eval()


def pair(sizes, changes, seed=0):
    random = torch.Generator().manual_seed(seed)
    discriminator = randomized(ElectraForPreTraining(config(**sizes)), random)
    generator = randomized(ElectraForMaskedLM(config(**{**sizes, **changes})), random)
    generator.electra.embeddings = discriminator.electra.embeddings
    generator.tie_weights()
    return discriminator, generator


def inputs(seed=0):
    """A batch with four masked positions per row."""
    rng = np.random.default_rng(seed)
    arrays = batch(rng, len(TOKENS))
    positions = [rng.choice(6, 4, replace=False) for _ in arrays["input_ids"]]
    return {**arrays, "masked_lm_positions": np.array(positions, np.int32)}


def torch_inputs(arrays):
    names = ("input_ids", "input_mask", "segment_ids")
    ids, mask, segments = (torch.tensor(arrays[name]).long() for name in names)
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": segments}


def outputs(discriminator, generator, arrays):
    given = torch_inputs(arrays)
    rows = torch.arange(len(arrays["input_ids"]))[:, None]
    positions = torch.tensor(arrays["masked_lm_positions"]).long()
    with torch.no_grad():
        found = {
            "hidden": discriminator.electra(**given).last_hidden_state,
            "rtd_logits": discriminator(**given).logits,
            "generator_hidden": generator.electra(**given).last_hidden_state,
            "mlm_logits": generator(**given).logits[rows, positions],
        }
    return {name: tensor.numpy() for name, tensor in found.items()}


def save(folder, discriminator, generator):
    discriminator.save_pretrained(folder)
    generator.save_pretrained(folder / "generator")
    (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in TOKENS))


def main():
    shutil.rmtree(GOLDEN, ignore_errors=True)
    for seed, (name, sizes) in enumerate(CASES.items()):
        models, arrays = pair(*sizes, seed=seed), inputs(seed)
        save(GOLDEN / name, *models)
        found = {**arrays, **outputs(*models, arrays)}
        np.savez_compressed(GOLDEN / name / "expected.npz", **found)
    # A fine-tuned model: no pretraining head, and tokenizer.json without vocab.txt.
    task = transformers.ElectraForSequenceClassification(config(**CASES["equal"][0]))
    task.save_pretrained(GOLDEN / "classifier")
    ids = {token: index for index, token in enumerate(TOKENS)}
    tokenizer = transformers.ElectraTokenizer(vocab=ids, do_lower_case=False)
    tokenizer.save_pretrained(GOLDEN / "classifier")


if __name__ == "__main__":
    main()
