"""Measures a planned job: decode under the clock; then, outside it, text, memory and verdict into rows."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace

from benchctl.decoding.batch import decode_batch
from benchctl.decoding.experts.offload import Timer
from benchctl.decoding.loop import DecodeRequest, Generation, Reported, decode
from benchctl.decoding.method import CarriesOver, Method, labelled_parts
from benchctl.decoding.model.likelihood import logprobs
from benchctl.decoding.model.target import Target
from benchctl.decoding.model.tokenizer import TargetTokenizer, talk
from benchctl.decoding.modules.draft_vocabulary import ALL_TOKENS, DraftVocabulary, UsesDraftVocabulary
from benchctl.decoding.sampling import Sampling
from benchctl.errors import OUT_OF_MEMORY, UserError, is_out_of_memory
from benchctl.measuring.clock import cpu_s, wall_s
from benchctl.measuring.machine.meter import Meter, Reading, free_memory
from benchctl.measuring.plan import SESSION, Job, Task
from benchctl.measuring.prompts.files import Prompt
from benchctl.measuring.prompts.fit import Filler, cut_prompt
from benchctl.measuring.teacher_forcing import TeacherForcing
from benchctl.measuring.verdict import AnswerControl, BaselineAnswers, Judgement, Referee, pass_sizes
from benchctl.measuring.weights import WeightGuard
from benchctl.records.schema import Mode, Row, Totals
from benchctl.serving.engine import Engine, Question
from benchctl.serving.ledger import settle

# Rows of an engine's passes are unknown: these sizes show how much the target's own kernels round.
_ENGINE_SIZES = (2, 8)


@dataclass(frozen=True)
class DecodingConfig:
    """What all generations of a run have in common, whatever the method.

    cut         a prompt that does not fit into the context keeps its last tokens; otherwise its generation fails
    batch_size  prompts decoded together; 1 means no batches
    filler      text before every prompt
    """

    max_new_tokens: int
    sampling: Sampling
    cut: bool = False
    batch_size: int = 1
    filler: Filler = Filler()


@dataclass(frozen=True)
class Start:
    """When a generation started, in seconds since 1970, and the processor time that it took the process."""

    wall_s: float
    cpu_s: float


class Stores:
    """The store of each method that carries state over, for each prompt and repeat.

    No repeat sees what an earlier repeat of its prompt wrote.

    With ``memory=run`` every repeat of a prompt begins with what the first repeats of the prompts before it left.
    Only the first repeat adds to that, so all repeats and sessions take the same steps.
    """

    def __init__(self, methods: Mapping[str, Method]) -> None:
        self._methods = {label: method for label, method in methods.items() if isinstance(method, CarriesOver)}
        self._remembering = {label for label, method in self._methods.items() if method.memory == "run"}
        self._kept: dict[str, object] = {}
        self._before: dict[str, object] = {}
        self._current: dict[tuple[str, Mode], object] = {}

    def begin(self) -> None:
        """Start on another prompt."""
        self._before, self._current = dict(self._kept), {}

    def open(self, task: Task) -> object:
        """The store of a generation, None for other methods: turns of one repeat share it."""
        method = self._methods.get(task.label)
        if method is None:
            return None
        key = task.label, task.mode  # modes take turns, and must not see each other's answers
        if task.turn == 0 or key not in self._current:
            has_past = task.label in self._before
            self._current[key] = deepcopy(self._before[task.label]) if has_past else method.new_store()
        return self._current[key]

    def close(self, task: Task) -> None:
        """After a generation that did not fail."""
        if task.label in self._remembering and task.repeat == 0 and task.mode == "free":
            self._kept[task.label] = deepcopy(self._current[task.label, task.mode])


@dataclass
class Measurer:
    """Turns jobs into rows: `begin` a batch, then `measure` or `recall` its jobs in order.

    Engines can be measured without a target. Then nothing scores their answers, and the `tokenizer` has to be given.
    """

    target: Target | None
    methods: Mapping[str, Method]
    baseline: str
    config: DecodingConfig
    clock: Callable[[], float]
    notify: Callable[[str], None] = lambda notice: None
    timer: Timer | None = None
    meter: Meter = field(default_factory=Meter)
    guard: WeightGuard | None = None
    engines: Mapping[str, Engine] = field(default_factory=dict)
    out_of_memory: Counter[str] = field(default_factory=Counter)  # generations by label
    tokenizer: TargetTokenizer | None = None

    def __post_init__(self) -> None:
        if self.target is not None:
            self.guard = self.guard or WeightGuard(self.target)
        self._reported: set[tuple[str, str]] = set()
        self._stores = Stores(self.methods)

    def begin(self) -> None:
        """Start on another batch with empty histories and no known answers."""
        self._stores.begin()
        # The answers of this batch by turn; a forced text counts as one.
        self._histories: defaultdict[tuple[Prompt, str, int, Mode], dict[int, str]] = defaultdict(dict)
        self._answers = BaselineAnswers(lambda prompts: self._decode(self.baseline, list(map(self._request, prompts))))
        self._numbers: dict[tuple[int, ...], bool] = {}  # by prompt, whether the target's logits are
        self._referee = Referee(self.target, self._answers, lambda *texts: AnswerControl(self._own, *texts))
        self._teacher_forcing = TeacherForcing(self.target, self._answers) if self.target is not None else None

    @property
    def _own(self) -> Target:
        assert self.target is not None, "only engines are measured without a target"
        return self.target

    @property
    def _text(self) -> TargetTokenizer:
        return self.tokenizer or self._own.tokenizer

    @property
    def _facts(self) -> Target | TargetTokenizer:
        """The target or, without one, its tokenizer: both have context, vocabulary and stop ids."""
        facts = self.target or self.tokenizer
        assert facts is not None
        return facts

    def measure(self, job: Job) -> tuple[Row, ...]:
        """Decode and judge: a row for each task. Any exception of a method becomes rows with `error` and no numbers,
        for the whole batch: the rest of the batch would be another batch than the baseline's.

        Raises UserError where the weights of the target are no longer those it was loaded with.
        """
        ran_out = False
        try:
            rows = self._measure(job)
        except Exception as problem:
            rows = tuple(_empty_row(task, self._batch_ids(job), _in_words(problem)) for task in job)
            ran_out = is_out_of_memory(problem)
        if ran_out:  # the exception, which held what the generation had, is gone by now
            if job[0].repeat >= 0:  # warm-up is no part of the figures
                self.out_of_memory[job[0].label] += len(job)
            free_memory()
        if self.guard is not None:
            self.guard.check(job[0].label, sample=True)
        return rows

    def recall(self, task: Task, row: Row, goes_on: bool = False) -> None:
        """Take a row that is in the file already: later turns and verdicts build on it.

        Where the label `goes_on` with a later turn, a method that carries state over answers again, for the store that
        this leaves; if that fails, the later turn fails too.
        """
        if goes_on and row.error is None and isinstance(self.methods.get(task.label), CarriesOver):
            (again,) = self.measure((task,))
            row = row if again.error is None else again
        if row.error is None:
            self._history(task)[task.turn] = row.text
            if task.label == self.baseline:
                self._answers.remember(self._prompt_ids(task), row.token_ids)

    def _measure(self, job: Job) -> tuple[Row, ...]:
        requests, batch = self._requests(job), self._batch_ids(job)
        self.meter.start()
        started = Start(wall_s(), cpu_s())
        generations = self._decode(job[0].label, requests)
        started = replace(started, cpu_s=cpu_s() - started.cpu_s)
        reading = self.meter.stop()
        if job[0].label in self.engines:
            reading = reading.of_engine()
        self._stores.close(job[0])
        return tuple(
            self._row(task, batch, request, generation, reading, started)
            for task, request, generation in zip(job, requests, generations, strict=True)
        )

    def _requests(self, job: Job) -> list[DecodeRequest]:
        """What is to be decoded. The baseline's answers that verdicts and forced texts need are decoded first."""
        prompts, mode = [self._prompt_ids(task) for task in job], job[0].mode
        are_compared = self.config.sampling.greedy and all(engine.sends_ids for engine in self.engines.values())
        if are_compared and (job[0].label != self.baseline or mode == "replay"):
            self._answers.decode_together(prompts)
        return [
            replace(
                self._request(prompt_ids, answer_seed(task, greedy=self.config.sampling.greedy)),
                forced=self._answers.answer(prompt_ids) if mode == "replay" else None,
                profile=mode == "profile",
                store=self._stores.open(task),
            )
            for task, prompt_ids in zip(job, prompts, strict=True)
        ]

    def _decode(self, label: str, requests: Sequence[DecodeRequest]) -> tuple[Generation, ...]:
        """The answers to a batch of prompts, or to the only prompt of a run without batches."""
        if self.config.batch_size > 1:
            return decode_batch(self.methods[label], self._own, requests)
        (request,) = requests
        if label in self.engines:
            return (self._ask(label, request),)
        return (decode(self.methods[label], self._own, request),)

    def _ask(self, label: str, request: DecodeRequest) -> Generation:
        """An engine's answer, as our own loop would count it."""
        engine, target = self.engines[label], self._facts
        room = target.context_tokens - len(request.prompt_ids)
        limit = min(request.max_new_tokens, room)
        text = "" if engine.sends_ids else self._text.prompt_text(request.prompt_ids)
        question = Question(request.prompt_ids, limit, tuple(target.stop_ids), self.clock, text)
        engine.reset()
        return settle(
            engine.answer(question),
            question,
            drafts=label != self.baseline,
            limited_by_context=limit < request.max_new_tokens,
            vocabulary=target.vocabulary,
        )

    def _request(self, prompt_ids: Sequence[int], seed: int = 0) -> DecodeRequest:
        """The request for a free answer to a prompt."""
        config = self.config
        return DecodeRequest(prompt_ids, config.max_new_tokens, config.sampling, self.clock, seed, timer=self.timer)

    def _history(self, task: Task) -> dict[int, str]:
        return self._histories[task.prompt, task.label, task.repeat, task.mode]

    def _prompt_ids(self, task: Task) -> list[int]:
        """Raises ValueError when there is no answer to a turn before the task's, and for a prompt that does not fit."""
        answers = self._history(task)
        missing = [before for before in range(task.turn) if before not in answers]
        if missing:
            raise ValueError(f"turn {missing[0]} of this prompt failed, so turn {task.turn} has no history")
        chat = talk(task.prompt.turns[: task.turn + 1], [answers[before] for before in range(task.turn)])
        prompt_ids = self._text.encode_chat(chat)
        room = self._facts.context_tokens - len(self.config.filler.ids)
        if self.config.cut:
            prompt_ids = cut_prompt(prompt_ids, room, self.config.max_new_tokens)
        if len(prompt_ids) >= room:
            size = f"{len(prompt_ids)} tokens, and the context of {room} leaves no room for an answer"
            raise ValueError(f"prompt {task.prompt.id} has {size}")
        return self.config.filler.before(prompt_ids)

    def _batch_ids(self, job: Job) -> tuple[str, ...]:
        return tuple(task.prompt.id for task in job) if self.config.batch_size > 1 else ()

    def _row(
        self,
        task: Task,
        batch: tuple[str, ...],
        request: DecodeRequest,
        generation: Generation,
        reading: Reading,
        started: Start,
    ) -> Row:
        passes, reported = tuple(step.passes for step in generation.steps), generation.reported
        if reported is not None and reported.text is not None:
            text, judgement, fidelity = reported.text, Judgement(), dict[str, float]()
        else:
            text = self._text.decode_text(generation.token_ids)
            judgement, fidelity = self._control(task, request, generation, max(len(batch), 1))
        self._history(task)[task.turn] = text
        return replace(
            _empty_row(task, batch),
            prompt_tokens=len(request.prompt_ids),
            token_ids=tuple(generation.token_ids),
            text=text,
            stop_reason=generation.stop_reason,
            started_s=started.wall_s,
            cpu_s=started.cpu_s if reported is None else None,  # an engine works in other processes
            ttft_s=generation.ttft_s,
            step_s=tuple(generation.step_s),
            committed=tuple(len(step.tokens) for step in generation.steps),
            drafted=tuple(step.drafted for step in generation.steps),
            accepted=tuple(step.accepted for step in generation.steps),
            rows=tuple(step.rows for step in generation.steps if reported is None),
            passes=passes if set(passes) - {1} else (),
            layers=tuple(generation.layers),
            counters=dict(generation.counters) | self._vocabulary_of(task).counters(generation.token_ids),
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
            error=None,
            arrived_s=reported.arrived_s if reported and generation.token_ids else (),
            arrived_tokens=reported.arrived_tokens if reported else (),
            totals=None if reported is None or reported.by_step else _totals(generation, reported),
        )

    def _vocabulary_of(self, task: Task) -> DraftVocabulary:
        """That of the method; of a combination that of the first part with one."""
        if task.label in self.engines:
            return ALL_TOKENS
        method = self.methods[task.label]
        drafters = (method, *labelled_parts(method).values())
        vocabularies = (each.vocabulary for each in drafters if isinstance(each, UsesDraftVocabulary))
        return next((each for each in vocabularies if each.ids is not None), ALL_TOKENS)

    def _control(
        self, task: Task, request: DecodeRequest, generation: Generation, together: int
    ) -> tuple[Judgement, dict[str, float]]:
        """Verdict and fidelity of an answer. Where one fails, as for lack of memory, the times and the other one stay
        valid: the row has `failed_controls` or `failed_fidelity`."""
        judgement, failures = Judgement(), dict[str, Exception]()
        fidelity: dict[str, float] = {}
        try:
            judgement = self._judge(task, request, generation, together)
        except Exception as problem:
            failures["verdict"] = problem
        try:
            fidelity = self._fidelity(task, request, generation)
        except Exception as problem:
            failures["fidelity"] = problem
        for what, failure in failures.items():
            if (task.label, what) not in self._reported:
                self._reported.add((task.label, what))
                self.notify(
                    f"{task.label} answered {task.prompt.suite} {task.prompt.id}, but its {what} could not be "
                    f"computed: {_in_words(failure)}. Its times are kept. `compare` counts further failures of this "
                    "kind."
                )
        fields = {"verdict": "failed_controls", "fidelity": "failed_fidelity"}
        return judgement, judgement.evidence | fidelity | {fields[what]: 1.0 for what in failures}

    def _judge(self, task: Task, request: DecodeRequest, generation: Generation, together: int) -> Judgement:
        if task.mode == "replay":
            return Judgement()  # the text was forced
        if not self.config.sampling.greedy:
            return Judgement(None if task.label == self.baseline else "sampled")
        if task.label != self.baseline:
            self._check_numbers(request.prompt_ids)
            if generation.reported is not None:
                return self._referee.judge(request.prompt_ids, generation.token_ids, _ENGINE_SIZES, whole_answer=False)
            sizes = pass_sizes([step.rows for step in generation.steps], together)
            return self._referee.judge(request.prompt_ids, generation.token_ids, sizes)
        if not self._answers.remember(request.prompt_ids, generation.token_ids):
            self.notify(
                f"{self.baseline} did not repeat its own answer to {task.prompt.suite} {task.prompt.id}; "
                "verdicts compare with its first one."
            )
        return Judgement()

    def _check_numbers(self, prompt_ids: Sequence[int]) -> None:
        """Raises where logits of the baseline's answer are NaN: then it and every method choose token 0, and agree."""
        key = tuple(prompt_ids)
        if self.target is None:
            return
        if key not in self._numbers:
            parts = logprobs(self.target, prompt_ids, self._answers.answer(prompt_ids))
            self._numbers[key] = not any(bool(part.isnan().any()) for part in parts)
        if not self._numbers[key]:
            raise ArithmeticError("the target's logits are not numbers. Use another --dtype, or other weights")

    def _fidelity(self, task: Task, request: DecodeRequest, generation: Generation) -> dict[str, float]:
        """How the target scores a free answer, and the method's distributions; for a forced text, how often the method
        would have chosen the same token."""
        if generation.forced is not None:
            judged, agreed = generation.forced.judged, generation.forced.agreed
            return {"replay_judged_tokens": float(judged), "replay_agreed_tokens": float(agreed)}
        if self._teacher_forcing is None:
            return {}
        if generation.reported is not None and task.repeat >= 0:  # an engine's plain answers need not be the target's
            return self._teacher_forcing.sums(request.prompt_ids, generation.token_ids, also_equal=True)
        if task.label == self.baseline or task.mode != "free" or task.repeat < 0:
            return {}
        method, sums = self.methods[task.label], dict[str, float]()
        if self.config.sampling.greedy:
            sums |= self._teacher_forcing.sums(request.prompt_ids, generation.token_ids)
        if method.exactness == "lossy":
            sums |= self._teacher_forcing.divergence(method, replace(request, store=None), generation.token_ids)
        return sums


def answer_seed(task: Task, *, greedy: bool = False) -> int:
    """The seed of one answer: different for each prompt, turn and repeat, the same for every label and process.

    A retry has the seed of the planned repeat. A new seed would bias the sample: long texts are disturbed, and so
    drawn again, more often. Greedy repeats share a seed, so that a method that draws at random, as lookahead does for
    its first guesses, takes the same steps again: other steps then mean that it remembers (frame.build.remembering).
    """
    repeat = 0 if greedy else task.repeat if task.instead_of is None else task.instead_of
    name = f"{task.prompt.suite}\n{task.prompt.id}\n{task.turn}\n{repeat}"
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:6], "big")


def _totals(generation: Generation, reported: Reported) -> Totals:
    return Totals(
        new_tokens=len(generation.token_ids) or reported.new_tokens,
        steps=reported.steps,
        wall_s=generation.wall_s,
        drafted=reported.drafted,
        accepted=reported.accepted,
    )


def _empty_row(task: Task, batch: tuple[str, ...], error: str = "not measured") -> Row:
    """A row with an error and no numbers."""
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
        error=error,
    )


def _in_words(problem: Exception) -> str:
    name = problem.id if isinstance(problem, UserError) else type(problem).__name__
    name = OUT_OF_MEMORY if is_out_of_memory(problem) else name
    return f"{name}: {problem}".rstrip(": ")
