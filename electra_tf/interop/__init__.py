"""Weights in and out: formats of other libraries."""
