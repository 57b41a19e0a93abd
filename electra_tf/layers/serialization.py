"""How layers, models and schedules are saved by Keras and come back."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from typing import Any, Self

import keras


class Serializable:
    """A config made of the constructor's arguments, each an attribute of its name.

    Mix in before the Keras class (``class Dropout(Serializable, keras.layers.Layer)``)
    or alone. Arguments are those of every class between the object's own and this one,
    as long as ``**kwargs`` hands them on; what the Keras class has in its config is
    kept. Tuples become lists, which is what JSON has.

    Parts (layers, encoders, samplers) are in the config as live objects. Keras then
    serializes each part once, and one that two owners share is still one object when it
    is loaded; with parts that are serialized in ``get_config`` the tie would be lost
    without a word and the weights would not fit.
    """

    def get_config(self) -> dict[str, Any]:
        """Returns what ``from_config`` builds an equal object from, parts live."""
        try:
            config = getattr(super(), "get_config", dict)()
        except NotImplementedError:
            # Keras's abstract schedule, which has no arguments.
            config = {}
        for name in _arguments(type(self)):
            value = getattr(self, name)
            config[name] = list(value) if isinstance(value, tuple) else value
        return config

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Builds an object from ``get_config``, before or after serialization."""
        # Keras hands over what ``get_config`` returned: live parts when a model is
        # cloned, their serialized form when it is loaded.
        parts = {
            name: keras.saving.deserialize_keras_object(value)
            if isinstance(value, dict) and "class_name" in value
            else value
            for name, value in config.items()
        }
        return cls(**parts)

    def build_from_config(self, config: Mapping[str, Any]) -> None:
        """Creates the variables, unless the constructor has."""
        # Keras would call `build` with the shapes of the first inputs, dictionaries
        # included, and warn where that does not work.
        if not self.built:
            super().build_from_config(config)


@functools.cache
def _arguments(cls: type) -> tuple[str, ...]:
    """Names of the arguments of a constructor, its base classes' first."""
    names: list[str] = []
    for each in cls.__mro__[: cls.__mro__.index(Serializable)]:
        if "__init__" not in vars(each):
            continue
        parameters = list(inspect.signature(each.__init__).parameters.values())[1:]
        names[:0] = [p.name for p in parameters if p.kind is not p.VAR_KEYWORD]
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            break
    return tuple(dict.fromkeys(names))
