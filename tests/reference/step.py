"""Pretraining step of ELECTRA in plain NumPy float64, written from the definition.

Inputs: chosen positions, samples and gradients. Outputs: corrupted ids, labels, logits
of both networks, losses and updated weights. Computes one row and one slot at a time.
"""

import numpy as np

from tests.reference import encoder
from tests.reference.optimizer import AdamW, learning_rate

UNDECAYED = ("bias", "gamma", "beta")


def corrupt(input_ids, positions, used, sampled_ids):
    """Returns the discriminator's input and its labels."""
    corrupted_ids = input_ids.copy()
    for row, slot in np.argwhere(used):
        corrupted_ids[row, positions[row, slot]] = sampled_ids[row, slot]
    return corrupted_ids, corrupted_ids != input_ids


class Networks:
    """Both networks of an Electra with one shared embedding.

    Args:
        variables: `trainable_variables`, in the order of all lists below.
        names: names of the generator and of the discriminator encoder.
        heads: numbers of attention heads of both encoders.
    """

    def __init__(self, variables, names=("generator", "discriminator"), heads=(1, 2)):
        self.paths = [v.path for v in variables]
        self.names, self.heads = names, heads

    def decayed(self):
        """Returns one boolean per variable: False for biases and LayerNorm."""
        return [not path.endswith(UNDECAYED) for path in self.paths]

    def group(self, weights, part):
        """Weights with `part` in their path, keyed by the last part of the path."""
        return {
            path.split("/")[-1]: weight
            for path, weight in zip(self.paths, weights, strict=True)
            if part in f"/{path}"
        }

    def encode(self, weights, which, ids, batch):
        name = self.names[which]
        layer = 0
        bottom = self.group(weights, "/embeddings/")
        parts = [bottom | self.group(weights, f"/{name}/embeddings_projection")]
        while block := self.group(weights, f"/{name}/transformer/layer_{layer}/"):
            parts.append(block)
            layer += 1
        inputs = {**batch, "input_ids": ids}
        return encoder.states(parts, inputs, batch["input_mask"], self.heads[which])[-1]

    def generator_logits(self, weights, batch):
        """Logits [B, P, V]."""
        hidden = self.encode(weights, 0, batch["masked_input_ids"], batch)
        head = self.group(weights, "/masked_lm_head/")
        words = self.group(weights, "/embeddings/")["word_embeddings"]
        positions = batch["masked_lm_positions"]
        rows = [hidden[row][positions[row]] for row in range(len(hidden))]
        rows = np.stack(rows) @ head["dense_kernel"] + head["dense_bias"]
        rows = encoder.normalized(encoder.gelu(rows), head)
        return rows @ words.T + head["output_bias"]

    def discriminator_logits(self, weights, ids, batch):
        """Logits [B, S]."""
        hidden = self.encode(weights, 1, ids, batch)
        head = self.group(weights, "/replaced_token_head/")
        wide = encoder.gelu(hidden @ head["dense_kernel"] + head["dense_bias"])
        return (wide @ head["prediction_kernel"] + head["prediction_bias"])[..., 0]


def generator_loss(logits, ids, used):
    """Mean cross-entropy over all used slots."""
    total = 0.0
    for row, slot in np.argwhere(used):
        scores = logits[row, slot]
        total += np.log(np.exp(scores).sum()) - scores[ids[row, slot]]
    return total / used.sum()


def discriminator_loss(logits, is_replaced, input_mask):
    """Mean binary cross-entropy over all real tokens."""
    total = 0.0
    for row, position in np.argwhere(input_mask):
        probability = 1 / (1 + np.exp(-logits[row, position]))
        total -= np.log(probability if is_replaced[row, position] else 1 - probability)
    return total / input_mask.sum()


def losses(networks, weights, batch, sampled_ids=None):
    """Returns generator loss, discriminator loss and sampled ids.

    The samples are the most probable tokens unless given.
    """
    used = batch["masked_lm_weights"] > 0
    logits = networks.generator_logits(weights, batch)
    if sampled_ids is None:
        sampled_ids = logits.argmax(-1)
    corrupted_ids, is_replaced = corrupt(
        batch["input_ids"], batch["masked_lm_positions"], used, sampled_ids
    )
    rtd = networks.discriminator_logits(weights, corrupted_ids, batch)
    detection = discriminator_loss(rtd, is_replaced, batch["input_mask"])
    return generator_loss(logits, batch["masked_lm_ids"], used), detection, sampled_ids


class Trainer:
    """Updates weights over several steps: schedule, joint clip, Adam, decay.

    Args:
        networks: the `Networks`, for the names of decayed variables.
        schedule: peak learning rate, number of steps, number of warm-up steps.
        options: arguments of the reference `AdamW`.
    """

    def __init__(self, networks, schedule, **options):
        self.schedule = schedule
        self.optimizer = AdamW(networks.decayed(), **options)

    def update(self, weights, gradients):
        rate = learning_rate(self.optimizer.step, *self.schedule)
        return self.optimizer.apply(gradients, weights, rate)
