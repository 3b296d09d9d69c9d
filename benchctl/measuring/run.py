"""One run: load the target once, prepare the methods, measure into one results file."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from benchctl import bundled as packs
from benchctl.decoding.model.target import Target
from benchctl.decoding.sampling import Sampling
from benchctl.measuring.check import CheckedRun
from benchctl.measuring.choices import Choice
from benchctl.measuring.clock import Clock, Timer
from benchctl.measuring.header import model_info, run_record
from benchctl.measuring.machine.facts import traffic_of
from benchctl.measuring.machine.host import usable_cores
from benchctl.measuring.machine.meter import make_meter
from benchctl.measuring.measure import Measurer, Spent, Terms
from benchctl.measuring.plan import Plan
from benchctl.measuring.session import Notice, Report, Session
from benchctl.measuring.validity import Bounds, Watch
from benchctl.records.schema import Run
from benchctl.records.writer import Writer


@dataclass(frozen=True)
class RunSummary:
    """What a run did. `recalled` generations were in the file before; `failed` are of the `measured` ones. `marked`
    counts the rounds out of bounds, see validity.py; `lost` are those that were not made good by measuring again."""

    run: Run
    measured: int
    recalled: int
    failed: int
    warm_up_rounds: int
    wall_s: float
    spent: Spent
    marked: int = 0
    lost: int = 0

    @property
    def harness_share(self) -> float:
        """Measuring time that was neither a generation nor a control behind a verdict, as a share; loading left out."""
        harness_s = self.wall_s - self.spent.generations_s - self.spent.controls_s
        return harness_s / self.wall_s if self.wall_s else 0.0


class ModelStore:
    """Loads each model of a run once, whoever asks for it, by the names that packs knows."""

    def __init__(self, dtype: str, device: str) -> None:
        self._dtype, self._device = dtype, device
        self._loaded: dict[str, Target] = {}

    def __call__(self, name: str) -> Target:
        if name not in self._loaded:
            self._loaded[name] = Target.load(packs.resolve(name), dtype=self._dtype, device=self._device)
        return self._loaded[name]


def run(checked: CheckedRun, report: Report) -> RunSummary:
    """Measure a checked run. A method of `all` that cannot run on this target is left out, its reason recorded.

    Raises UserError for models that do not load, for a method asked for by name whose modules do not serve this target,
    and for a results file that another run holds or that has other settings.
    """
    torch.set_num_threads(checked.settings.models.threads)
    models = ModelStore(checked.dtype, checked.device)
    target = models(checked.models.target)
    choices = tuple(choice.prepare(target, models, checked.models.draft) for choice in checked.choices)
    for choice in choices:
        if choice.unsupported:
            report(Notice(f"{choice.label} cannot run here: {choice.unsupported}."))
    header = _header(checked, choices, models)
    with Writer(
        checked.out, header, resume=checked.settings.resume, notify=lambda text: report(Notice(text))
    ) as writer:
        return _measure(checked, choices, target, writer, report)


def _header(checked: CheckedRun, choices: Sequence[Choice], models: ModelStore) -> Run:
    names = checked.models
    draft = next(filter(None, (choice.draft_model(names.draft) for choice in choices if not choice.unsupported)), "")
    draft_info = model_info(draft, models(draft)) if draft else None
    target = models(names.target)
    return run_record(checked, choices, model_info(names.target, target), draft_info, traffic_of(target))


def _measure(
    checked: CheckedRun, choices: Sequence[Choice], target: Target, writer: Writer, report: Report
) -> RunSummary:
    clock = Clock(checked.device)
    methods = {choice.label: choice.method for choice in choices if not choice.unsupported}
    plan = _plan(checked, tuple(methods), writer.stored.run.name)
    measurer = Measurer(
        target,
        methods,
        choices[0].label,
        _terms(checked),
        clock,
        lambda text: report(Notice(text)),
        Timer(),
        meter=make_meter(checked.device, watch=checked.settings.watch),
    )
    watch = _watch(checked, lambda text: report(Notice(text))) if checked.settings.watch else None
    session = Session(plan, measurer, writer, report, watch)
    with _garbage_frozen():
        started_s = clock()
        session.measure(checked.settings.repeat.warm_up)
        wall_s = clock() - started_s
    return RunSummary(
        run=writer.stored.run,
        measured=session.measured,
        recalled=session.done - session.measured,
        failed=session.failed,
        warm_up_rounds=session.warm_up_rounds,
        wall_s=wall_s,
        spent=measurer.spent,
        marked=watch.marked if watch else 0,
        lost=session.lost,
    )


def _watch(checked: CheckedRun, notify: Callable[[str], None]) -> Watch:
    return Watch(Bounds(len(usable_cores()) - checked.settings.models.threads), notify)


def _plan(checked: CheckedRun, labels: tuple[str, ...], name: str) -> Plan:
    """`name` is that of the run's first line: a file that was renamed since goes on in its order."""
    prompts = tuple(prompt for suite in checked.suites for prompt in suite.prompts)
    settings, repeat = checked.settings, checked.settings.repeat
    order = repeat.order, settings.answers.seed, name
    return Plan(prompts, labels, repeat.repeats, settings.batch_size, repeat.modes, *order)


def _terms(checked: CheckedRun) -> Terms:
    answers = checked.settings.answers
    sampling = Sampling(answers.temperature, answers.top_p, answers.top_k, answers.seed)
    cut = checked.settings.prompts.long_prompts == "cut"
    return Terms(answers.max_new_tokens, sampling, cut, checked.settings.batch_size, checked.filler)


@contextmanager
def _garbage_frozen() -> Iterator[None]:
    """Keep what is loaded out of garbage collection: a full pass over it takes as long as many steps, and hits any."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
