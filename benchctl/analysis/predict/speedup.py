"""The speed-up that a method's acceptance and costs predict, and where the measured one differs.

A step costs one step of the baseline, its drafting, and what verifying several rows takes beyond verifying one. The
tokens it commits for that make the speed-up (Leviathan et al., Fast Inference from Transformers via Speculative
Decoding, 2023, arXiv 2211.17192, theorem 3.8). Unlike the theorem we use the measured tokens per step, and the measured
cost of several rows. A method that drafts nothing costs the layers it runs and one head per step; rows do not count
further heads. All else is the gap. Times are of decoding, as shares of the baseline's time for a token, so the parts of
an account add up. Speed-ups are per token, whatever the lengths of the answers.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from benchctl.analysis.comparison import differences
from benchctl.analysis.frame.build import Round, round_of
from benchctl.analysis.predict.accounts import (
    PHASES,
    UNEXPLAINED,
    Account,
    Part,
    Sums,
    by_phases,
    head_share,
)
from benchctl.analysis.stats.intervals import Floats, Interval, Levels, codes_of, ratio_intervals
from benchctl.errors import UserError
from benchctl.records.schema import Mode, Row, Run
from benchctl.records.writer import RunFile

_MODES: tuple[Mode, Mode] = ("free", "profile")


@dataclass(frozen=True)
class Figure:
    """A number and its 95% interval, None where it is unknown."""

    value: float
    interval: Interval | None


@dataclass(frozen=True)
class Costs:
    """What a step does, on average, and what that costs: a drafted token (None without drafts) and a verification, each
    over the baseline's verification of one row. `rows` counts steps by the rows they verified,
    `text_tokens` is the mean length of the text that steps saw."""

    tokens_per_step: float
    drafted_per_step: float
    depth_fraction: float
    rows: Mapping[int, int]
    text_tokens: float
    draft_ratio: float | None
    verify_ratio: float

    @property
    def rows_per_step(self) -> float:
        return sum(rows * steps for rows, steps in self.rows.items()) / sum(self.rows.values())


@dataclass(frozen=True)
class Prediction:
    """A method's account.

    The parts add up to 1 / measured, those that the prediction knows of to 1 / predicted; the gap is measured less
    predicted. `baseline_token_s` is what the baseline takes for a token.
    """

    label: str
    prompts: int
    generations: int
    baseline_token_s: float
    costs: Costs
    predicted: Figure
    measured: Figure
    gap: Figure
    parts: tuple[Part, ...]

    @property
    def unexplained(self) -> float:
        """By how much the free steps take longer than the profiled ones, as a share."""
        return sum(part.share for part in self.parts if part.name == UNEXPLAINED)

    @property
    def gap_lies_in(self) -> Part:
        """The part with most of the difference."""
        return max((part for part in self.parts if not part.predicted), key=lambda part: abs(part.share))


@dataclass(frozen=True)
class Unpredicted:
    """A method of which nothing can be predicted, and why, with what to do about it."""

    label: str
    reason: str


Accounts = tuple[Prediction | Unpredicted, ...]


class _Cell(NamedTuple):
    """One answer, whoever gave it in whatever mode."""

    file: int
    suite: str
    prompt_id: str
    turn: int
    repeat: int
    session: int


_Answers = dict[_Cell, Row]
_Found = dict[tuple[str, Mode], _Answers]


def predict(files: Sequence[RunFile]) -> Accounts:
    """An account of every method that `files` have measured, the baseline left out.

    Raises UserError for files that may not be compared with each other, for batches, and where nothing was measured.
    """
    if not files:
        raise UserError(
            "no_generations",
            "no generations to predict from. Run `benchctl run --profile`, or continue it with --resume.",
        )
    run = files[0].run
    for file in files:
        if differing := differences(run, file.run):
            first = differing[0]
            raise UserError(
                "runs_differ",
                f"{file.path}: {first.field} is {first.second}, in {files[0].path} {first.first}. Predict for each by "
                "itself.",
            )
    if run.batch_size > 1:
        raise UserError(
            "batched_run", f"{files[0].path}: was decoded in batches. Predict from a run of --batch-size 1."
        )
    found = _collect(files)
    labels = dict.fromkeys(label for label, _ in found if label != run.baseline)
    if not labels:
        raise UserError(
            "only_baseline", f"{files[0].path}: has only its baseline. Measure one with `benchctl run --method`."
        )
    return tuple(_predict(found, label, run) for label in labels)


def _collect(files: Sequence[RunFile]) -> _Found:
    """The answers that have steps and whose times can be trusted, by label and mode."""
    found: _Found = {}
    invalid_rounds: set[Round] = set()
    for number, file in enumerate(files):
        for row in file.rows:
            if row.invalid:
                invalid_rounds.add(round_of(number, row))
            if row.repeat >= 0 and row.error is None and row.step_s:
                cell = _Cell(number, row.suite, row.prompt_id, row.turn, row.repeat, row.session)
                found.setdefault((row.label, row.mode), {})[cell] = row
    return {
        key: {cell: row for cell, row in answers.items() if round_of(cell.file, row) not in invalid_rounds}
        for key, answers in found.items()
    }


def _predict(found: _Found, label: str, run: Run) -> Prediction | Unpredicted:
    """From the same answers of the method and of the baseline, free and profiled with all phases."""
    free, profiled = ([found.get((name, mode), {}) for name in (label, run.baseline)] for mode in _MODES)
    if not any(cell in free[1] for cell in free[0]):
        return Unpredicted(label, "it and the baseline have no valid answer to the same prompt. See `benchctl compare`")
    answers = [*free, *profiled]
    cells = [cell for cell in free[0] if all(cell in others for others in answers[1:])]
    if not cells or any(set(row.phases) != set(PHASES) for rows in profiled for row in rows.values()):
        reason = "it or the baseline was not profiled, or has steps without phases"
        return Unpredicted(label, f"{reason}. Measure with `benchctl run --profile`")
    sums = [Sums.of([others[cell] for cell in cells], run.target.layers) for others in answers]
    ours, theirs, split, plain = sums
    account = by_phases(ours, theirs, split, plain, head_share(run, theirs.step_text_tokens))
    sessions = codes_of([(cell.file, cell.session) for cell in cells])
    levels = Levels(sessions, codes_of([(cell.suite, cell.prompt_id) for cell in cells]))
    tops = np.column_stack([account.baseline_s, theirs.for_tokens(theirs.seconds, ours.tokens)])
    bottoms = np.column_stack([account.known_s, ours.seconds])
    values = (tops.sum(axis=0) / bottoms.sum(axis=0)).tolist()
    predicted, measured = map(Figure, values, ratio_intervals(tops, bottoms, levels))
    (interval,) = ratio_intervals(tops[:, 1:], bottoms[:, 1:], levels, less=(tops[:, :1], bottoms[:, :1]))
    return Prediction(
        label=label,
        prompts=len({(cell.suite, cell.prompt_id) for cell in cells}),
        generations=len(cells),
        baseline_token_s=theirs.token_s,
        costs=_costs(ours, split, plain),
        predicted=predicted,
        measured=measured,
        gap=Figure(measured.value - predicted.value, interval),
        parts=_with_intervals(account, ours.seconds, tops[:, 1], levels),
    )


def _with_intervals(account: Account, seconds: Floats, baseline_s: Floats, levels: Levels) -> tuple[Part, ...]:
    """Those of the shares that the parts are; of the last one that of what the measured share, `seconds` over
    `baseline_s` [answers], has more than the others together."""
    parts_s = np.column_stack(account.parts_s)
    units_s = np.column_stack([account.baseline_s] * len(account.parts_s))
    others = parts_s.sum(axis=1, keepdims=True), account.baseline_s[:, None]
    intervals = ratio_intervals(parts_s, units_s, levels)
    intervals += ratio_intervals(seconds[:, None], baseline_s[:, None], levels, less=others)
    return tuple(replace(part, interval=found) for part, found in zip(account.parts, intervals, strict=True))


def _costs(ours: Sums, split: Sums, plain: Sums) -> Costs:
    """From free and profiled answers of the method, and profiled ones of the baseline."""
    steps, drafted, verify_s = float(ours.steps.sum()), float(ours.drafted.sum()), plain.step_phase_s("verify")
    return Costs(
        tokens_per_step=ours.total_tokens / steps,
        drafted_per_step=drafted / steps,
        depth_fraction=float(ours.depth.sum()) / ours.total_tokens,
        rows=dict(Counter(ours.rows)),
        text_tokens=ours.step_text_tokens,
        draft_ratio=float(split.phases["draft"].sum() / split.drafted.sum()) / verify_s if drafted else None,
        verify_ratio=split.step_phase_s("verify") / verify_s,
    )
