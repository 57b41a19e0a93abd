"""Imports and exports weights of other libraries.

Doctests of this package share these names:

    >>> from electra_tf import interop
    >>> sizes = interop.Sizes(
    ...     vocab_size=100,
    ...     embedding_size=4,
    ...     max_positions=8,
    ...     num_segments=2,
    ...     num_layers=1,
    ...     hidden_size=4,
    ...     num_heads=2,
    ...     intermediate_size=8,
    ... )
"""

from electra_tf.interop.imported import Imported, Sizes, Source, Tower

__all__ = ["Imported", "Sizes", "Source", "Tower"]
