"""Figures of comparable runs: metrics with intervals, verdicts and judgements of each method, by suite and over all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations, product

import pandas as pd

from benchctl.analysis.frame.build import (
    Fidelity,
    Repeats,
    broken,
    claims_exact,
    fidelity,
    impossibly_fast,
    is_lossless,
    pair,
    remembering,
    to_frames,
)
from benchctl.analysis.frame.rows import AUTOREGRESSIVE, FIDELITY
from benchctl.analysis.judges.figures import JudgedFigures, Judging, judging
from benchctl.analysis.judges.judgements import share_out
from benchctl.analysis.metrics.metric import Metric, all_metrics
from benchctl.analysis.stats.estimates import Estimate, estimates
from benchctl.errors import InvalidData, UserError
from benchctl.records.schema import COUNTED_SINCE, OTHER_WEIGHTS, Exactness, MethodInfo, Mode, ModelInfo, Run
from benchctl.records.scores import Score
from benchctl.records.writer import RunFile


@dataclass(frozen=True)
class Difference:
    """A setting that differs between two runs, so that they cannot be compared, with its value in each."""

    field: str
    first: str
    second: str


_PLAIN = (
    *("baseline", "dtype", "device", "executor", "attention", "threads", "batch_size", "context_fill"),
    *("max_new_tokens", "temperature", "top_p", "top_k", "imported"),
)


def _settings(run: Run) -> dict[str, tuple[object, object]]:
    """Of each setting what a reader recognises, and what must be equal."""
    target, suites = run.target, run.suites
    weights = target.weights_sha256 or target.name  # imported files have only a name
    shown_suites = (f"{suite.name} ({suite.prompts} prompts, {suite.sha256[:8]})" for suite in suites)
    return {
        "target": (_model(target), (weights, target.tokenizer_sha256, target.chat_template_sha256)),
        "prompts": (", ".join(shown_suites), {(suite.name, suite.sha256) for suite in suites}),
        "modes": (", ".join(run.modes), set(run.modes)),
        "weights": (run.weights or run.dtype, run.weights),
        "load": (run.order, bool(run.imported) and run.order != "one after another"),
        **{name: (getattr(run, name), getattr(run, name)) for name in _PLAIN},
        **{fact: (run.machine.get(fact, ""), run.machine.get(fact)) for fact in ("cpu", "gpu")},
    }


def _model(model: ModelInfo) -> str:
    return f"{model.name} {model.weights_sha256[:8]}"


def differences(first: Run, second: Run) -> tuple[Difference, ...]:
    """The settings by which two runs cannot be compared; empty when they can.

    Draft models and stop tokens count where both runs have some; trained modules, code of plug-ins, versions and
    precisions of engines and options where both run their label: a default may have changed between versions, and so
    what a label without the option stands for.
    """
    settings = zip(_settings(first).items(), _settings(second).values(), strict=True)
    differing = [
        Difference(name, str(shown), str(other_shown))
        for (name, (shown, identity)), (other_shown, other_identity) in settings
        if identity != other_identity
    ]
    stops = (first.target.stop_ids, second.target.stop_ids)
    if all(stops) and stops[0] != stops[1]:
        differing.append(Difference("stop tokens", *(" ".join(map(str, ids)) for ids in stops)))
    if first.draft and second.draft and first.draft.weights_sha256 != second.draft.weights_sha256:
        differing.append(Difference("draft", _model(first.draft), _model(second.draft)))
    ours, theirs = ({method.label: method for method in run.methods} for run in (first, second))
    for label in sorted(ours.keys() & theirs.keys()):
        one, other = both = ours[label], theirs[label]
        if one.modules_sha256 and other.modules_sha256 and one.modules_sha256 != other.modules_sha256:
            differing.append(Difference("modules", *(f"{label} {method.modules_sha256[:8]}" for method in both)))
        if one.source_sha256 and other.source_sha256 and one.source_sha256 != other.source_sha256:
            differing.append(Difference("code", *(f"{label} {method.source_sha256[:8]}" for method in both)))
        if one.engine and other.engine:
            for field, facts in (
                ("engine", (one.engine.version, other.engine.version)),
                ("engine precision", (one.engine.dtype, other.engine.dtype)),
            ):
                if all(facts) and facts[0] != facts[1]:
                    differing.append(Difference(field, *(f"{label} {fact}" for fact in facts)))
        if changed := [name for name, value in one.options.items() if value != other.options.get(name, value)]:
            shown = (" ".join([label, *(f"{name}={method.options[name]}" for name in changed)]) for method in both)
            differing.append(Difference("options", *shown))
    return tuple(differing)


def differing(ones: Sequence[RunFile], others: Sequence[RunFile]) -> tuple[Difference, ...]:
    """The settings by which files of two groups cannot be compared, each once."""
    pairs = product(ones, others)
    return tuple(dict.fromkeys(each for one, other in pairs for each in differences(one.run, other.run)))


def check_alike(files: Sequence[RunFile]) -> None:
    """Raises UserError for files that cannot be compared with each other."""
    for one, other in combinations(files, 2):
        if found := differences(one.run, other.run):
            first = found[0]
            raise UserError(
                "runs_differ",
                f"{other.path}: {first.field} is {first.second}, in {one.path} {first.first}, so they cannot be "
                "compared. Name only files with equal settings.",
            )


def group(files: Sequence[RunFile]) -> tuple[tuple[RunFile, ...], ...]:
    """Files in groups that may be compared, in the order given; each file joins the first group it fits."""
    groups: list[list[RunFile]] = []
    for file in files:
        fitting = (members for members in groups if not any(differences(member.run, file.run) for member in members))
        if members := next(fitting, None):
            members.append(file)
        else:
            groups.append([file])
    return tuple(map(tuple, groups))


POOLED = "all suites"
_SAME_WEIGHTS = 0.9  # of the tokens an engine chooses as the target does, in any number format but quantised ones
Frames = Mapping[Mode, pd.DataFrame]


@dataclass(frozen=True)
class MethodFigures:
    """One method on one suite, or on all of them.

    `prompts` and `generations` count the answers behind the estimates, `checked_prompts` those with an exact answer,
    on which exact match rests. `tokens` counts those of its answers, `baseline_tokens` those of the baseline's answers
    to the same turns. `judged` has the figures of each judge. `refused` is the id of the warning why no figure
    of this method may be used, or "".
    """

    label: str
    exactness: Exactness
    is_baseline: bool
    prompts: int
    generations: int
    checked_prompts: int
    tokens: int
    baseline_tokens: int
    estimates: tuple[Estimate, ...]
    fidelity: Fidelity
    lossless: bool
    judged: tuple[JudgedFigures, ...] = ()
    refused: str = ""

    @property
    def is_compared(self) -> bool:
        """Whether answers were compared with the baseline's. Not those of sampled runs, since one text does not show
        a distribution, nor those of imported files, which have no verdicts."""
        return not (self.is_baseline or self.fidelity.sampled or self.fidelity == Fidelity())

    def estimate(self, metric: Metric) -> Estimate:
        """The estimate of a metric; without a value where the metric does not apply to these generations."""
        own = (estimate for estimate in self.estimates if estimate.metric.name == metric.name)
        return next(own, Estimate(metric, None, None))


@dataclass(frozen=True)
class SuiteFigures:
    """All methods on one suite, on one category of it, or on all suites (POOLED)."""

    suite: str
    methods: tuple[MethodFigures, ...]
    category: str = ""

    @property
    def name(self) -> str:
        """`spec-bench`, or for a category `spec-bench/rag`, as `benchctl run --suite` calls it."""
        return f"{self.suite}/{self.category}" if self.category else self.suite


@dataclass(frozen=True)
class Group:
    """Files that may be compared. With several suites the last of `suites` is all of them together.

    `categories` is empty unless `with_categories` filled it. `frame` holds the free generations, `others` those of the
    other modes, replay and profile.
    """

    files: tuple[RunFile, ...]
    frame: pd.DataFrame
    suites: tuple[SuiteFigures, ...]
    differs: tuple[Difference, ...]
    others: Frames = field(default_factory=dict)
    judging: Judging | None = None
    categories: tuple[SuiteFigures, ...] = ()
    _pairs: dict[str, pd.DataFrame] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def run(self) -> Run:
        """The first run: it represents all runs in whatever must be equal."""
        return self.files[0].run

    @property
    def pooled(self) -> SuiteFigures:
        return self.suites[-1]

    def pairs(self, label: str) -> pd.DataFrame:
        """The free generations of `label` with the baseline's, see frame.build.pair. Made once: do not change them."""
        if label not in self._pairs:
            self._pairs[label] = pair(self.frame, label, self.run.baseline)
        return self._pairs[label]

    @cached_property
    def remembering(self) -> frozenset[str]:
        """Labels whose greedy answer to a prompt was the same again, but came in other steps: they remember."""
        if self.run.temperature > 0 or any(file.run.schema_version < COUNTED_SINCE for file in self.files):
            return frozenset()  # before, repeats had seeds of their own
        # Another version may draft otherwise.
        codes = {(method.name, method.source_sha256) for file in self.files for method in file.run.methods}
        alike = len({(file.run.commit, str(file.run.versions)) for file in self.files}) == 1
        alike &= len(codes) == len(dict(codes))
        frames = [self.frame] if alike else [frame for _, frame in self.frame.groupby("file")]
        half = self.run.dtype not in ("float32", "float64") or self.is_of_engines
        return frozenset(label for frame in frames for label in remembering(frame, half))

    @cached_property
    def claim_breakers(self) -> frozenset[str]:
        """Labels of which an answer, of any suite, breaks the claim."""
        answers = {str(label): rows for label, rows in self.frame.groupby("label", sort=False)}
        claiming = {each.label for each in self.methods if claims_exact(each.exactness, self.run.temperature)}
        own = {label: fidelity(answers[label], self.repeats) for label in claiming & answers.keys()}
        return frozenset(label for label, counts in own.items() if broken(counts, self.run.dtype))

    def is_impossibly_fast(self, label: str) -> bool:
        """Whether the label's passes took less time than any pass can, see frame.build.impossibly_fast."""
        counted = all(file.run.schema_version >= COUNTED_SINCE for file in self.files)
        plain = self.run.baseline == AUTOREGRESSIVE  # passes of a method that drafts or loads take longer
        return plain and counted and not self.run.imported and impossibly_fast(self.pairs(label))

    @property
    def is_of_engines(self) -> bool:
        """Whether other engines were measured, whose kernels may round otherwise each time."""
        return any(method.engine is not None for method in self.run.methods)

    @cached_property
    def other_weights(self) -> Mapping[str, float]:
        """Labels of engines that choose too few of the target's tokens to have its weights, with the share they choose.

        Labels that were asked for with quantised weights are left out.
        """
        meant = {
            method.label
            for method in self.methods
            if method.engine is not None and method.engine.dtype != "quantised" and method.reason != OTHER_WEIGHTS
        }
        sums = [FIDELITY + "target_agreed_tokens", FIDELITY + "scored_tokens"]
        if not meant or not set(sums) <= set(self.frame):
            return {}
        agreed = self.frame[self.frame["label"].isin(meant)].groupby("label")[sums].sum()
        shares = {str(label): float(one) / float(every) for label, one, every in agreed.itertuples() if every}
        return {label: share for label, share in shares.items() if share < _SAME_WEIGHTS}

    @property
    def repeats(self) -> Repeats:
        return {number: file.run.repeats for number, file in enumerate(self.files)}

    @property
    def sessions(self) -> int:
        """The number of sessions the group was measured in."""
        return len(self.frame.groupby(["file", "session"]))

    def title(self, figures: SuiteFigures) -> str:
        """The suite's name, with "(embedded)" for a sample, so that it is not taken for the published prompts."""
        samples = {suite.name for suite in self.run.suites if suite.is_sample}
        return f"{figures.name} (embedded)" if figures.suite in samples else figures.name

    def categories_of(self, suite: str) -> Mapping[str, str]:
        """The category of each prompt of a suite by its id, where the suite has several; else nothing."""
        infos = (info for file in self.files for info in file.run.suites if info.name == suite)
        found = next((info.categories for info in infos if info.categories), {})
        return found if len(set(found.values())) > 1 else {}

    @property
    def methods(self) -> tuple[MethodInfo, ...]:
        """Every method of the group's runs by its label, the baseline first."""
        every = [method for file in self.files for method in file.run.methods]
        by_label = {method.label: method for method in every}
        by_label |= {method.label: method for method in every if not method.unsupported}
        return tuple(sorted(by_label.values(), key=lambda method: method.label != self.run.baseline))


def compare(files: Sequence[RunFile], scores: Sequence[Score] | None = None) -> tuple[Group, ...]:
    """The figures of `files`, in groups that may be compared; `differs` has what sets a group apart from the first.

    With `scores`, perhaps empty, the groups also have the figures of these scores, which may be of any of the files,
    and of the scores files next to the results. Raises UserError where no file has a generation that counts (warm-up
    does not), or for a scores file that cannot be read.
    """
    measured = [file for file in files if any(row.repeat >= 0 for row in file.rows)]
    if not measured:
        names = ", ".join(str(file.path) for file in files)
        raise UserError(
            "no_generations",
            f"{names or 'No files'}: no generations to compare. Run `benchctl run`, or continue it with --resume.",
        )
    grouped = group(measured)
    shared = iter(share_out([file for members in grouped for file in members], scores or ()))
    judgings = [None if scores is None else judging(members, [next(shared) for _ in members]) for members in grouped]
    return tuple(
        _group(members, differing(grouped[0], members), judged)
        for members, judged in zip(grouped, judgings, strict=True)
    )


def over(file: RunFile, label: str) -> RunFile:
    """The file with another of its methods as the baseline, and without the original baseline.

    Verdicts and target agreement stay. Token agreement mixes both baselines: tokens up to the first divergence from the
    original one, of the longer of the answer and that of the new one. Raises UserError for a method that the file has
    not measured, naming those it has.
    """
    original = file.run.baseline
    labels = [method.label for method in file.run.methods if not method.unsupported]
    if label not in labels:
        raise UserError("unknown_label", f"{file.path} has no {label}. It has: {' '.join(labels)}.")
    if label == original:
        return file
    methods = tuple(method for method in file.run.methods if method.label != original)
    return replace(file, run=replace(file.run, baseline=label, methods=methods))


def by_suite(groups: Sequence[Group]) -> tuple[Group, ...]:
    """A group for each suite of each group, with the figures of that suite."""
    return tuple(
        replace(
            group,
            frame=group.frame[group.frame["suite"] == figures.suite],
            others={mode: frame[frame["suite"] == figures.suite] for mode, frame in group.others.items()},
            suites=(figures,),
        )
        for group in groups
        for figures in (group.suites[:-1] or group.suites)
    )


def with_categories(groups: Sequence[Group]) -> tuple[Group, ...]:
    """The groups with the figures of each category of each suite that has several.

    Raises UserError where no suite has, and for batches, whose time is shared by prompts of several categories.
    """
    filled = tuple(replace(group, categories=tuple(_category_figures(group))) for group in groups)
    if not any(group.categories for group in filled):
        raise UserError(
            "no_categories",
            "no suite in these files has several categories. Earlier versions did not record them: measure again, for "
            "example with --suite spec-bench.",
        )
    return filled


def _category_figures(group: Group) -> Iterator[SuiteFigures]:
    frames: Frames = {"free": group.frame, **group.others}
    for suite in group.suites[:-1] or group.suites:
        by_prompt = group.categories_of(suite.suite)
        if by_prompt and group.run.batch_size > 1:
            raise UserError(
                "categories_in_batches",
                f"a batch has prompts of several categories of {suite.suite}, which share its time. Measure one "
                f"category at a time, such as --suite {suite.suite}/{next(iter(by_prompt.values()))}, or leave out "
                "--batch-size.",
            )
        for category in dict.fromkeys(by_prompt.values()):
            prompts = frozenset(prompt for prompt, own in by_prompt.items() if own == category)
            parts = {
                mode: frame[(frame["suite"] == suite.suite) & frame["prompt_id"].isin(prompts)]
                for mode, frame in frames.items()
            }
            if len(parts["free"]):  # a run that is not finished may not have come to it
                yield replace(_suite_figures(group, suite.suite, parts, prompts), category=category)


def only_suites(files: Sequence[RunFile], names: Sequence[str]) -> list[RunFile]:
    """The files with the rows of these suites only, without files that have none.

    Raises UserError for a suite that no file has, naming those there are.
    """
    measured = list(dict.fromkeys(row.suite for file in files for row in file.rows))
    for name in names:
        if name not in measured:
            raise UserError(
                "unknown_suite", f"--suite {name}: was not measured in these files. They have: {', '.join(measured)}."
            )
    kept = [
        replace(
            file,
            run=replace(file.run, suites=tuple(suite for suite in file.run.suites if suite.name in names)),
            rows=tuple(row for row in file.rows if row.suite in names),
        )
        for file in files
    ]
    return [file for file in kept if file.rows]


def chosen(groups: Sequence[Group], wanted: Sequence[str] = ()) -> tuple[str, ...]:
    """The measured labels, each once, baselines first, or the `wanted` ones in their order.

    A wanted name is a label, or the name of a method for all its labels. Raises UserError for one without measurements.
    """
    labels = list(dict.fromkeys(method.label for group in groups for method in group.pooled.methods))
    selected: dict[str, None] = {}
    for name in wanted:
        matching = [label for label in labels if name in (label, label.partition("[")[0])]
        if not matching:
            raise UserError(
                "unknown_method", f"--method {name}: was not measured in these files. They have: {' '.join(labels)}."
            )
        selected |= dict.fromkeys(matching)
    return tuple(selected or labels)


def check_count(labels: Sequence[str], most: int, what: str) -> None:
    """Raises UserError for more methods than a picture has room for; `what` names them."""
    if len(labels) > most:
        raise UserError(
            "too_many_methods",
            f"{len(labels)} {what} are too many for one picture of this size, which has room for {most}. Choose with "
            f"--method from {' '.join(labels[:most])} and {len(labels) - most} more.",
        )


def _group(files: tuple[RunFile, ...], differs: tuple[Difference, ...], judged: Judging | None) -> Group:
    modes = dict.fromkeys(("free", *(mode for file in files for mode in file.run.modes)))
    frames = to_frames(files, modes)
    others: dict[Mode, pd.DataFrame] = {mode: frame for mode, frame in frames.items() if mode != "free"}
    group = Group(files, frames["free"], (), differs, others, judged)
    _check_baselines(group)
    names = list(dict.fromkeys(group.frame["suite"]))
    suites = [
        _suite_figures(group, name, {mode: frame[frame["suite"] == name] for mode, frame in frames.items()})
        for name in names
    ]
    if len(names) > 1:
        suites.append(_suite_figures(group, POOLED, frames))
    return replace(group, suites=tuple(suites))


def _check_baselines(group: Group) -> None:
    """Raises InvalidData where files of equal weights, prompts and settings have other greedy answers of the baseline.

    In float32 that means that some file's weights were changed, or that a machine computes wrongly. Files of other
    versions are left out: another library may round otherwise. So is a method as baseline (`--over`), whose answers may
    differ from run to run.
    """
    files, run, frame = group.files, group.run, group.frame
    if run.baseline != AUTOREGRESSIVE:
        return
    alike = all((file.run.versions, file.run.commit) == (run.versions, run.commit) for file in files)
    greedy_float32 = run.temperature == 0 and run.dtype == "float32" and not run.imported
    if len(files) == 1 or not alike or not greedy_float32 or group.is_of_engines:
        return
    answers = frame[(frame["label"] == run.baseline) & frame["error"].isna()]
    by_file = answers.groupby(["suite", "prompt_id", "turn", "file"])["answer_id"].first().unstack("file")
    numbers = [int(number) for number in by_file.columns]
    for number in numbers[1:]:
        both = by_file[[numbers[0], number]].dropna()
        if differing := int((both.iloc[:, 0] != both.iloc[:, 1]).sum()):
            raise InvalidData(
                "baselines_differ",
                f"{files[number].path} and {files[numbers[0]].path}: {differing} of {len(both)} greedy answers of "
                f"{run.baseline} differ, although weights, prompts and settings are equal. Weights were changed, or a "
                "machine has an error. Measure again.",
            )


def _suite_figures(group: Group, suite: str, frames: Frames, prompts: frozenset[str] | None = None) -> SuiteFigures:
    """The figures of a suite, or of these of its prompts."""
    measured = set(frames["free"]["label"])
    figures = []
    for method in group.methods:
        if method.label in measured:
            only = None if suite == POOLED else suite
            judged = group.judging.figures(method.label, only, prompts) if group.judging else ()
            figures.append(_method_figures(group, method, frames, judged))
    return SuiteFigures(suite, tuple(figures))


def _method_figures(
    group: Group, method: MethodInfo, frames: Frames, judged: tuple[JudgedFigures, ...]
) -> MethodFigures:
    run, free = group.run, frames["free"]
    counts = fidelity(free[free["label"] == method.label], group.repeats)
    # The method and the baseline; of a profiled generation the free one of the same method.
    pairs: dict[Mode, pd.DataFrame] = {}
    pairs |= {mode: pair(frame, method.label, run.baseline) for mode, frame in frames.items() if mode != "profile"}
    if "profile" in frames:
        arms = [frames[mode][frames[mode]["label"] == method.label].assign(label=mode) for mode in ("profile", "free")]
        pairs["profile"] = pair(pd.concat(arms, ignore_index=True), "profile", "free")
    own = pairs["free"]
    is_baseline = method.label == run.baseline
    claims = claims_exact(method.exactness, run.temperature)
    refused = "claim_broken" if method.label in group.claim_breakers else ""
    refused = refused or ("other_weights" if method.label in group.other_weights else "")
    refused = refused or ("remembers" if method.label in group.remembering else "")
    refused = refused or ("impossibly_fast" if group.is_impossibly_fast(method.label) else "")
    return MethodFigures(
        label=method.label,
        exactness=method.exactness,
        is_baseline=is_baseline,
        prompts=_prompts(own),
        generations=len(own),
        checked_prompts=_prompts(own[own["checked_answers"] > 0]),
        tokens=int(own["new_tokens"].sum()),
        baseline_tokens=int(own["new_tokens_baseline"].sum()),
        estimates=tuple(
            estimate
            for mode, of_mode in pairs.items()
            for estimate in estimates(
                of_mode,
                [each for each in all_metrics() if each.mode == mode and (not each.needs or each.needs(of_mode))],
            )
        ),
        fidelity=counts,
        lossless=not (is_baseline or refused) and is_lossless(claims, counts, run.dtype),
        judged=judged,
        refused=refused,
    )


def _prompts(pairs: pd.DataFrame) -> int:
    return len(pairs[["suite", "prompt_id"]].drop_duplicates())
