"""Syntax of ``--search``: hyperparameters with their ranges or values."""

from electra_tf.config.fields import require
from electra_tf.errors import did_you_mean

# Searchable fine-tuning flags.
_NAMES = (
    *("learning_rate", "epochs", "dropout", "attention_dropout", "layerwise_decay"),
    *("weight_decay", "warmup_proportion"),
)


def parse_axis(text: str) -> tuple[str, tuple[float, ...], bool]:
    """Parses NAME, NAME=LOW:HIGH or NAME=VALUE/VALUE/...

    Returns the name, the numbers (empty for the default range), and whether they are a
    range. Raises UserError for other text.
    """
    name, equals, given = text.partition("=")
    require(
        name in _NAMES,
        f"--search={text}: {name} cannot be searched.{did_you_mean(name, _NAMES)} "
        f"Allowed are {', '.join(_NAMES)}.",
    )
    if not equals:
        return name, (), True
    is_range = ":" in given
    try:
        numbers = tuple(map(float, given.split(":" if is_range else "/")))
    except ValueError:
        numbers = ()
    is_ascending = len(numbers) == 2 and numbers[0] < numbers[1]
    is_list = len({*numbers}) == len(numbers) > 1
    require(
        is_ascending if is_range else is_list,
        f"--search={text}: {name}= needs a range with the smaller end first, such as "
        "1e-4:1e-3, or several values, such as 2/4/8.",
    )
    return name, numbers, is_range
