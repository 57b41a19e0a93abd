"""Builds models, phases and optimizers from a config, and estimates their cost."""
