"""Pretraining and fine-tuning runs: prepare, train, finish."""
