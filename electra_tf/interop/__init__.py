"""Pretrained weights of other libraries, in and out."""

from electra_tf.interop.imported import Imported, Sizes, Source, Tower

__all__ = ["Imported", "Sizes", "Source", "Tower"]
