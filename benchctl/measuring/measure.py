"""Measures a planned job: decode under the clock, then, outside it, text, memory and verdict into rows."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from benchctl.decoding.batch_loop import BatchPrompt, decode_batch
from benchctl.decoding.loop import Generation, Limits, decode
from benchctl.decoding.method import Method
from benchctl.decoding.sampling import Sampling
from benchctl.decoding.target import Target
from benchctl.decoding.tiers import Timer
from benchctl.measuring.conversation import Histories
from benchctl.measuring.fit import cut_prompt, fits
from benchctl.measuring.machine import peak_memory_bytes, reset_peak_memory
from benchctl.measuring.plan import SESSION, Job, Task
from benchctl.measuring.prompts import Prompt
from benchctl.measuring.verdict import Judgement, Referee
from benchctl.records import Row


@dataclass(frozen=True)
class Terms:
    """What every generation of a run is decoded under, whatever its method. With `cut` a prompt that does not fit into
    the context keeps its last tokens; without, it is a failed generation. A `batch_size` above 1 means batches."""

    max_new_tokens: int
    sampling: Sampling
    cut: bool = False
    batch_size: int = 1


@dataclass
class Spent:
    """Seconds that went into generations (prefill and steps) and into controls; the rest of a run is the harness."""

    generations_s: float = 0.0
    controls_s: float = 0.0


@dataclass
class Measurer:
    """Turns jobs into rows, batch by batch: `begin`, then `measure` or `recall` what is to be done with it in order."""

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

    def begin(self, prompts: Sequence[Prompt]) -> None:
        """Start on the prompts of a batch with empty histories and no known answers."""
        self._histories = {prompt: Histories(prompt) for prompt in prompts}
        self._referee.forget()

    def measure(self, job: Job) -> tuple[Row, ...]:
        """Decode and judge: a row for each task. Whatever goes wrong in a method becomes rows with `error` and no
        numbers, for the whole batch: what was left of it would be another batch than the baseline's."""
        started_s = self.clock()
        try:
            return self._measure(job)
        except Exception as problem:
            self.spent.generations_s += self.clock() - started_s
            return tuple(_failed_row(task, self._batch(job), problem) for task in job)

    def recall(self, task: Task, row: Row) -> None:
        """Take up a row that is already in the file: later turns and verdicts build on it."""
        if row.error is None:
            self._histories[task.prompt].remember(task.label, task.repeat, task.turn, row.text)
            if task.label == self.baseline:
                self._referee.remember(self._prompt_ids(task), row.token_ids)

    def _measure(self, job: Job) -> tuple[Row, ...]:
        prompts = [BatchPrompt(self._prompt_ids(task), answer_seed(task)) for task in job]
        reset_peak_memory(self.device)
        generations = self._decode(job[0].label, prompts)
        memory_bytes = peak_memory_bytes(self.device)
        self.spent.generations_s += max(generation.ttft_s + sum(generation.step_s) for generation in generations)
        return tuple(
            self._finish(task, self._batch(job), prompt, generation, memory_bytes)
            for task, prompt, generation in zip(job, prompts, generations, strict=True)
        )

    def _finish(
        self, task: Task, batch: tuple[str, ...], prompt: BatchPrompt, generation: Generation, memory_bytes: int
    ) -> Row:
        text = self.target.tokenizer.decode_text(generation.token_ids)
        started_s = self.clock()
        judgement = self._judge(task, list(prompt.ids), generation)
        self.spent.controls_s += self.clock() - started_s
        self._histories[task.prompt].remember(task.label, task.repeat, task.turn, text)
        return _row(task, batch, len(prompt.ids), generation, text, memory_bytes, judgement)

    def _batch(self, job: Job) -> tuple[str, ...]:
        return tuple(task.prompt.id for task in job) if self.terms.batch_size > 1 else ()

    def _prompt_ids(self, task: Task) -> list[int]:
        chat = self._histories[task.prompt].messages(task.label, task.repeat, task.turn)
        prompt_ids = self.target.tokenizer.encode_chat(chat)
        context_tokens = self.target.context_tokens
        if self.terms.cut:
            return cut_prompt(prompt_ids, context_tokens, self.terms.max_new_tokens)
        if not fits(len(prompt_ids), context_tokens):
            size = f"{task.prompt.id} has {len(prompt_ids)} tokens, which"
            raise ValueError(f"prompt {size} do not fit into the context of {context_tokens}")
        return prompt_ids

    def _decode(self, label: str, prompts: Sequence[BatchPrompt]) -> tuple[Generation, ...]:
        limits = Limits(max_new_tokens=self.terms.max_new_tokens)
        sampling, method = self.terms.sampling, self.methods[label]
        if self.terms.batch_size > 1:
            return decode_batch(method, self.target, prompts, limits, sampling, self.clock, self.timer)
        (prompt,) = prompts
        return (decode(method, self.target, prompt.ids, limits, sampling, self.clock, prompt.seed, self.timer),)

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
        (generation,) = self._decode(self.baseline, [BatchPrompt(prompt_ids)])
        return tuple(generation.token_ids)


def answer_seed(task: Task) -> int:
    """The seed of one answer: another one for each prompt, turn and repeat, the same for every label and process."""
    name = f"{task.prompt.suite}\n{task.prompt.id}\n{task.turn}\n{task.repeat}"
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:6], "big")


def _row(
    task: Task,
    batch: tuple[str, ...],
    prompt_tokens: int,
    generation: Generation,
    text: str,
    memory_bytes: int,
    judgement: Judgement,
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
        batch=batch,
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


def _failed_row(task: Task, batch: tuple[str, ...], problem: Exception) -> Row:
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
        batch=batch,
        error=message,
    )
