"""Compares systems at equal FLOPs over several seeds, with significance tests."""
