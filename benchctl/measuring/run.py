"""One run: load the target once, prepare the methods, measure into one results file."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from benchctl import bundled
from benchctl.decoding.model.target import Target, TargetInfo
from benchctl.decoding.sampling import Sampling
from benchctl.errors import UserError
from benchctl.measuring.check import (
    CheckedRun,
    Choice,
    check_tokenizers,
    choose_device,
    choose_methods,
    choose_models,
    load_suites,
)
from benchctl.measuring.clock import Clock, Timer
from benchctl.measuring.header import model_info, run_record, traffic_of
from benchctl.measuring.machine.host import usable_cores
from benchctl.measuring.machine.meter import make_meter
from benchctl.measuring.measure import DecodingConfig, Measurer, Timings
from benchctl.measuring.plan import Plan
from benchctl.measuring.prompts.fit import fit_suite, messages
from benchctl.measuring.session import Notice, Report, Session
from benchctl.measuring.settings import ModelSettings, PromptSettings
from benchctl.measuring.validity import Bounds, Watch
from benchctl.records.schema import Run
from benchctl.records.writer import Writer


@dataclass(frozen=True)
class RunSummary:
    """What a run did. `recalled` generations were in the file before; `failed` are some of the `measured` ones.

    `marked` rounds were disturbed (validity.py); no retry recovered the `lost` ones.
    """

    run: Run
    measured: int
    recalled: int
    failed: int
    warm_up_rounds: int
    wall_s: float
    timings: Timings
    marked: int = 0
    lost: int = 0

    @property
    def harness_share(self) -> float:
        """The share of the measuring time, loading left out, that was neither a generation nor a control."""
        harness_s = self.wall_s - self.timings.generations_s - self.timings.controls_s
        return harness_s / self.wall_s if self.wall_s else 0.0


class ModelStore:
    """Loads each model of a run once, by embedded name, folder or hub id."""

    def __init__(self, dtype: str, device: str) -> None:
        self._dtype, self._device = dtype, device
        self._loaded: dict[str, Target] = {}

    def __call__(self, name: str) -> Target:
        if name not in self._loaded:
            self._loaded[name] = Target.load(bundled.resolve(name), dtype=self._dtype, device=self._device)
        return self._loaded[name]


def run(checked: CheckedRun, report: Report) -> RunSummary:
    """Measure a checked run. A method of `all` that cannot run on this target is left out, and its reason recorded.

    Raises UserError for models that do not load, for a method asked for by name whose modules do not fit this target,
    and for a results file that another run is writing or that has other settings.
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
    def notify(text: str) -> None:
        report(Notice(text))

    clock = Clock(checked.device)
    methods = {choice.label: choice.method for choice in choices if not choice.unsupported}
    prompts = tuple(prompt for suite in checked.suites for prompt in suite.prompts)
    repeat = checked.settings.repeat
    plan = Plan(prompts, tuple(methods), repeat.repeats, checked.settings.batch_size, repeat.modes)
    measurer = Measurer(
        target,
        methods,
        choices[0].label,
        _decoding_config(checked),
        clock,
        notify,
        Timer(),
        meter=make_meter(checked.device, watch=checked.settings.watch),
    )
    bounds = Bounds(len(usable_cores()) - checked.settings.models.threads)
    watch = Watch(bounds, notify) if checked.settings.watch else None
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
        timings=measurer.timings,
        marked=watch.marked if watch else 0,
        lost=session.lost,
    )


def _decoding_config(checked: CheckedRun) -> DecodingConfig:
    answers = checked.settings.answers
    sampling = Sampling(answers.temperature, answers.top_p, answers.top_k, answers.seed)
    cut = checked.settings.prompts.long_prompts == "cut"
    return DecodingConfig(answers.max_new_tokens, sampling, cut, checked.settings.batch_size, checked.filler)


@contextmanager
def _garbage_frozen() -> Iterator[None]:
    """Exclude all loaded objects from garbage collection: a full pass takes as long as many steps, at any time."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@dataclass(frozen=True)
class OwnModel:
    """A user's own target for `benchctl verify`: its name, the methods, prepared or unsupported, and prompt ids."""

    name: str
    target: Target
    choices: tuple[Choice, ...]
    drafts: Callable[[Choice], Target | None]
    prompts: tuple[list[int], ...]


def prepare_own_model(
    methods: Sequence[str], asked: PromptSettings, models: ModelSettings, notify: Callable[[str], None]
) -> OwnModel:
    """Check everything, then load the models in float64, whatever they are stored in.

    Prompts that leave no room for an answer are left out; of several turns only the first is asked. Raises UserError
    for wrong labels, models or prompts, and for a method that cannot run on this target.
    """
    names = choose_models(models)
    _, *choices = choose_methods(methods, names)
    if not choices:
        raise UserError("only_the_baseline", "autoregressive is the reference of every check: name another --method.")
    device, _ = choose_device(models)
    tokenizer = check_tokenizers(names, choices)
    info = TargetInfo.of(tokenizer.config)
    choices = [choice.fit(info) for choice in choices]
    suites = load_suites(asked, notify)  # may be downloaded, so last
    suites = tuple(fit_suite(suite, tokenizer, "skip", notify) for suite in suites)
    torch.set_num_threads(models.threads)
    store = ModelStore("float64", device)
    target = store(names.target)

    def draft_of(choice: Choice) -> Target | None:
        draft = choice.draft_model(names.draft)
        return store(draft) if draft else None

    return OwnModel(
        name=names.target,
        target=target,
        choices=tuple(choice.prepare(target, store, names.draft) for choice in choices),
        drafts=draft_of,
        prompts=tuple(tokenizer.encode_chat(messages(prompt, [])) for suite in suites for prompt in suite.prompts),
    )
