"""What methods remember from prompt to prompt, so that no repeat sees what an earlier repeat of its prompt wrote."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy

from benchctl.decoding.method import CarriesOver, Method
from benchctl.measuring.plan import Task


class Stores:
    """The store of each method that carries state over, for each prompt and repeat.

    With ``memory=run`` every repeat of a prompt begins with what the first repeats of the prompts before it left.
    Only the first repeat adds to that, so all repeats and sessions take the same steps.
    """

    def __init__(self, methods: Mapping[str, Method]) -> None:
        self._methods = {label: method for label, method in methods.items() if isinstance(method, CarriesOver)}
        self._remembering = {label for label, method in self._methods.items() if method.memory == "run"}
        self._kept: dict[str, object] = {}
        self._before: dict[str, object] = {}
        self._current: dict[str, object] = {}

    def begin(self) -> None:
        """Start on another prompt."""
        self._before = dict(self._kept)

    def open(self, task: Task) -> object:
        """The store of a generation, None for other methods: turns of one repeat share it."""
        method = self._methods.get(task.label)
        if method is None:
            return None
        if task.turn == 0 or task.label not in self._current:
            has_past = task.label in self._before
            self._current[task.label] = deepcopy(self._before[task.label]) if has_past else method.new_store()
        return self._current[task.label]

    def close(self, task: Task) -> None:
        """After a generation that did not fail."""
        if task.label in self._remembering and task.repeat == 0 and task.mode == "free":
            self._kept[task.label] = deepcopy(self._current[task.label])
