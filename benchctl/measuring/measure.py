"""Measures one planned generation: decode under the clock, then, outside it, text, memory and verdict into a row."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from benchctl.decoding.loop import Generation, Limits, decode
from benchctl.decoding.method import Method
from benchctl.decoding.sampling import Sampling
from benchctl.decoding.target import Target
from benchctl.decoding.tiers import Timer
from benchctl.measuring.conversation import Histories
from benchctl.measuring.fit import cut_prompt, fits
from benchctl.measuring.machine import peak_memory_bytes, reset_peak_memory
from benchctl.measuring.plan import SESSION, Task
from benchctl.measuring.prompts import Prompt
from benchctl.measuring.verdict import Judgement, Referee
from benchctl.records import Row


@dataclass(frozen=True)
class Terms:
    """What every generation of a run is decoded under, whatever its method. With `cut` a prompt that does not fit into
    the context keeps its last tokens; without, it is a failed generation."""

    max_new_tokens: int
    sampling: Sampling
    cut: bool = False


@dataclass
class Spent:
    """Seconds that went into generations (prefill and steps) and into controls; the rest of a run is the harness."""

    generations_s: float = 0.0
    controls_s: float = 0.0


@dataclass
class Measurer:
    """Turns tasks into rows, prompt by prompt: `begin_prompt`, then `measure` or `recall` each task of it in order."""

    target: Target
    methods: Mapping[str, Method]
    baseline: str
    terms: Terms
    clock: Callable[[], float]
    device: str = "cpu"
    notify: Callable[[str], None] = lambda notice: None
    timer: Timer | None = None
    spent: Spent = field(default_factory=Spent)

    def __post_init__(self) -> None:
        self._referee = Referee(self.target, self._ask_baseline)

    def begin_prompt(self, prompt: Prompt) -> None:
        """Start with empty histories and no known answers."""
        self._histories = Histories(prompt)
        self._referee.forget()

    def measure(self, task: Task) -> Row:
        """Decode and judge. Whatever goes wrong in a method becomes a row with `error` and no numbers."""
        started_s = self.clock()
        try:
            return self._measure(task)
        except Exception as problem:
            self.spent.generations_s += self.clock() - started_s
            return _failed_row(task, problem)

    def recall(self, task: Task, row: Row) -> None:
        """Take up a row that is already in the file: later turns and verdicts build on it."""
        if row.error is None:
            self._histories.remember(task.label, task.repeat, task.turn, row.text)
            if task.label == self.baseline:
                self._referee.remember(self._prompt_ids(task), row.token_ids)

    def _measure(self, task: Task) -> Row:
        prompt_ids = self._prompt_ids(task)
        reset_peak_memory(self.device)
        generation = self._decode(task.label, prompt_ids, answer_seed(task))
        memory_bytes = peak_memory_bytes(self.device)
        self.spent.generations_s += generation.ttft_s + sum(generation.step_s)
        text = self.target.tokenizer.decode_text(generation.token_ids)
        started_s = self.clock()
        judgement = self._judge(task, prompt_ids, generation)
        self.spent.controls_s += self.clock() - started_s
        self._histories.remember(task.label, task.repeat, task.turn, text)
        return _row(task, len(prompt_ids), generation, text, memory_bytes, judgement)

    def _prompt_ids(self, task: Task) -> list[int]:
        chat = self._histories.messages(task.label, task.repeat, task.turn)
        prompt_ids = self.target.tokenizer.encode_chat(chat)
        context_tokens = self.target.context_tokens
        if self.terms.cut:
            return cut_prompt(prompt_ids, context_tokens, self.terms.max_new_tokens)
        if not fits(len(prompt_ids), context_tokens):
            raise ValueError(f"the prompt's {len(prompt_ids)} tokens do not fit into the context of {context_tokens}")
        return prompt_ids

    def _decode(self, label: str, prompt_ids: list[int], seed: int) -> Generation:
        limits = Limits(max_new_tokens=self.terms.max_new_tokens)
        sampling, method = self.terms.sampling, self.methods[label]
        return decode(method, self.target, prompt_ids, limits, sampling, self.clock, seed, self.timer)

    def _judge(self, task: Task, prompt_ids: list[int], generation: Generation) -> Judgement:
        if not self.terms.sampling.greedy:
            return Judgement(None if task.label == self.baseline else "sampled")
        if task.label != self.baseline:
            return self._referee.judge(prompt_ids, generation.token_ids)
        if not self._referee.remember(prompt_ids, generation.token_ids):
            self.notify(
                f"{self.baseline} did not repeat its own answer to {task.prompt.suite} {task.prompt.id}; "
                "verdicts compare with its first one."
            )
        return Judgement()

    def _ask_baseline(self, prompt_ids: list[int]) -> tuple[int, ...]:
        return tuple(self._decode(self.baseline, prompt_ids, 0).token_ids)


def answer_seed(task: Task) -> int:
    """The seed of one answer: another one for each prompt, turn and repeat, the same for every label and process."""
    name = f"{task.prompt.suite}\n{task.prompt.id}\n{task.turn}\n{task.repeat}"
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:6], "big")


def _row(
    task: Task, prompt_tokens: int, generation: Generation, text: str, memory_bytes: int, judgement: Judgement
) -> Row:
    steps = generation.steps
    return Row(
        suite=task.prompt.suite,
        prompt_id=task.prompt.id,
        turn=task.turn,
        label=task.label,
        repeat=task.repeat,
        session=SESSION,
        order=task.order,
        prompt_tokens=prompt_tokens,
        token_ids=tuple(generation.token_ids),
        text=text,
        stop_reason=generation.stop_reason,
        ttft_s=generation.ttft_s,
        step_s=tuple(generation.step_s),
        committed=tuple(len(step.tokens) for step in steps),
        drafted=tuple(step.drafted for step in steps),
        accepted=tuple(step.accepted for step in steps),
        rows=tuple(step.rows for step in steps),
        layers=tuple(generation.layers),
        counters=dict(generation.counters),
        peak_memory_bytes=memory_bytes,
        verdict=judgement.verdict,
        first_divergence=judgement.first_divergence,
        margin=judgement.margin,
        noise=judgement.noise,
    )


def _failed_row(task: Task, problem: Exception) -> Row:
    message = f"{type(problem).__name__}: {problem}".strip()
    return Row(
        suite=task.prompt.suite,
        prompt_id=task.prompt.id,
        turn=task.turn,
        label=task.label,
        repeat=task.repeat,
        session=SESSION,
        order=task.order,
        prompt_tokens=0,
        error=message,
    )
