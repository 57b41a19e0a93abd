"""Frozen dataclasses of command-line flags; standard library only."""
