"""Imports and exports weights of other libraries."""
