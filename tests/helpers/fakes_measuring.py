"""Stand-ins for what a run measures: a clock that ticks by itself, methods that lie and break."""

from __future__ import annotations

from dataclasses import dataclass

from benchctl.decoding.method import Context, Method
from benchctl.measuring.measure import Measurer
from benchctl.measuring.plan import Task
from benchctl.measuring.prompts.files import Prompt
from benchctl.records.schema import Row


class FakeClock:
    """One second passes between any two readings."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        self.now_s += 1.0
        return self.now_s


@dataclass
class Plain(Method):
    """The baseline, in the fewest words."""

    def step(self, context: Context) -> tuple[int]:
        context.stream.push(context.tokens[-1:])
        context.stream.advance()
        token = context.pick(context.stream.logits())
        context.stream.keep((0,))
        return (token,)


@dataclass
class Lying(Plain):
    """Says another token than the target's from its second one on; `shift` 0 makes it honest."""

    shift: int = 1

    def step(self, context: Context) -> tuple[int]:
        (token,) = super().step(context)
        return (3 + (token + self.shift) % (context.target.vocabulary - 3) if self.shift else token,)


@dataclass
class Broken(Plain):
    """Fails on its third token."""

    def step(self, context: Context) -> tuple[int]:
        if len(context.tokens) == context.prompt_tokens + 2:
            raise RuntimeError("out of luck")
        return super().step(context)


def task(label: str, *, turn: int = 0, repeat: int = 0, order: int = 0, prompt: Prompt | None = None) -> Task:
    return Task(prompt or Prompt("p", "koala", ("Say something.",)), turn, label, repeat, order)


def one(measurer: Measurer, task: Task) -> Row:
    """What measuring a task by itself gives."""
    (row,) = measurer.measure((task,))
    return row
