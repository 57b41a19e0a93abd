"""Settings of a records build."""

from __future__ import annotations

import dataclasses
from typing import Any

from electra_tf.errors import UserError

_LARGEST_SHARD = 65_536


@dataclasses.dataclass(frozen=True, kw_only=True)
class BuildSettings:
    """Settings that determine the records; see ``RecordsConfig``.

    Raises ``ValueError`` if a number is out of range.
    """

    max_seq_length: int = 128
    segmenting: str = "carry"
    lower_case: bool = True
    strip_accents: bool = True
    blank_lines_separate: bool = True
    eval_fraction: float = 0.01
    seed: int = 0
    shard_megabytes: float = 48
    dedup: str = "none"
    near_similarity: float = 0.8
    min_characters: int = 0
    max_characters: int | None = None
    min_letters: float = 0.0
    max_repeated_lines: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.eval_fraction < 1:
            raise UserError(
                f"eval_fraction must be in [0, 1), got {self.eval_fraction}"
            )
        if not 0.01 <= self.shard_megabytes <= _LARGEST_SHARD:
            raise UserError(
                f"shard_megabytes must be from 0.01 to {_LARGEST_SHARD}, got "
                f"{self.shard_megabytes}"
            )

    def described(self) -> dict[str, Any]:
        """Returns the settings for the manifest, without filters at their defaults."""
        return {
            name: value
            for name, value in dataclasses.asdict(self).items()
            if name not in FILTERS or value != getattr(BuildSettings, name)
        }

    @property
    def selects(self) -> bool:
        """Whether document filters or deduplication are enabled."""
        return not self.described().keys().isdisjoint(FILTERS)


FILTERS = (
    "dedup",
    "near_similarity",
    "min_characters",
    "max_characters",
    "min_letters",
    "max_repeated_lines",
)
