"""One run: load the target once, prepare the methods, measure into one results file."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from benchctl import bundled
from benchctl.decoding.model.layers import Experts
from benchctl.decoding.model.target import Target, TargetInfo
from benchctl.decoding.modules.trainable import modules_sha256
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
from benchctl.measuring.clock import Clock, Timer, utc_now
from benchctl.measuring.machine.host import commit, machine_facts, usable_cores, versions
from benchctl.measuring.machine.meter import bandwidth_mb_s, make_meter
from benchctl.measuring.measure import DecodingConfig, Measurer, Timings
from benchctl.measuring.plan import ORDER, Plan
from benchctl.measuring.prompts.fit import fit_suite, messages
from benchctl.measuring.prompts.suites import Suite
from benchctl.measuring.session import Notice, Report, Session
from benchctl.measuring.settings import ModelSettings, PromptSettings
from benchctl.measuring.validity import Bounds, Watch
from benchctl.records.schema import MethodInfo, ModelInfo, Run, SuiteInfo
from benchctl.records.writer import Writer

EXECUTOR = "static"  # a preallocated cache, no compilation
ATTENTION = "bmm+sdpa"  # see decoding/model/kernels.py


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
    header = _run_record(checked, choices, models)
    with Writer(
        checked.out, header, resume=checked.settings.resume, notify=lambda text: report(Notice(text))
    ) as writer:
        return _measure(checked, choices, target, writer, report)


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


def _run_record(checked: CheckedRun, choices: Sequence[Choice], models: ModelStore) -> Run:
    """The first record of the results file: everything fixed before the first generation.

    `choices` are those of the checked run, with methods marked that turned out unsupported.
    """
    settings, names = checked.settings, checked.models
    target = models(names.target)
    traffic = traffic_of(target)
    draft = next(filter(None, (choice.draft_model(names.draft) for choice in choices if not choice.unsupported)), "")
    answers = settings.answers
    return Run(
        name=checked.out.stem,
        created=utc_now().isoformat(timespec="seconds"),
        command=settings.command,
        baseline=choices[0].label,
        target=model_info(names.target, target),
        draft=model_info(draft, models(draft)) if draft else None,
        suites=tuple(map(suite_info, checked.suites)),
        methods=tuple(map(method_info, choices)),
        dtype=checked.dtype,
        device=checked.device,
        executor=EXECUTOR,
        attention=ATTENTION,
        threads=settings.models.threads,
        temperature=answers.temperature,
        top_p=answers.top_p,
        top_k=answers.top_k,
        seed=answers.seed,
        max_new_tokens=answers.max_new_tokens,
        repeats=settings.repeat.repeats,
        batch_size=settings.batch_size,
        modes=settings.repeat.modes,
        context_fill=settings.prompts.context_fill,
        order=ORDER,
        step_bytes=traffic.step_bytes,
        cache_token_bytes=traffic.cache_token_bytes,
        machine={**machine_facts(checked.device), **_measured(checked)},
        versions=versions(),
        commit=commit(),
    )


def _measured(checked: CheckedRun) -> dict[str, float]:
    """Facts that take a second or two to measure."""
    if not checked.settings.watch:
        return {}
    bandwidth = bandwidth_mb_s(checked.device, checked.settings.models.threads)
    return {} if bandwidth is None else {"memory_bandwidth_mb_s": round(bandwidth, 1)}


def model_info(name: str, target: Target) -> ModelInfo:
    """A loaded model's facts and hashes. Of a folder only its name is recorded, not its path."""
    return ModelInfo(
        name=Path(name).resolve().name if Path(name).is_dir() else name,
        **{name: value for name, value in asdict(target.info).items() if name in ModelInfo.__dataclass_fields__},
        parameters=target.parameters,
        weights_sha256=target.weights_sha256,
        tokenizer_sha256=target.tokenizer.sha256,
        chat_template_sha256=target.tokenizer.chat_template_sha256,
    )


def suite_info(suite: Suite) -> SuiteInfo:
    return SuiteInfo(
        name=suite.name,
        source=suite.source,
        origin=suite.origin,
        sha256=suite.prompts_sha256,
        prompts=len(suite.prompts),
        own=suite.own,
        exact_answers={prompt.id: prompt.exact_answers for prompt in suite.prompts if any(prompt.exact_answers)},
    )


def method_info(choice: Choice) -> MethodInfo:
    method = choice.method
    return MethodInfo(
        label=choice.label,
        name=choice.name,
        options=choice.options,
        exactness=method.exactness,
        reason=method.reason,
        unsupported=choice.unsupported,
        modules_sha256=modules_sha256(choice.modules) if choice.modules and not choice.unsupported else "",
    )


@dataclass(frozen=True)
class Traffic:
    """Bytes that a step of one row at full depth reads: of weights, and of keys and values for each token before it and
    its own. 0 where that cannot be said."""

    step_bytes: int = 0
    cache_token_bytes: int = 0


def traffic_of(target: Target) -> Traffic:
    """Of a target's layers, final norm and head, each weight read once; of experts those that a token goes to. The one
    row of the embedding that a token takes is left out.

    Not said of a target with an encoder, nor of one that looks back through a window: what their caches cost does not
    grow with the text.

    A target of one layer whose weights are 1,000 numbers, a head of 500 and keys and values of 8 each in float32:
    `step_bytes` 6,000, `cache_token_bytes` 64.
    """
    if target.encoder is not None or any(block.attention.window is not None for block in target.blocks):
        return Traffic()
    step_bytes = target.final_norm.gain.nbytes + target.lm_head.weight.nbytes
    cache_token_bytes = 0
    for block in target.blocks:
        attention = block.attention
        linears = [attention.qkv, attention.out]
        norms = (block.attention_norm, block.mlp_norm, attention.query_norm, attention.key_norm)
        if isinstance(block.mlp, Experts):
            of_experts = block.mlp.gate_up.nbytes + block.mlp.down.nbytes
            step_bytes += block.mlp.router.nbytes + of_experts * block.mlp.top_k // len(block.mlp.gate_up)
        else:
            linears += [block.mlp.gate_up, block.mlp.down]
        step_bytes += sum(linear.weight.nbytes for linear in linears)
        step_bytes += sum(linear.bias.nbytes for linear in linears if linear.bias is not None)
        step_bytes += sum(norm.gain.nbytes for norm in norms if norm is not None)
        cache_token_bytes += 2 * attention.kv_heads * attention.head_dim * target.dtype.itemsize
    return Traffic(step_bytes, cache_token_bytes)
