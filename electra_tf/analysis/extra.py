"""Imports pandas and jinja2, which the `analysis` extra installs."""

from electra_tf.errors import UserError

try:
    import jinja2
    import pandas
except ImportError as error:
    raise UserError(
        f"{error.name} is missing: pip install 'electra_tf[analysis]' (pandas and "
        "jinja2)."
    ) from error

__all__ = ["jinja2", "pandas"]
