"""Keras serialization of layers, models and schedules."""

import functools
import inspect
import json
from collections.abc import Mapping
from typing import Any, Self

import keras
from keras.src.backend.common import global_state
from keras.src.saving.serialization_lib import ObjectSharingScope


class Serializable:
    """Derives the Keras config from the constructor's arguments.

    Mix in before the Keras class or use alone. Each argument must be an attribute of
    the same name; ``**kwargs`` adds those of base classes. Shared objects stay shared.
    """

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor arguments as JSON values."""
        if _is_sharing():
            # During saving, Keras serializes nested and shared objects itself.
            return self._live_config()
        with ObjectSharingScope():
            config = keras.saving.serialize_keras_object(self._live_config())
        numbers: dict[int, int] = {}

        def number(part: dict[str, Any]) -> dict[str, Any]:
            """Replaces ids of objects, memory addresses, by 1, 2, ..."""
            own = part.pop("shared_object_id", None)
            # Dtype policies are stateless.
            if own and not part["class_name"].endswith("DTypePolicy"):
                part["shared_object_id"] = numbers.setdefault(own, len(numbers) + 1)
            return part

        return json.loads(json.dumps(config), object_hook=number)

    def _live_config(self) -> dict[str, Any]:
        try:
            config = getattr(super(), "get_config", dict)()
        except NotImplementedError:
            # Keras's abstract schedule has no config.
            config = {}
        for name in argument_names(type(self)):
            value = getattr(self, name)
            config[name] = list(value) if isinstance(value, tuple) else value
        return config

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Builds an object from ``get_config``; also takes live objects."""
        if not _is_sharing():
            with ObjectSharingScope():
                return cls.from_config(config)
        parts = {
            name: keras.saving.deserialize_keras_object(value)
            if isinstance(value, dict) and "class_name" in value
            else value
            for name, value in config.items()
        }
        layers = [x for x in parts.values() if isinstance(x, keras.layers.Layer)]
        inside = [each for layer in layers for each in layer._flatten_layers()]
        flags = [(layer, layer.trainable) for layer in inside]
        instance = cls(**parts)
        if config.get("trainable") is False:
            # Keras freezes sublayers only if the attribute changes after construction.
            instance.trainable = True
            instance.trainable = False
            # Outer layers come first, since they set the flags of inner ones.
            for layer, is_trained in flags:
                layer.trainable = is_trained
        return instance

    def build_from_config(self, config: Mapping[str, Any]) -> None:
        # Keras's own method warns if the first inputs are dictionaries.
        if not self.built:
            super().build_from_config(config)


def _is_sharing() -> bool:
    """Returns True if Keras or ``Serializable`` tracks shared objects."""
    tracked = global_state.get_global_attribute("shared_objects/id_to_config_map")
    return tracked is not None


@functools.cache
def argument_names(cls: type) -> tuple[str, ...]:
    """Returns the names of the constructor's arguments, base classes first."""
    names: list[str] = []
    for each in cls.__mro__[: cls.__mro__.index(Serializable)]:
        if "__init__" not in vars(each):
            continue
        parameters = list(inspect.signature(each.__init__).parameters.values())[1:]
        names[:0] = [p.name for p in parameters if p.kind is not p.VAR_KEYWORD]
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            break
    return tuple(dict.fromkeys(names))


def fresh_copy(model: keras.Model, dtype: str | None = None, **others: Any) -> Any:
    """Returns an uncompiled copy of a model with newly initialized weights.

    The model must create its variables in ``__init__``. ``dtype`` is the name of the
    copy's dtype policy, or None to keep each layer's. ``others`` replace values of the
    config, such as ``dropout``, in all layers that have them.
    """
    config = keras.saving.serialize_keras_object(model)
    config.pop("compile_config", None)
    if dtype is not None:
        others["dtype"] = dtype

    def replace(part: dict[str, Any]) -> dict[str, Any]:
        return part | {key: x for key, x in others.items() if key in part}

    config = json.loads(json.dumps(config), object_hook=replace)
    # The class may be a user's own, and not registered.
    with keras.saving.custom_object_scope({type(model).__name__: type(model)}):
        return keras.saving.deserialize_keras_object(config)
