"""Measures a planned job: decode under the clock, then, outside it, text, memory and verdict into rows."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from benchctl.decoding.batch import decode_batch
from benchctl.decoding.experts.tiers import Timer
from benchctl.decoding.loop import DecodeRequest, Generation, decode
from benchctl.decoding.method import Method
from benchctl.decoding.model.target import Target
from benchctl.decoding.sampling import Sampling
from benchctl.measuring.faithfulness import Faithfulness, Given
from benchctl.measuring.machine.meter import Meter, Reading
from benchctl.measuring.plan import SESSION, Job, Task
from benchctl.measuring.prompts.conversation import Histories
from benchctl.measuring.prompts.fit import Filler, cut_prompt, fits
from benchctl.measuring.prompts.prompt import Prompt
from benchctl.measuring.verdict import AnswerControl, Judgement, Referee, pass_sizes
from benchctl.records.schema import Row


@dataclass(frozen=True)
class Terms:
    """What every generation of a run is decoded under, whatever its method. With `cut` a prompt that does not fit into
    the context keeps its last tokens; without, it is a failed generation. A `batch_size` above 1 means batches. The
    `filler` stands before every prompt."""

    max_new_tokens: int
    sampling: Sampling
    cut: bool = False
    batch_size: int = 1
    filler: Filler = Filler()


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
    notify: Callable[[str], None] = lambda notice: None
    timer: Timer | None = None
    spent: Spent = field(default_factory=Spent)
    meter: Meter = field(default_factory=Meter)

    def __post_init__(self) -> None:
        self._referee = Referee(self.target, self._ask_baseline, partial(AnswerControl, self.target))
        self._faithfulness = Faithfulness(self.target)
        self._told_of: set[tuple[str, str]] = set()

    def begin(self, prompts: Sequence[Prompt]) -> None:
        """Start on the prompts of a batch with empty histories and no known answers."""
        self._histories = {prompt: Histories(prompt) for prompt in prompts}
        self._referee.forget()
        self._faithfulness.forget()

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
            self._histories[task.prompt].remember(task, row.text)
            if task.label == self.baseline:
                self._referee.remember(self._prompt_ids(task), row.token_ids)

    def _measure(self, job: Job) -> tuple[Row, ...]:
        prompts = [self._request(self._prompt_ids(task), answer_seed(task)) for task in job]
        if self.terms.sampling.greedy and (job[0].label != self.baseline or job[0].mode == "replay"):
            self._ask_together(prompts)
        if job[0].mode == "replay":
            prompts = [replace(prompt, forced=self._referee.answer(list(prompt.prompt_ids))) for prompt in prompts]
        prompts = [replace(prompt, profile=job[0].mode == "profile") for prompt in prompts]
        self.meter.start()
        generations = self._decode(job[0].label, prompts)
        reading = self.meter.stop()
        self.spent.generations_s += max(generation.ttft_s + sum(generation.step_s) for generation in generations)
        return tuple(
            self._finish(task, self._batch(job), prompt, generation, reading)
            for task, prompt, generation in zip(job, prompts, generations, strict=True)
        )

    def _finish(
        self, task: Task, batch: tuple[str, ...], prompt: DecodeRequest, generation: Generation, reading: Reading
    ) -> Row:
        text = self.target.tokenizer.decode_text(generation.token_ids)
        started_s = self.clock()
        judgement, fidelity = self._control(task, prompt, generation, max(len(batch), 1))
        self.spent.controls_s += self.clock() - started_s
        self._histories[task.prompt].remember(task, text)
        return _row(task, batch, len(prompt.prompt_ids), generation, text, reading, judgement, fidelity)

    def _control(
        self, task: Task, prompt: DecodeRequest, generation: Generation, together: int
    ) -> tuple[Judgement, dict[str, float]]:
        """What is found out about an answer once the clock has stopped. Where that fails, as for lack of memory, the
        generation is as good as it was: its row counts the `failed_controls`, and has what the others found."""
        judgement, failed = Judgement(), 0
        fidelity: dict[str, float] = {}
        try:
            judgement = self._judge(task, list(prompt.prompt_ids), generation, together)
        except Exception as problem:
            failed += self._tell(task, "its verdict", problem)
        try:
            fidelity = self._fidelity(task, prompt, generation)
        except Exception as problem:
            failed += self._tell(task, "how near it is to the target", problem)
        return judgement, judgement.evidence | fidelity | ({"failed_controls": float(failed)} if failed else {})

    def _tell(self, task: Task, what: str, problem: Exception) -> int:
        """Once for each label; 1, the failure that it was."""
        if (task.label, what) not in self._told_of:
            self._told_of.add((task.label, what))
            self.notify(
                f"{task.label} answered {task.prompt.suite} {task.prompt.id}, but {what} could not be found out: "
                f"{_in_words(problem)}. Its times are kept; of further failures like this compare has the number."
            )
        return 1

    def _batch(self, job: Job) -> tuple[str, ...]:
        return tuple(task.prompt.id for task in job) if self.terms.batch_size > 1 else ()

    def _prompt_ids(self, task: Task) -> list[int]:
        chat = self._histories[task.prompt].messages(task)
        prompt_ids = self.target.tokenizer.encode_chat(chat)
        room = self.target.context_tokens - len(self.terms.filler.ids)
        if self.terms.cut:
            prompt_ids = cut_prompt(prompt_ids, room, self.terms.max_new_tokens)
        if not fits(len(prompt_ids), room):
            size = f"{task.prompt.id} has {len(prompt_ids)} tokens, which"
            raise ValueError(f"prompt {size} do not fit into the context of {room}")
        return self.terms.filler.before(prompt_ids)

    def _decode(self, label: str, prompts: Sequence[DecodeRequest]) -> tuple[Generation, ...]:
        method = self.methods[label]
        if self.terms.batch_size > 1:
            return decode_batch(method, self.target, prompts)
        (prompt,) = prompts
        return (decode(method, self.target, prompt),)

    def _request(self, prompt_ids: Sequence[int], seed: int = 0) -> DecodeRequest:
        terms = self.terms
        return DecodeRequest(prompt_ids, terms.max_new_tokens, terms.sampling, self.clock, seed, timer=self.timer)

    def _judge(self, task: Task, prompt_ids: list[int], generation: Generation, together: int) -> Judgement:
        if task.mode == "replay":
            return Judgement()  # its text is none of its own
        if not self.terms.sampling.greedy:
            return Judgement(None if task.label == self.baseline else "sampled")
        if task.label != self.baseline:
            sizes = pass_sizes([step.rows for step in generation.steps], together)
            return self._referee.judge(prompt_ids, generation.token_ids, sizes)
        if not self._referee.remember(prompt_ids, generation.token_ids):
            self.notify(
                f"{self.baseline} did not repeat its own answer to {task.prompt.suite} {task.prompt.id}; "
                "verdicts compare with its first one."
            )
        return Judgement()

    def _fidelity(self, task: Task, prompt: DecodeRequest, generation: Generation) -> dict[str, float]:
        """What the target thinks of an answer that a method gave freely, and of its distributions; of a text that was
        forced upon it how often it would have said the same."""
        if generation.forced is not None:
            judged, agreed = generation.forced.judged, generation.forced.agreed
            return {"replay_judged_tokens": float(judged), "replay_agreed_tokens": float(agreed)}
        if task.label == self.baseline or task.mode != "free" or task.repeat < 0:
            return {}
        answer, method, found = generation.token_ids, self.methods[task.label], dict[str, float]()
        if self.terms.sampling.greedy:
            found |= self._faithfulness.sums(prompt.prompt_ids, answer, self._referee.answer(list(prompt.prompt_ids)))
        if method.exactness == "lossy":
            given = Given(self.terms.max_new_tokens, self.terms.sampling, prompt.seed)
            found |= self._faithfulness.divergence(method, prompt.prompt_ids, answer, given)
        return found

    def _ask_together(self, prompts: Sequence[DecodeRequest]) -> None:
        """Let the baseline answer a batch that it was not asked yet, untimed: as a batch, for alone its numbers may
        round differently."""
        if all(self._referee.knows(prompt.prompt_ids) for prompt in prompts):
            return
        started_s = self.clock()
        for prompt, generation in zip(prompts, self._decode(self.baseline, prompts), strict=True):
            self._referee.remember(prompt.prompt_ids, generation.token_ids)
        self.spent.controls_s += self.clock() - started_s

    def _ask_baseline(self, prompt_ids: list[int]) -> tuple[int, ...]:
        (generation,) = self._decode(self.baseline, [self._request(prompt_ids)])
        return tuple(generation.token_ids)


def answer_seed(task: Task) -> int:
    """The seed of one answer: another one for each prompt, turn and repeat, the same for every label and process.

    A repeat that is measured again draws the same answer again: by another one, texts that take long would be replaced
    by others more often, as more befalls them.
    """
    repeat = task.repeat if task.instead_of is None else task.instead_of
    name = f"{task.prompt.suite}\n{task.prompt.id}\n{task.turn}\n{repeat}"
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:6], "big")


def _row(
    task: Task,
    batch: tuple[str, ...],
    prompt_tokens: int,
    generation: Generation,
    text: str,
    reading: Reading,
    judgement: Judgement,
    fidelity: Mapping[str, float],
) -> Row:
    steps = generation.steps
    return Row(
        suite=task.prompt.suite,
        prompt_id=task.prompt.id,
        turn=task.turn,
        label=task.label,
        repeat=task.repeat,
        session=SESSION,
        mode=task.mode,
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
        phases=dict(generation.phases),
        peak_memory_bytes=reading.peak_memory_bytes,
        reserved_memory_bytes=reading.reserved_memory_bytes,
        energy_j=reading.energy_j,
        conditions=dict(reading.conditions),
        verdict=judgement.verdict,
        first_divergence=judgement.first_divergence,
        margin=judgement.margin,
        noise=judgement.noise,
        fidelity=fidelity,
    )


def _failed_row(task: Task, batch: tuple[str, ...], problem: Exception) -> Row:
    return Row(
        suite=task.prompt.suite,
        prompt_id=task.prompt.id,
        turn=task.turn,
        label=task.label,
        repeat=task.repeat,
        session=SESSION,
        mode=task.mode,
        order=task.order,
        prompt_tokens=0,
        batch=batch,
        error=_in_words(problem),
    )


def _in_words(problem: Exception) -> str:
    return f"{type(problem).__name__}: {problem}".strip()
