"""What a run tells while it works: one callback takes these, and the command line decides how they look."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Notice:
    """Something the user should know, in a sentence."""

    text: str


@dataclass(frozen=True)
class Progress:
    """`done` of `total` generations are in the file; `label` was the last one. In warm-up `done` does not move."""

    done: int
    total: int
    label: str = ""
    warm_up: bool = False


Report = Callable[[Notice | Progress], None]
