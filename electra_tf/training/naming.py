"""Names of all training state that do not depend on Keras' automatic numbers."""

import re

import keras


def named_variables(
    model: keras.Model, optimizer: keras.optimizers.Optimizer | None = None
) -> dict[str, keras.Variable]:
    """All state of a model and its optimizer under names that any process reproduces.

    Model variables are called `model/<path>`, with numbers Keras appended to automatic
    layer names replaced by the order among siblings; slots of the optimizer
    `optimizer/<slot>/<path>`, its scalars `optimizer/<name>`. Metrics are not included.

    Args:
        model: a built `keras.Model`.
        optimizer: a built optimizer of it, or None for the model alone.

    Returns:
        A dict of name to `keras.Variable`, in the order of creation.

    Raises:
        ValueError: two variables have the same name.
    """
    automatic = {
        layer.name
        for layer in model._flatten_layers()
        if re.fullmatch(rf"{_snake_case(type(layer).__name__)}(_\d+)?", layer.name)
    }
    number = _SiblingNumbers(automatic)
    unique = {id(v): v for v in model.variables}.values()
    paths = [(v, number(v.path)) for v in unique]
    pairs = [(f"model/{path}", v) for v, path in paths]
    if optimizer is not None:
        by_key = {v.path.replace("/", "_"): path for v, path in paths}
        pairs += _optimizer_pairs(optimizer, by_key, "optimizer")
    names = [name for name, _ in pairs]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(
            f"several variables are called {', '.join(twice[:5])}; give the layers "
            "that own them different names."
        )
    return dict(pairs)


class _SiblingNumbers:
    """Replaces the numbers of automatic names by the order under the same parent."""

    def __init__(self, automatic):
        self._automatic = automatic
        self._given = {}

    def __call__(self, path):
        result = []
        for part in path.split("/"):
            result.append(self._renamed(tuple(result), part))
        return "/".join(result)

    def _renamed(self, parent, part):
        base = re.sub(r"_\d+$", "", part)
        if part not in self._automatic and base != "seed_generator":
            return part
        given = self._given.setdefault((parent, base), {})
        index = given.setdefault(part, len(given))
        return f"{base}_{index}" if index else base


def _optimizer_pairs(optimizer, by_key, prefix):
    inner = getattr(optimizer, "inner_optimizer", None)
    inner_ids = {id(v) for v in inner.variables} if inner else set()
    own = [v for v in optimizer.variables if id(v) not in inner_ids]
    pairs = [(f"{prefix}/{_slot_name(v, by_key)}", v) for v in own]
    return pairs + (_optimizer_pairs(inner, by_key, f"{prefix}/inner") if inner else [])


def _slot_name(variable, by_key):
    leaf = variable.path.rsplit("/", 1)[-1]
    owners = [key for key in by_key if leaf.startswith(f"{key}_")]
    if not owners:
        return leaf
    owner = max(owners, key=len)
    return f"{leaf[len(owner) + 1 :]}/{by_key[owner]}"


def _snake_case(name):
    name = re.sub(r"\W+", "", name)
    name = re.sub("(.)([A-Z][a-z]+)", r"\1_\2", name)
    return re.sub("([a-z])([A-Z])", r"\1_\2", name).lower()
