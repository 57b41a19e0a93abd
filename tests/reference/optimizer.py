"""The original optimizer and schedule in plain NumPy float64."""

import numpy as np


def learning_rate(step, base, total, warmup, power=1.0, end=0.0):
    """Warm-up multiplied by polynomial decay; `step` counts from 0."""
    decayed = (base - end) * (1 - min(step, total) / total) ** power + end
    return decayed * (min(1.0, step / warmup) if warmup else 1.0)


def clip(gradients, limit):
    norm = np.sqrt(sum(np.sum(np.square(g, dtype=np.float64)) for g in gradients))
    if limit is None or norm <= limit:
        return list(gradients), norm
    return [g * (limit / norm) for g in gradients], norm


class AdamW:
    """Adam of the original: no bias correction by default, decay in the update.

    The betas are rounded to float32, as in a float32 program: 1 - 0.999 then differs
    from 0.001 by a relative 1.3e-5.
    """

    def __init__(
        self,
        decayed,
        weight_decay=0.01,
        beta_1=0.9,
        beta_2=0.999,
        epsilon=1e-6,
        bias_correction=False,
        clip_norm=1.0,
        factors=None,
    ):
        self.decayed = decayed
        self.weight_decay = weight_decay
        self.beta_1, self.beta_2 = float(np.float32(beta_1)), float(np.float32(beta_2))
        self.epsilon = epsilon
        self.bias_correction = bias_correction
        self.clip_norm = clip_norm
        self.factors = factors or [1.0] * len(decayed)
        self.m = [0.0] * len(decayed)
        self.v = [0.0] * len(decayed)
        self.step = 0
        self.norm = None

    def apply(self, gradients, weights, rate):
        gradients, self.norm = clip(gradients, self.clip_norm)
        self.step += 1
        result = []
        for i, (g, w) in enumerate(zip(gradients, weights, strict=True)):
            g = np.asarray(g, np.float64)
            self.m[i] = self.beta_1 * self.m[i] + (1 - self.beta_1) * g
            self.v[i] = self.beta_2 * self.v[i] + (1 - self.beta_2) * g * g
            scale = 1.0
            if self.bias_correction:
                scale = np.sqrt(1 - self.beta_2**self.step)
                scale /= 1 - self.beta_1**self.step
            update = scale * self.m[i] / (np.sqrt(self.v[i]) + self.epsilon)
            if self.decayed[i]:
                update = update + self.weight_decay * w
            result.append(w - rate * self.factors[i] * update)
        return result
