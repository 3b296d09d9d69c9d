"""The figures of comparable runs: metrics with intervals, and verdicts, of each method by suite and over all suites."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from math import isnan
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from benchctl.analysis.frame.build import measured_apart, pair, to_frames
from benchctl.analysis.frame.fidelity import Fidelity, Repeats, claims_exact, fidelity, is_lossless
from benchctl.analysis.frame.groups import Difference, differences, group
from benchctl.analysis.metrics.experts import LOADING_METRICS, has_loading
from benchctl.analysis.metrics.faithfulness import FAITHFULNESS_METRICS
from benchctl.analysis.metrics.metric import METRICS, Column, Metric, ones, zeros
from benchctl.analysis.metrics.modes import OtherFrames, figured
from benchctl.analysis.metrics.resources import RESOURCE_METRICS, has_resources
from benchctl.analysis.stats.bootstrap import Floats, Interval, Ints, Levels, bootstrap, ratios_of_sums
from benchctl.errors import UserError
from benchctl.records.schema import Exactness, MethodInfo, Run
from benchctl.records.writer import RunFile

if TYPE_CHECKING:
    from benchctl.analysis.judges.figures import JudgedFigures, Judging

POOLED = "all suites"


@dataclass(frozen=True)
class Estimate:
    """A metric of one method: None where it has no meaning, without interval where there is no telling."""

    metric: Metric
    value: float | None
    interval: Interval | None


@dataclass(frozen=True)
class MethodFigures:
    """One method on one suite. `prompts` and `generations` count what its estimates rest on; exact match rests on
    `checked_prompts`, those that came with an exact answer. `tokens` are those of its answers, `baseline_tokens` those
    of the baseline's beside them. `judged` is what judges say of its answers, if they were asked: see judged.py."""

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

    @property
    def label_lines(self) -> tuple[str, ...]:
        """See label_lines."""
        return label_lines(self.label)

    def estimate(self, metric: Metric) -> Estimate:
        """Without a value for a metric of what the group's methods do not do, such as loading experts."""
        found = (estimate for estimate in self.estimates if estimate.metric == metric)
        return next(found, Estimate(metric, None, None))


def label_lines(label: str) -> tuple[str, ...]:
    """A label with each of its options on a line of its own, for places where long labels have no room.

    `two_model[draft_tokens=5,tree=wide]` -> `two_model`, `draft_tokens=5`, `tree=wide`.
    """
    name, _, options = label.removesuffix("]").partition("[")
    return (name, *options.split(",")) if options else (name,)


@dataclass(frozen=True)
class SuiteFigures:
    """All methods on one suite, or on all of them (POOLED)."""

    suite: str
    methods: tuple[MethodFigures, ...]


@dataclass(frozen=True)
class Group:
    """Files that may be compared. With several suites the last of `suites` is all of them together."""

    files: tuple[RunFile, ...]
    frame: pd.DataFrame
    suites: tuple[SuiteFigures, ...]
    differs: tuple[Difference, ...]
    others: OtherFrames = field(default_factory=dict)
    judging: Judging | None = None

    @property
    def run(self) -> Run:
        """The first run: it stands for all in what must be equal."""
        return self.files[0].run

    @property
    def pooled(self) -> SuiteFigures:
        return self.suites[-1]

    @property
    def repeats(self) -> Repeats:
        return {number: file.run.repeats for number, file in enumerate(self.files)}

    def title(self, figures: SuiteFigures) -> str:
        """The suite's name, with "(embedded)" for a sample, so that nobody takes it for the published prompts."""
        samples = {suite.name for suite in self.run.suites if suite.is_sample}
        return f"{figures.suite} (embedded)" if figures.suite in samples else figures.suite

    @property
    def methods(self) -> tuple[MethodInfo, ...]:
        """Every method of the group's runs by its label, the baseline first."""
        by_label = {method.label: method for file in self.files for method in file.run.methods}
        return tuple(sorted(by_label.values(), key=lambda method: method.label != self.run.baseline))


def compare(files: Sequence[RunFile], *, texts: bool = False) -> tuple[Group, ...]:
    """The figures of `files`, in groups that may be compared; `differs` says what sets a group apart from the first.
    With `texts` their frames have those of the answers too, see text_overlap.

    Raises UserError when no file holds a generation that counts (warm-up does not).
    """
    measured = [file for file in files if any(row.repeat >= 0 for row in file.rows)]
    if not measured:
        names = ", ".join(str(file.path) for file in files)
        raise UserError(f"no generations in {names or 'no files'}. Run `benchctl run`, or continue it with --resume.")
    grouped = group(measured)
    return tuple(_figures(members, differences(grouped[0][0].run, members[0].run), texts) for members in grouped)


def over(file: RunFile, label: str) -> RunFile:
    """The file as if another of its methods were the baseline, and the baseline had not been there.

    Verdicts and token agreement stay those with the baseline that was. Raises UserError for a method that the file has
    not measured, naming those it has.
    """
    usual = file.run.baseline
    labels = [method.label for method in file.run.methods if not method.unsupported]
    if label not in labels:
        raise UserError(f"{file.path} has no {label}. It measured: {' '.join(labels)}.")
    if label == usual:
        return file
    others = tuple(method for method in file.run.methods if method.label != usual)
    run = replace(file.run, baseline=label, methods=others)
    return replace(file, run=run)


def _figures(files: tuple[RunFile, ...], differs: tuple[Difference, ...], texts: bool) -> Group:
    modes = dict.fromkeys(("free", *(mode for file in files for mode in file.run.modes)))
    others = to_frames(files, modes, texts=texts)
    bare = Group(files, others.pop("free"), (), differs, others)
    suites = list(dict.fromkeys(bare.frame["suite"]))
    parts = [_suite_figures(bare, suite, *_of_suite(suite, bare.frame, others)) for suite in suites]
    if len(suites) > 1:
        parts.append(_suite_figures(bare, POOLED, bare.frame, others))
    return replace(bare, suites=tuple(parts))


def _of_suite(suite: str, frame: pd.DataFrame, others: OtherFrames) -> tuple[pd.DataFrame, OtherFrames]:
    return frame[frame["suite"] == suite], {mode: found[found["suite"] == suite] for mode, found in others.items()}


def _suite_figures(group: Group, suite: str, frame: pd.DataFrame, others: OtherFrames) -> SuiteFigures:
    measured = set(frame["label"])
    methods = [method for method in group.methods if method.label in measured]
    return SuiteFigures(suite, tuple(_method_figures(group, method, frame, others) for method in methods))


def _method_figures(group: Group, method: MethodInfo, frame: pd.DataFrame, others: OtherFrames) -> MethodFigures:
    run, found = group.run, fidelity(frame[frame["label"] == method.label], group.repeats)
    pairs = pair(frame, method.label, run.baseline)
    is_baseline = method.label == run.baseline
    beside = [estimates(found.pairs, found.metrics) for found in figured(frame, others, method.label, run.baseline)]
    return MethodFigures(
        label=method.label,
        exactness=method.exactness,
        is_baseline=is_baseline,
        prompts=_prompt_codes(pairs).nunique(),
        generations=len(pairs),
        checked_prompts=_prompt_codes(pairs[pairs["checked_answers"] > 0]).nunique(),
        tokens=int(pairs["new_tokens"].sum()),
        baseline_tokens=int(pairs["new_tokens_baseline"].sum()),
        estimates=(*estimates(pairs, _metrics(pairs)), *chain.from_iterable(beside)),
        fidelity=found,
        lossless=not is_baseline and is_lossless(claims_exact(method.exactness, run.temperature), found, run.dtype),
    )


def _metrics(pairs: pd.DataFrame) -> tuple[Metric, ...]:
    """Those of every method, and those of what these generations do or tell."""
    loading = LOADING_METRICS if has_loading(pairs) else ()
    resources = RESOURCE_METRICS if has_resources(pairs) else ()
    return (*METRICS, *FAITHFULNESS_METRICS, *loading, *resources)


def estimates(pairs: pd.DataFrame, metrics: Sequence[Metric]) -> tuple[Estimate, ...]:
    """The metrics over `pairs`, which share the resamples of their intervals. A value is None where it has no meaning,
    as an acceptance rate where nothing was drafted."""
    tops, bottoms, *less = _sums(pairs, metrics)
    both = [metric.both for metric in metrics]
    intervals = bootstrap(tops, bottoms, levels(pairs), less=(less[0], less[1]), both=both)
    ratios = ratios_of_sums(tops, bottoms)
    subtracted = [metric.less is not None for metric in metrics]
    values = np.where(subtracted, ratios - ratios_of_sums(less[0], less[1]), ratios)
    return tuple(
        Estimate(metric, None if isnan(value) else value, interval)
        for metric, value, interval in zip(metrics, values.tolist(), intervals, strict=True)
    )


def levels(pairs: pd.DataFrame) -> Levels:
    """Which session and which prompt each of `pairs` is of; a batch of prompts is drawn as one."""
    others = pairs.groupby(["file_baseline", "session_baseline"]).ngroup()
    return Levels(
        session=_integers(pairs.groupby(["file", "session"]).ngroup()),
        prompt=_integers(pairs.groupby(["suite", "batch"]).ngroup()),
        other_session=_integers(others) if measured_apart(pairs) else None,
    )


def _sums(pairs: pd.DataFrame, metrics: Sequence[Metric]) -> tuple[Floats, ...]:
    """Four [pairs, metrics]: what is summed above and below each ratio, and above and below what it is less. Metrics
    share columns, and each is worked out once: with many methods and suites this is most of a comparison's time."""
    sides = zip(*((metric.top, metric.bottom, *(metric.less or (zeros, ones))) for metric in metrics), strict=True)
    found: dict[Column, Floats] = {}
    return tuple(np.stack([_values(column, pairs, found) for column in side]).T for side in sides)


def _values(column: Column, pairs: pd.DataFrame, found: dict[Column, Floats]) -> Floats:
    if column not in found:
        found[column] = column(pairs).to_numpy(dtype=float)
    return found[column]


def _prompt_codes(pairs: pd.DataFrame) -> pd.Series:
    return pairs.groupby(["suite", "prompt_id"]).ngroup()


def _integers(codes: pd.Series) -> Ints:
    return codes.to_numpy().astype(np.int64)
