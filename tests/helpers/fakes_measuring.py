"""Stand-ins for what a run measures: a clock that ticks by itself, and methods that lie, break or skip layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from benchctl.decoding.batch import Batched
from benchctl.decoding.method import Context, Method
from benchctl.decoding.model.target import Target
from benchctl.decoding.sampling import Sampling
from benchctl.measuring.measure import DecodingConfig, Measurer
from benchctl.measuring.plan import Plan, Task
from benchctl.measuring.prompts.files import Prompt
from benchctl.records.schema import Row

TALKS = tuple(Prompt(str(number), "mt-bench", (f"Count to {number}.", "And back?")) for number in range(3))


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


def rows_of_plan(
    target: Target,
    methods: Mapping[str, Method],
    plan: Plan,
    sampling: Sampling = Sampling(),  # noqa: B008 frozen
) -> list[Row]:
    """Everything that a plan comes to; the first label is the baseline."""
    terms = DecodingConfig(5, sampling, batch_size=plan.batch_size)
    measurer = Measurer(target, methods, plan.labels[0], terms, FakeClock())
    rows: list[Row] = []
    for jobs in plan.by_batch():
        measurer.begin()
        rows += [row for job in jobs for row in measurer.measure(job)]
    return rows


@dataclass
class Shallower(Method, Batched):
    """Prompts run every layer but ``dropped``; of the others a step drops the second one more, later on."""

    dropped: int = 1
    later: int = 4

    exactness = "lossy"
    reason = "it leaves layers out"

    def start(self, context: Context) -> int:
        return context.pick(self._run(context, context.tokens, self.layers_at(context.target, 0)))

    def step(self, context: Context) -> tuple[int]:
        layers = self.layers_at(context.target, context.new_tokens)
        return (context.pick(self._run(context, context.tokens[-1:], layers)),)

    def layers_at(self, target: Target, new_tokens: int) -> Sequence[int]:
        layers = [layer for layer in range(target.layers) if layer != self.dropped]
        return layers if new_tokens < self.later else [layers[0], *layers[2:]]

    def _run(self, context: Context, tokens: Sequence[int], layers: Sequence[int]) -> Tensor:
        stream = context.stream
        stream.push(tokens)
        for layer in range(stream.target.layers):
            if layer in layers:
                stream.advance(layer + 1)
            else:
                stream.pass_by(layer, layer + 1)
        logits = stream.logits(stream.rows - 1)
        stream.keep(range(stream.rows))
        return logits
