"""One run: load the target once, prepare the methods, measure into one results file."""

from __future__ import annotations

import gc
import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Literal

import torch

from benchctl import bundled
from benchctl.decoding.drafting.texts import UsesTexts
from benchctl.decoding.method import Method
from benchctl.decoding.model.footprint import read_bytes
from benchctl.decoding.model.loading import files_sha256, form_sha256
from benchctl.decoding.model.opaque import OpaqueTarget
from benchctl.decoding.model.target import Target
from benchctl.decoding.model.tokenizer import talk
from benchctl.decoding.modules.folders import modules_sha256
from benchctl.decoding.sampling import Sampling
from benchctl.errors import OUT_OF_MEMORY, UserError
from benchctl.measuring.check import (
    STATIC,
    WHOLE,
    CheckedRun,
    Choice,
    check_tokenizers,
    choose_device,
    choose_methods,
    choose_models,
    load_suites,
    plan_of,
)
from benchctl.measuring.clock import Clock, Timer, utc_now
from benchctl.measuring.machine.host import commit, machine_facts, usable_cores, versions
from benchctl.measuring.machine.meter import bandwidth_mb_s, free_memory, make_meter
from benchctl.measuring.measure import DecodingConfig, Measurer
from benchctl.measuring.memory import NO_ROOM, describe, explained, memory_needs, prompt_tokens
from benchctl.measuring.passes import one_row_cost
from benchctl.measuring.plan import ORDER, Plan
from benchctl.measuring.prompts.fit import fit_suite
from benchctl.measuring.prompts.suites import Suite
from benchctl.measuring.session import Notice, Report, Session
from benchctl.measuring.settings import ModelSettings, PromptSettings
from benchctl.measuring.validity import Bounds, Watch
from benchctl.measuring.weights import WeightGuard
from benchctl.records.progress import unanswered
from benchctl.records.schema import OTHER_WEIGHTS, Exactness, Fact, MethodInfo, ModelInfo, Run, SuiteInfo
from benchctl.records.writer import Writer, read
from benchctl.registry import SHIPPED, build, doctor_result, source_sha256
from benchctl.serving.engine import Deployment, Engine

_DRAFT_ROOM = 128  # tokens that an engine may draft beyond the end of an answer
_CONTEXT_UNIT = 256  # an engine's context is a multiple, as some engines round it


@dataclass(frozen=True)
class RunSummary:
    """What a run did. `recalled` generations were in the file before; `failed` are some of the `measured` ones.

    `marked` rounds were disturbed (validity.py); no retry recovered the `lost` ones. `missing` are generations by label
    for which there was no memory.
    """

    measured: int
    recalled: int
    failed: int
    warm_up_rounds: int
    wall_s: float
    marked: int = 0
    lost: int = 0
    missing: Mapping[str, int] = field(default_factory=dict)


def model_store(dtype: str, device: str, weights: str = "auto", executor: str = STATIC) -> Callable[[str], Target]:
    """Loads each model of a run once, by embedded name, folder or hub id."""
    if executor == WHOLE:
        return cache(lambda name: OpaqueTarget.load_whole(bundled.resolve(name), dtype=dtype, device=device))
    return cache(lambda name: Target.load(bundled.resolve(name), dtype=dtype, device=device, weights=weights))


def run(checked: CheckedRun, report: Report) -> RunSummary:
    """Measure a checked run. A method of `all` that cannot run on this target is left out, and its reason recorded.

    Raises UserError for models that do not load, for a method that changes the target's weights or was asked for by
    name and has modules that do not fit this target,
    and for a results file that another run is writing or that has other settings. Engines are stopped at the end,
    whatever happens.
    """
    with ExitStack() as stack:
        for choice in checked.choices:
            if isinstance(choice.method, Engine):
                stack.callback(choice.method.stop)
        return _run(checked, report)


def _run(checked: CheckedRun, report: Report) -> RunSummary:
    settings = checked.settings

    def notify(text: str) -> None:
        report(Notice(text))

    torch.set_num_threads(settings.models.threads)
    needs = memory_needs(checked)
    if not all(need.is_met for need in needs):
        notify(f"This run may not fit into memory: it needs {describe(needs)}.")
    models = model_store(checked.dtype, checked.device, settings.models.weights, checked.executor)
    with explained("The target", needs):
        target = models(checked.models.target) if checked.has_target else None
        guard, clock = WeightGuard(target) if target is not None else None, Clock(checked.device)

    def prepared(choice: Choice) -> Choice:
        """With its method prepared, and the time that took. Raises UserError if that changed the target."""
        assert target is not None and guard is not None, "only engines are measured without a target"
        if draft := choice.draft_model(checked.models.draft):
            models(draft)  # loading it is no work of the method
        started_s = clock()
        made = choice.prepare(target, models, checked.models.draft)
        made = replace(made, prepare_s=clock() - started_s)
        guard.check(f"{choice.label}, while it was prepared,")
        return made

    def fitting(choice: Choice) -> Choice:
        """As prepared; where its models or modules do not fit into memory, unsupported: the others go on."""
        try:
            with explained(choice.label, needs):
                return prepared(choice)
        except UserError as error:
            if error.id != OUT_OF_MEMORY:
                raise
            notify(str(error))
        for each in choice.whole:  # `checked` holds them: what is prepared in part is dropped
            vars(each.method).clear()
        free_memory()
        # The header contains no sizes, so that --resume finds the same header.
        return replace(choice, method=build(choice.label), unsupported=NO_ROOM)

    deploy = partial(_deployed, deploy=cache(lambda: _deployment(checked, clock, notify)))
    choices = tuple(
        deploy(choice) if isinstance(choice.method, Engine) else fitting(choice) for choice in checked.choices
    )
    _check_same_engine(choices)
    for choice in choices:
        if choice.unsupported:
            notify(f"{choice.label} cannot run here: {choice.unsupported}.")
    header = _run_record(checked, choices, models, target)
    with Writer(checked.out, header, resume=settings.resume, notify=notify) as writer:
        usable = {choice.label: choice.method for choice in choices if not choice.unsupported}
        methods = {label: method for label, method in usable.items() if isinstance(method, Method)}
        engines = {label: method for label, method in usable.items() if isinstance(method, Engine)}
        meter = make_meter(
            checked.device,
            watch=settings.watch,
            engines_cpu_s=lambda: sum(engine.cpu_s() for engine in engines.values()),
        )
        config = _decoding_config(checked)
        measurer = Measurer(
            *(target, methods, header.baseline, config, clock, notify, Timer()),
            meter=meter,
            guard=guard,
            engines=engines,
            tokenizer=checked.tokenizer,
        )
        plan = plan_of(checked, list(usable))
        bounds = Bounds(len(usable_cores()) - settings.models.threads)
        watch = Watch(bounds, notify) if settings.watch else None
        session = Session(plan, measurer, writer, report, watch)
        # No garbage collection of the loaded objects: a full pass takes as long as many steps, at any time.
        gc.collect()
        gc.freeze()
        try:
            started_s = clock()
            session.measure(settings.repeat.warm_up)
            wall_s = clock() - started_s
        finally:
            gc.unfreeze()
        if guard is not None:
            guard.check("A method of this run")
        return RunSummary(
            measured=session.measured,
            recalled=session.done - session.measured,
            failed=session.failed,
            warm_up_rounds=session.warm_up_rounds,
            wall_s=wall_s,
            marked=watch.marked if watch else 0,
            lost=session.lost,
            missing=_missing(choices, plan) | (_out_of_memory(checked.out) if measurer.out_of_memory else Counter()),
        )


def _out_of_memory(file: Path) -> Counter[str]:
    """Generations by label for which there was no memory in any try."""
    stored = read(file)
    errors, _ = unanswered(stored.run, stored.rows)
    return Counter(key.label for key, error in errors.items() if error.startswith(OUT_OF_MEMORY))


def _missing(choices: Sequence[Choice], plan: Plan) -> Counter[str]:
    """Planned generations of the labels that were left out for lack of memory."""
    each = len(plan) // len(plan.labels)
    return Counter({choice.label: each for choice in choices if choice.unsupported == NO_ROOM})


def _deployment(checked: CheckedRun, clock: Callable[[], float], notify: Callable[[str], None]) -> Deployment:
    name, threads = checked.models.target, checked.settings.models.threads
    needed = max(prompt_tokens(checked)) + checked.settings.answers.max_new_tokens + _DRAFT_ROOM
    context_tokens = min(-(-needed // _CONTEXT_UNIT) * _CONTEXT_UNIT, checked.tokenizer.context_tokens)
    halves = checked.settings.models.weights == "float16" or checked.dtype in ("float16", "bfloat16")
    weights: Literal["F16", "F32"] = "F16" if halves else "F32"
    folder = str(bundled.resolve(name))
    return Deployment(name, folder, checked.dtype, weights, threads, context_tokens, clock, notify)


def _deployed(choice: Choice, deploy: Callable[[], Deployment]) -> Choice:
    """The choice with its engine running, and the time that took."""
    deployment = deploy()
    deployment.notify(f"{choice.label}: starting.")
    started_s = deployment.clock()
    return replace(choice.deploy(deployment), prepare_s=deployment.clock() - started_s)


def _check_same_engine(choices: Sequence[Choice]) -> None:
    """Raises UserError where an engine is compared with another one, or with another version or number format.

    A label of other weights, such as a quantised file, has a number format of its own.
    """
    engines = [choice for choice in choices if choice.engine is not None]
    for choice in engines[1:]:
        own_format = isinstance(choice.method, Engine) and choice.method.has_other_weights
        for fact in ("name", "version") if own_format else ("name", "version", "dtype"):
            mine, first = getattr(choice.engine, fact), getattr(engines[0].engine, fact)
            if mine != first:
                raise UserError(
                    "another_engine",
                    f"{choice.label}: its {fact} is {mine}, and that of the baseline {engines[0].label} is {first}. "
                    "Compare an engine with itself.",
                )


def _decoding_config(checked: CheckedRun) -> DecodingConfig:
    answers = checked.settings.answers
    sampling = Sampling(answers.temperature, answers.top_p, answers.top_k, answers.seed)
    cut = checked.settings.prompts.long_prompts == "cut"
    return DecodingConfig(answers.max_new_tokens, sampling, cut, checked.settings.batch_size, checked.filler)


@dataclass(frozen=True)
class OwnModel:
    """A user's own target, of `benchctl doctor --model`: name, methods, prepared or unsupported, and prompt ids."""

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
    if any(isinstance(choice.method, Engine) for choice in choices):
        raise UserError("engines_not_examined", "doctor examines methods of our own loop: name no engine.")
    if not choices:
        raise UserError("only_the_baseline", "autoregressive is the reference of every check: name another --method.")
    device, _ = choose_device(models)
    tokenizer = check_tokenizers(names, choices, notify)
    choices = [choice.fit(tokenizer, STATIC) for choice in choices]
    suites = [fit_suite(suite, tokenizer, "skip", notify) for suite in load_suites(asked, notify)]  # may be downloaded
    torch.set_num_threads(models.threads)
    store = model_store("float64", device)
    target = store(names.target)

    return OwnModel(
        name=names.target,
        target=target,
        choices=tuple(choice.prepare(target, store, names.draft) for choice in choices),
        drafts=lambda choice: store(draft) if (draft := choice.draft_model(names.draft)) else None,
        prompts=tuple(
            tokenizer.encode_chat(talk(prompt.turns[:1], [])) for suite in suites for prompt in suite.prompts
        ),
    )


def _run_record(
    checked: CheckedRun, choices: Sequence[Choice], models: Callable[[str], Target], target: Target | None
) -> Run:
    """The first record of the results file: everything fixed before the first generation.

    `choices` are those of the checked run, with methods marked that turned out unsupported.
    """
    settings, names = checked.settings, checked.models
    step_bytes, cache_token_bytes = (0, 0) if target is None else traffic_of(target)
    machine: dict[str, Fact] = {**machine_facts(checked.device)}
    stops = sorted(checked.tokenizer.stop_sources.items())
    machine["stop_ids_from"] = tuple(f"{index} {source}" for index, source in stops)
    bandwidth = bandwidth_mb_s(checked.device, settings.models.threads) if settings.watch else None
    if bandwidth is not None:
        machine["memory_bandwidth_mb_s"] = round(bandwidth, 1)
    runs_one_row = choices[0].engine is None and settings.batch_size == 1
    if settings.watch and runs_one_row and target is not None and (cost := one_row_cost(target, Clock(checked.device))):
        machine["one_row_cost"] = round(cost, 3)
    draft = next(filter(None, (choice.draft_model(names.draft) for choice in choices if not choice.unsupported)), "")
    answers = settings.answers
    return Run(
        name=checked.out.stem,
        created=utc_now().isoformat(timespec="seconds"),
        command=settings.command,
        baseline=choices[0].label,
        target=_unloaded_info(checked) if target is None else model_info(names.target, target),
        draft=model_info(draft, models(draft)) if draft else None,
        suites=tuple(map(suite_info, checked.suites)),
        methods=tuple(method_info(choice, checked.has_target) for choice in choices),
        dtype=checked.dtype,
        weights="" if settings.models.weights == "auto" else settings.models.weights,
        device=checked.device,
        executor=f"{engine.name} {engine.version}".strip() if (engine := choices[0].engine) else checked.executor,
        attention="" if target is None else target.attention,
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
        step_bytes=step_bytes,
        cache_token_bytes=cache_token_bytes,
        prepare_s={choice.label: choice.prepare_s for choice in choices if choice.prepare_s is not None},
        machine=machine,
        versions=versions(),
        commit=commit(),
    )


def model_info(name: str, target: Target) -> ModelInfo:
    """A loaded model's facts and hashes. Of a folder or file only its name is recorded, not its path."""
    return ModelInfo(
        name=_model_name(name),
        **{name: value for name, value in asdict(target.info).items() if name in ModelInfo.__dataclass_fields__},
        parameters=target.parameters,
        weights_sha256=target.weights_sha256,
        tokenizer_sha256=target.tokenizer.sha256,
        chat_template_sha256=target.tokenizer.chat_template_sha256,
        stop_ids=tuple(sorted(target.stop_ids)),
    )


def _model_name(name: str) -> str:
    return Path(name).resolve().name if Path(name).exists() else name


def _unloaded_info(checked: CheckedRun) -> ModelInfo:
    """The target's facts and hashes by its files alone. Parameters are not counted."""
    name, tokenizer = checked.models.target, checked.tokenizer
    return ModelInfo(
        name=_model_name(name),
        family=tokenizer.config.model_type,
        layers=tokenizer.config.num_hidden_layers,
        hidden_size=tokenizer.config.hidden_size,
        parameters=0,
        vocabulary=tokenizer.vocabulary,
        context_tokens=tokenizer.context_tokens,
        weights_sha256=form_sha256(files_sha256(bundled.resolve(name)), checked.settings.models.weights),
        tokenizer_sha256=tokenizer.sha256,
        chat_template_sha256=tokenizer.chat_template_sha256,
        stop_ids=tuple(sorted(tokenizer.stop_ids)),
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
        categories={prompt.id: prompt.category for prompt in suite.prompts if prompt.category},
    )


def method_info(choice: Choice, has_target: bool = True) -> MethodInfo:
    if isinstance(choice.method, Engine):
        assert choice.engine is not None, "its engine runs"
        reason = "" if has_target else "benchctl cannot run its target, which alone could explain other tokens"
        # Rounding depends on the kernel: only in float32 it is too small to excuse another token.
        if choice.engine.dtype != "float32":
            reason = "outside float32 its kernels round in ways that cannot be measured"
        if not choice.method.sends_ids:
            reason = "its answers have no token ids, so they are not compared"
        if choice.method.has_other_weights:
            reason = OTHER_WEIGHTS
        exactness: Exactness = "lossy" if reason else "exact_greedy"
        return MethodInfo(
            label=choice.label,
            name=choice.name,
            options=choice.options,
            exactness=exactness,
            reason=reason,
            engine=choice.engine,
        )
    hashes = [] if choice.unsupported else [each for part in choice.whole for each in _data_sha256(part)]
    plug_ins = [part for part in choice.whole if part.name not in SHIPPED]
    found = {doctor_result(part.name, part.label) for part in plug_ins}
    return MethodInfo(
        label=choice.label,
        name=choice.name,
        options=choice.options,
        exactness=choice.method.exactness,
        reason=choice.method.reason,
        unsupported=choice.unsupported,
        modules_sha256="+".join(hashes),
        source_sha256="+".join(source_sha256(part.name) for part in plug_ins),
        doctor=max(found, key=("", "passed", "never", "failed").index, default=""),
    )


def _data_sha256(choice: Choice) -> list[str]:
    """Hashes of the trained modules and of the file of texts that a method loads, parts aside."""
    hashes = [modules_sha256(choice.modules)] if choice.modules else []
    if isinstance(choice.method, UsesTexts) and choice.method.texts:
        hashes.append(hashlib.sha256(Path(choice.method.texts).read_bytes()).hexdigest())
    return hashes


def traffic_of(target: Target) -> tuple[int, int]:
    """Bytes that a step of one row at full depth reads: of weights, and of keys and values for each token before it and
    its own. They are those of a target's layers, final norm and head, each weight read once; of experts those that a
    token goes to. The one row of the embedding that a token takes is left out.

    0, 0 for a target with an encoder, and one that looks back through a window: what their caches cost does not grow
    with the text. The same where transformers runs the layers, which may have windows.

    A target of one layer whose weights are 1,000 numbers, a head of 500 and keys and values of 8 each in float32:
    6,000 and 64.
    """
    if (
        target.info.opaque
        or target.encoder is not None
        or any(block.attention.window is not None for block in target.blocks)
    ):
        return 0, 0
    bias = target.lm_head.bias
    head_bytes = target.lm_head.weight_bytes + (0 if bias is None else bias.nbytes)
    norm_bytes = sum(tensor.nbytes for tensor in target.final_norm.tensors)
    step_bytes = norm_bytes + head_bytes + sum(map(read_bytes, target.blocks))
    values = sum(block.attention.kv_heads * block.attention.head_dim for block in target.blocks)
    return step_bytes, 2 * values * target.dtype.itemsize
