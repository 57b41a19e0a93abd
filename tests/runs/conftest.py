"""Corpus of the end-to-end tests."""

from tests.end_to_end.conftest import text

__all__ = ["text"]
