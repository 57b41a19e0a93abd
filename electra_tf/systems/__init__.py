"""Building models, phases and optimizers from a config, and counting their cost."""
