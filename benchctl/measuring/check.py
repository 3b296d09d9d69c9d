"""Everything that can be wrong with a run, checked before any weights are loaded."""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

import torch

from benchctl import bundled, registry
from benchctl.decoding.batch import why_not_batched
from benchctl.decoding.drafting.texts import UsesTexts
from benchctl.decoding.drafting.vocabularies import SharedTokens
from benchctl.decoding.method import Combines, Method, UsesDraftModel, check_trees, why_unsupported
from benchctl.decoding.model.forms import quantised_form
from benchctl.decoding.model.loading import check_weights
from benchctl.decoding.model.opaque import check_opaque
from benchctl.decoding.model.target import Target, TargetInfo
from benchctl.decoding.model.tokenizer import TargetTokenizer, load_tokenizer
from benchctl.decoding.modules.draft_vocabulary import read_draft_vocabulary
from benchctl.decoding.modules.folders import check_fit, no_modules, read_facts, trained_options
from benchctl.decoding.modules.trainable import Trainable
from benchctl.decoding.sampling import check_temperature
from benchctl.errors import UserError
from benchctl.measuring.clock import utc_now
from benchctl.measuring.plan import Plan, rounds
from benchctl.measuring.prompts.fit import Filler, fit_suite, make_filler
from benchctl.measuring.prompts.suites import Suite, load_suite
from benchctl.measuring.settings import ModelSettings, PromptSettings, RunSettings
from benchctl.options import options_of
from benchctl.records.reader import row_key
from benchctl.records.schema import EngineInfo, Scalar
from benchctl.records.writer import check_output, read, scan
from benchctl.serving.engine import Deployment, Engine

# Who runs the layers: our own code with a preallocated cache, transformers, or none of them.
STATIC, WHOLE, NOBODY = "static", "transformers", ""
NO_DRAFT = "it needs a draft model; name one with --draft-model"
_NAMED = 2  # suites or labels in the name of a results file; more are counted


@dataclass(frozen=True)
class CheckedRun:
    """A run that can start: its settings, with every default and choice filled in. The baseline is choices[0]."""

    settings: RunSettings
    choices: tuple[Choice, ...]
    models: Models
    suites: tuple[Suite, ...]
    dtype: str
    device: str
    executor: str
    out: Path
    tokenizer: TargetTokenizer
    filler: Filler = Filler()

    @property
    def has_target(self) -> bool:
        """Whether benchctl itself runs the target. Engines are measured where it cannot, or where nothing compares."""
        method = self.choices[0].method
        return self.executor != NOBODY and (not isinstance(method, Engine) or method.sends_ids)

    @property
    def is_of_engines(self) -> bool:
        return isinstance(self.choices[0].method, Engine)


def check(settings: RunSettings, notify: Callable[[str], None]) -> CheckedRun:
    """Read prompts, tokenizers and configurations and check everything else. Raises UserError."""
    if "replay" in settings.repeat.modes and settings.answers.temperature > 0:
        # Acceptance of a draft depends on the text, so a forced text would change it.
        raise UserError("replay_needs_greedy", "--replay forces a greedy text: leave out --temperature, or --replay.")
    check_temperature(settings.answers.temperature)
    models = choose_models(settings.models)
    choices = choose_methods(settings.labels, models, settings.batch_size)
    if isinstance(choices[0].method, Engine):
        check_engine_settings(settings, choices[0].method, models.target)
    for choice in choices:
        if isinstance(choice.method, Engine):
            choice.method.check(models.target)
    device, dtype = choose_device(settings.models)
    check_out(settings.out, settings)
    tokenizer = check_tokenizers(models, choices, notify, settings.batch_size)
    drafts = {choice.draft_model(models.draft) for choice in choices if not choice.unsupported} - {""}
    executor = choose_executor(settings, (models.target, *sorted(drafts)), choices, notify)
    if executor == STATIC:
        check_weights(settings.models.weights, tokenizer.config, dtype, device)
    for name in (models.target, *sorted(drafts)) if executor != NOBODY else ():
        if form := quantised_form(load_tokenizer(bundled.resolve(name)).config):
            notify(
                f"{name}: its {form} weights are read as the {dtype} values that they stand for. So they take more "
                "memory and time than with kernels for this form."
            )
    choices = tuple(choice.fit(tokenizer, executor) for choice in choices)
    filler = make_filler(tokenizer, settings.prompts.context_fill)
    suites = load_suites(settings.prompts, notify)  # may be downloaded, so last
    out = settings.out or Path("results") / f"{name_run(suites, choices, settings.labels)}.jsonl"
    if settings.out is None:
        check_out(out, settings)
    room = tokenizer.context_tokens - len(filler.ids)
    suites = tuple(fit_suite(suite, tokenizer, settings.prompts.long_prompts, notify, room) for suite in suites)
    checked = CheckedRun(settings, choices, models, suites, dtype, device, executor, out, tokenizer, filler)
    remembering = [each.label for each in choices if getattr(each.method, "memory", "") == "run"]
    if remembering and settings.resume and _goes_on(checked):
        raise UserError(
            "memory_lost",
            f"--resume cannot restore what {', '.join(remembering)} remembered of the prompts before. Measure all of "
            "it again into another --out, or use memory=prompt.",
        )
    return checked


def plan_of(checked: CheckedRun, labels: Sequence[str] | None = None) -> Plan:
    """What a checked run will measure of ``labels``; default: of all that are supported."""
    settings = checked.settings
    if labels is None:
        labels = [choice.label for choice in checked.choices if not choice.unsupported]
    prompts = tuple(prompt for suite in checked.suites for prompt in suite.prompts)
    return Plan(prompts, tuple(labels), settings.repeat.repeats, settings.batch_size, settings.repeat.modes)


def _goes_on(checked: CheckedRun) -> bool:
    """Whether the file has measured rows, and lacks others or a retry."""
    if not checked.out.exists():
        return False
    with checked.out.open("rb") as file:
        if not file.readline().endswith(b"\n"):  # killed in its first line: it starts again
            return False
    rows = {row_key(row): row for row in scan(checked.out).rows if row.repeat >= 0}
    plan, may_retry = plan_of(checked), checked.settings.watch
    planned = chain.from_iterable(rounds(jobs) for jobs in plan.by_batch())
    return bool(rows) and any(plan.next_attempt(each, rows, may_retry) is not None for each in planned)


def check_engine_settings(settings: RunSettings, engine: Engine, target: str) -> None:
    """Raises UserError for settings that concern our own decoding: engines answer one prompt at a time, greedily."""
    if settings.models.weights == "float16" and not engine.runs_float16(target):
        raise UserError(
            "not_for_engines",
            "--weights float16 cannot be used: here the engine reads weights as they are. Leave it out.",
        )
    asked = {
        "--temperature": settings.answers.temperature > 0,
        "--replay": settings.repeat.replay,
        "--profile": settings.repeat.profile,
        "--batch-size": settings.batch_size > 1,
    }
    if wrong := [option for option, is_given in asked.items() if is_given]:
        raise UserError(
            "not_for_engines",
            f"{', '.join(wrong)} cannot be used: engines decode greedily, one prompt at a time. Leave "
            f"{'them' if len(wrong) > 1 else 'it'} out.",
        )


def choose_device(settings: ModelSettings) -> tuple[str, str]:
    """Device and dtype; "auto" is a GPU where there is one, bfloat16 on it and float32 on a CPU."""
    usable = torch.cuda.is_available()
    if settings.device == "cuda" and not usable:
        raise UserError("no_gpu", "This machine has no GPU that torch can use; run with --device cpu.")
    device = ("cuda" if usable else "cpu") if settings.device == "auto" else settings.device
    dtype = ("bfloat16" if device == "cuda" else "float32") if settings.dtype == "auto" else settings.dtype
    return device, dtype


def choose_executor(
    settings: RunSettings, names: Sequence[str], choices: Sequence[Choice], notify: Callable[[str], None]
) -> str:
    """Who runs the layers of these models: one executor for all, so that their passes can be compared.

    Engines are measured also where no executor can. Raises UserError for models that the executor cannot run, and for
    settings that it does not take.
    """
    of_engines = isinstance(choices[0].method, Engine)
    try:
        return _choose_executor(settings, names, of_engines, notify)
    except UserError as problem:
        if settings.models.executor != "auto" or not of_engines or problem.id == "not_for_transformers":
            raise
        notify(
            f"benchctl cannot run {names[0]}: {problem}. So target agreement stays empty: speed is measured, and "
            "whether answers equal those of the engine without speculation."
        )
        return NOBODY


def _choose_executor(
    settings: RunSettings, names: Sequence[str], of_engines: bool, notify: Callable[[str], None]
) -> str:
    asked, read = settings.models.executor, {name: load_tokenizer(bundled.resolve(name)) for name in names}
    problems = {name: problem for name, tokenizer in read.items() if (problem := _unknown(tokenizer))}
    if asked == STATIC or (asked == "auto" and not problems):
        if problems:
            raise next(iter(problems.values()))
        return STATIC
    for tokenizer in read.values():
        check_opaque(tokenizer.config)
    options = {"--weights": settings.models.weights != "auto", "--batch-size": settings.batch_size > 1}
    if wrong := [option for option, is_given in options.items() if is_given]:
        raise UserError(
            "not_for_transformers",
            f"{' and '.join(wrong)} cannot be used where transformers runs the layers; leave it out",
        )
    if asked == "auto":
        name, problem = next(iter(problems.items()))
        kind = read[name].wrapper or read[name].config.model_type
        reason = f"benchctl has no layers for models of type {kind!r}"
        reason = reason if problem.id == "unknown_family" else str(problem)
        lost = "Methods that need inner layers are left out, and speed-ups are those of transformers' passes."
        lost = lost if name == names[0] else f"{lost} To run benchctl's own layers, name another draft model."
        runs = "it to score the answers" if of_engines else "all models of this run"
        notify(f"{name}: {reason}. So transformers runs {runs}.{'' if of_engines else f' {lost}'}")
    return WHOLE


def _unknown(tokenizer: TargetTokenizer) -> UserError | None:
    """Why our own layers do not run the model of a tokenizer; None where they do."""
    try:
        tokenizer.check_layers()
    except UserError as problem:
        return problem
    return None


def load_suites(settings: PromptSettings, notify: Callable[[str], None]) -> tuple[Suite, ...]:
    """The prompts asked for, suite by suite, each bench once."""
    suites = tuple(
        load_suite(bench, source=settings.source, limit=settings.limit, notify=notify)
        for bench in dict.fromkeys(settings.benches)
    )
    names = {suite.name for suite in suites}
    if twice := next((name for name in names if name.partition("/")[0] in names - {name}), None):
        raise UserError(
            "suite_twice", f"The prompts of {twice} are a part of another suite asked for. Name only one of the two."
        )
    for name, count in Counter(suite.name for suite in suites).items():
        if count > 1:
            raise UserError(
                "suite_name_twice", f"Two suites are called '{name}', so their rows would be mixed up. Rename one file."
            )
    return suites


def check_out(out: Path | None, settings: RunSettings) -> None:
    """Raises UserError if `out` cannot be written, or cannot be resumed. `out` is None while it has no name."""
    if settings.resume and settings.out is None:
        raise UserError("resume_without_file", "--resume needs the results file: add --out FILE.")
    if out is None:
        return
    check_output(out, resume=settings.resume)
    if out.exists():
        if settings.resume and b"\n" in out.read_bytes():
            read(out)
        return
    # Tries to write: permission bits do not show a read-only file system, nor the rights of root.
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out.parent):
            pass
    except OSError as error:
        raise UserError("cannot_write", f"{out}: cannot be written: {error.strerror}. Give another --out.") from error


def name_run(suites: Sequence[Suite], choices: Sequence[Choice], methods: Sequence[str]) -> str:
    """`<suite>-<label>-<time>`, without characters that are special in a shell or a file pattern."""

    def join(names: Sequence[str], noun: str) -> str:
        return "+".join(names) if len(names) <= _NAMED else f"{len(names)}-{noun}"

    labels = [choice.label for choice in choices[1:]] or [choices[0].label]
    chosen = "all" if "all" in methods else join(labels, "methods")
    name = f"{join([suite.name for suite in suites], 'suites')}-{chosen}"
    return re.sub(r"[^\w.+=-]+", "-", name).strip("-") + utc_now().strftime("-%Y%m%dT%H%M%S")


@dataclass(frozen=True)
class Choice:
    """A method, or another engine, under its canonical label.

    unsupported  why it cannot run here, or empty
    embedded     folder of the package's own modules for method and target, if no modules were named
    named        asked for by name, so that anything it lacks ends the run
    prepare_s    seconds that its preparation took; None before it
    parts        of a method that is made of others
    engine       facts of an engine; None before it runs
    """

    label: str
    method: Method | Engine
    unsupported: str = ""
    embedded: str = ""
    named: bool = True
    prepare_s: float | None = None
    parts: tuple[Choice, ...] = ()
    engine: EngineInfo | None = None

    @property
    def whole(self) -> tuple[Choice, ...]:
        """The choice itself and its parts."""
        return (self, *self.parts)

    def draft_model(self, default: str) -> str:
        """The draft model it loads: its own option before the run's; empty for a method that needs none."""
        if not isinstance(self.method, UsesDraftModel):
            return next(filter(None, (part.draft_model(default) for part in self.parts)), "")
        return str(getattr(self.method, "draft_model", "") or default)

    @property
    def name(self) -> str:
        """The method's name, without its options."""
        return registry.parse_label(self.label).name

    @property
    def modules(self) -> str | None:
        """The folder of the trained modules it loads, empty where there is none; None for a method without modules."""
        method = self.method
        return method.modules or self.embedded if isinstance(method, Trainable) and method.needs_modules else None

    def fit(self, tokenizer: TargetTokenizer, executor: str) -> Choice:
        """The choice for the target with this tokenizer, unsupported if the method cannot run on it.

        Raises UserError if that method was asked for by name, for named modules of a target of other sizes, and for a
        file of texts that cannot be drafted from.
        """
        if isinstance(self.method, Engine):
            return self
        target = TargetInfo.of(tokenizer.config, opaque=executor == WHOLE)
        reason = self.unsupported or why_unsupported(self.method, target) or ""
        if reason and self.named:
            raise UserError("cannot_run_here", f"{self.label} cannot run on this target: {reason}.")
        if isinstance(self.method, Trainable) and self.modules and not reason:
            try:
                check_fit(self.method, self.name, self.modules, target)
            except UserError as problem:
                reason = self._for_other_options(problem)
        if isinstance(self.method, UsesTexts) and self.method.texts:
            self.method.read_texts(tokenizer)
        return replace(self, unsupported=reason, parts=tuple(part.fit(tokenizer, executor) for part in self.parts))

    def prepare(self, target: Target, models: Callable[[str], Target], draft_model: str) -> Choice:
        """The choice with its method prepared, unsupported if the embedded modules are for other options.

        Raises UserError for that if the method was asked for by name.
        """
        assert isinstance(self.method, Method), "engines are deployed"
        if self.unsupported:
            return self
        try:
            for part in self.whole:
                if part.embedded and isinstance(part.method, Trainable):
                    part.method.modules = part.embedded
                if isinstance(part.method, UsesDraftModel):
                    drafter = models(part.draft_model(draft_model))
                    part.method.use_draft_model(drafter)
                    check_trees(self.method, drafter)
            check_trees(self.method, target)
            self.method.prepare(target)
        except UserError as problem:
            if problem.id == "no_trees" and not self.named:
                return replace(self, unsupported=str(problem))
            return replace(self, unsupported=self._for_other_options(problem))
        return self

    def _for_other_options(self, problem: UserError) -> str:
        """Why embedded modules do not serve. Raises the problem where modules or method were asked for by name."""
        if self.named or not self.embedded:
            raise problem
        return str(problem).replace(self.embedded, "embedded modules")

    def deploy(self, deployment: Deployment) -> Choice:
        """The choice with its engine running. Raises UserError for one that does not start."""
        assert isinstance(self.method, Engine)
        return replace(self, engine=self.method.start(deployment))

    @property
    def options(self) -> Mapping[str, Scalar]:
        """Every option as it was asked for, without the path of embedded modules."""
        method = self.method.recorded() if isinstance(self.method, Engine) else self.method
        options = {option.name: getattr(method, option.name) for option in options_of(type(method))}
        return options | ({"modules": ""} if self.embedded else {})


@dataclass(frozen=True)
class Models:
    """Names of the target and of the draft model (empty: none): embedded names, folders or hub ids."""

    target: str
    draft: str


def choose_models(settings: ModelSettings) -> Models:
    """The models asked for. Defaults: the embedded target, and for an embedded target its draft model.

    Raises UserError for a model that does not exist.
    """
    target = settings.target or bundled.default_target().name
    embedded = {model.name: model.draft for model in bundled.models()}
    for name in {target, settings.draft} - {"", *embedded}:
        bundled.resolve(name)
    return Models(target, settings.draft or embedded.get(target, ""))


def choose_methods(texts: Sequence[str], models: Models, batch_size: int = 1) -> tuple[Choice, ...]:
    """The baseline, then the methods of `texts`, each once; with embedded modules for the target if none are named.

    A method of `all` is unsupported if it lacks a draft model or trained modules, or cannot decode batches. Raises
    UserError if it was asked for by name, for missing or wrong modules, and for invalid labels.
    """
    if engines := [text for text in registry.split_labels(texts) if is_engine(text)]:
        return choose_engines(registry.split_labels(texts), engines)
    named = {_choose(text, models.target).label for text in texts if text.strip() != "all"}
    labels = (registry.BASELINE, *registry.split_labels(texts))
    unique = {choice.label: choice for choice in (_choose(text, models.target) for text in labels)}.values()
    drafts = dict.fromkeys(part.draft_model(models.draft) for choice in unique for part in choice.whole)
    drafts.pop("", None)
    if len(drafts) > 1:  # the header names one draft model, so resume and compare could not see a second one
        raise UserError(
            "several_draft_models",
            f"A run has one draft model, but its labels name {', '.join(drafts)}: measure each in its own run.",
        )
    return tuple(_check_needs(choice, models.draft, choice.label in named, batch_size) for choice in unique)


def is_engine(text: str) -> bool:
    return registry.parse_label(text).name in registry.names(registry.ENGINES)


def choose_engines(texts: Sequence[str], engines: Sequence[str]) -> tuple[Choice, ...]:
    """The baseline, which is the engine without speculation, then the labels of `texts`, which must all be `engines`.

    Raises UserError for methods among them, for engines with different baselines, and for invalid labels.
    """
    if others := [text for text in texts if text not in engines]:
        raise UserError(
            "methods_and_engines",
            f"A speed-up of {engines[0]} is over the same engine without speculation, so it cannot be measured in one "
            f"run with {others[0]}. Measure them apart.",
        )
    choices, baselines = dict[str, Choice](), dict[str, Choice]()
    for text in texts:
        asked = registry.parse_label(text)
        engine = registry.build_engine(asked)
        for built, into in ((engine.plain(), baselines), (engine, choices)):
            label = registry.canonical_label(built.recorded(), asked)
            if into.setdefault(label, Choice(label, built)).method != built:
                raise UserError(
                    "several_baselines", f"{label} stands for programs of two folders: measure each in its own run."
                )
    if len(baselines) > 1:
        raise UserError(
            "several_baselines",
            f"The engines of a run have one baseline, but these have {' and '.join(baselines)}: measure each in its "
            "own run.",
        )
    return tuple((baselines | {label: choice for label, choice in choices.items() if label not in baselines}).values())


def choose_method(text: str, models: Models) -> Choice:
    """The method of one label, asked for by name: see choose_methods."""
    return _check_needs(_choose(text, models.target), models.draft, named=True)


def check_tokenizers(
    models: Models, choices: Sequence[Choice], notify: Callable[[str], None], batch_size: int = 1
) -> TargetTokenizer:
    """The target's tokenizer; ``notify`` is given a line for a draft model with another one, and two where answers can
    differ from those of transformers' generate or run on.

    Raises UserError for a missing model, for batches on a target with an encoder, for a draft model with an encoder,
    and for one with another tokenizer where a method takes none such.
    """
    tokenizer = load_tokenizer(bundled.resolve(models.target))
    if batch_size > 1 and tokenizer.is_encoder_decoder:
        raise UserError(
            "no_batches", f"{models.target} has an encoder. Batches need a target without one. Leave out --batch-size."
        )
    if tokenizer.missing_stop:
        index, name = tokenizer.missing_stop
        notify(
            f"{models.target}: its chat template ends an answer with {name}, which is no stop token: answers may run "
            f"on after it, as in transformers' generate. Add {index} to eos_token_id in its generation_config.json."
        )
    if tokenizer.ignored_settings:
        notify(
            f"{models.target}: its generation_config.json has {', '.join(tokenizer.ignored_settings)}. transformers' "
            "generate applies that and benchctl does not, so their answers differ. Compare only with "
            "programs that ignore it."
        )
    parts = [part for choice in choices for part in choice.whole]
    methods = {each.label: each.method for each in parts if isinstance(each.method, UsesDraftModel)}
    picky = [label for label, method in methods.items() if not method.any_tokenizer]
    drafts = [models.draft, *(choice.draft_model(models.draft) for choice in choices)]
    for draft in filter(None, dict.fromkeys(drafts)):
        draft_tokenizer, problem = load_tokenizer(bundled.resolve(draft)), ""
        if draft_tokenizer.is_encoder_decoder:  # its encoder would keep the previous prompt
            problem = "an encoder. Name a draft model without one"
        elif not tokenizer.drafts_alike(draft_tokenizer):
            if picky:
                problem = (
                    f"another tokenizer than the target '{models.target}', which {picky[0]} cannot translate. Name a "
                    "draft model of the target's own family"
                )
            else:
                shared = len(SharedTokens(tokenizer, draft_tokenizer).pairs)
                notify(
                    f"The draft model '{draft}' has another tokenizer than the target. It drafts the {shared:,} of "
                    f"{tokenizer.vocabulary:,} tokens that both have."
                )
        elif (most := max(tokenizer.token_bytes, default=0)) >= draft_tokenizer.vocabulary:
            notify(
                f"The draft model '{draft}' has {draft_tokenizer.vocabulary:,} embeddings, and the target has tokens "
                f"up to id {most:,}. It reads the others as id 0, so drafts behind them are worse."
            )
        if problem:
            raise UserError("unsuitable_draft_model", f"The draft model '{draft}' has {problem} with --draft-model.")
    return tokenizer


def _choose(text: str, target: str) -> Choice:
    """The method of a label, with embedded modules if it needs some and names none.

    Options that the label leaves out are those of the label that its modules were trained with.
    """
    asked, method = registry.parse_label(text), registry.build(text)
    choice = Choice(registry.canonical_label(method, asked), method)
    if isinstance(method, Combines):
        named = {"first": method.first, "then": method.then} | dict(asked.options)
        parts = _choose(named["first"], target), _choose(named["then"], target)
        method.first, method.then = (part.label for part in parts)
        try:  # what the parts were trained with can make them equal, or lossy
            method.use_parts([part.method for part in parts if isinstance(part.method, Method)])
        except ValueError as error:
            raise UserError("bad_option_value", f"{asked.text}: {error}") from error
        choice = replace(choice, label=registry.canonical_label(method, asked), parts=parts)
    if choice.modules is None:
        return choice
    assert isinstance(method, Trainable)
    if not method.modules:
        modules = bundled.modules_for(target, asked.name, method.modules_name(asked.name))
        choice = replace(choice, embedded=str(modules or ""))
    if not choice.modules or method.published(choice.modules) is not None:
        return choice
    whole = registry.with_trained(asked, read_facts(choice.modules).asked)
    method = registry.build(whole.text)
    return replace(choice, label=registry.canonical_label(method, whole), method=method)


def _check_needs(choice: Choice, draft: str, named: bool, batch_size: int = 1) -> Choice:
    """The choice, unsupported if it lacks something: an error if it was `named`. Checks named modules."""
    missing = ""
    if isinstance(choice.method, UsesDraftModel) and not choice.draft_model(draft):
        missing = NO_DRAFT
    elif choice.modules == "":
        missing = no_modules(choice.name)
    elif choice.modules and isinstance(choice.method, Trainable):
        trained_options(choice.method, choice.name, choice.modules)
        read_draft_vocabulary(choice.modules)  # a damaged one is refused before weights are read
    parts = tuple(_check_needs(part, draft, named) for part in choice.parts)
    missing = missing or next((part.unsupported for part in parts if part.unsupported), "")
    assert isinstance(choice.method, Method)
    if batch_size > 1 and (reason := why_not_batched(choice.method)):
        missing = f"it decodes no batches, since {reason}; measure it without --batch-size"
    if missing and named:
        raise UserError("cannot_run_here", f"{choice.label} cannot run: {missing}.")
    return replace(choice, unsupported=missing, named=named, parts=parts)
