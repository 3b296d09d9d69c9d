"""The speed-up that a method's acceptance and costs predict, and where the measured one differs.

A step costs one step of the baseline, its drafting, and what verifying several rows takes beyond verifying one. The
tokens it commits for that make the speed-up (Leviathan et al., Fast Inference from Transformers via Speculative
Decoding, 2023, arXiv 2211.17192, theorem 3.8). Unlike the theorem we use the measured tokens per step, and the measured
cost of several rows. A method that drafts nothing costs the layers it runs and one head per step; rows do not count
further heads. All else is the gap. Times are of decoding, as shares of the baseline's time for a token, so the parts of
an account add up. Speed-ups are per token, whatever the lengths of the answers.

A token that leaves early still reads the head: the layers it ran are a share of all but the head's part of a pass.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchctl.analysis.comparison import check_alike
from benchctl.analysis.frame.build import Round, round_of
from benchctl.analysis.stats.intervals import Floats, Interval, Levels, codes_of, ratio_intervals
from benchctl.errors import UserError
from benchctl.records.reader import RowKey, row_key
from benchctl.records.schema import Mode, Row, Run
from benchctl.records.writer import RunFile

PHASES = ("draft", "verify", "commit", "host")  # of profile rows, see decoding.phases
UNEXPLAINED = "unexplained"
ITEM_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
_MODES: tuple[Mode, Mode] = ("free", "profile")


@dataclass(frozen=True)
class Part:
    """What one cause adds to a token's time, as a share of the baseline's. `predicted`: the prediction includes it."""

    name: str
    share: float
    predicted: bool


@dataclass(frozen=True)
class Sums:
    """Answers of one method as numbers, each [answers] but for the steps: `depth` counts steps by the share of the
    layers they ran, `rows` has the rows of every step."""

    steps: Floats
    tokens: Floats
    drafted: Floats
    depth: Floats
    seconds: Floats
    text_tokens: Floats
    phases: Mapping[str, Floats]
    rows: Sequence[int]

    @classmethod
    def of(cls, rows: Sequence[Row], layers: int) -> "Sums":
        """The first token is prefill's, and no step's."""
        return cls(
            steps=_floats(len(row.step_s) for row in rows),
            tokens=_floats(sum(row.committed) for row in rows),
            drafted=_floats(sum(row.drafted) for row in rows),
            depth=_floats(sum(row.layers[1:]) / layers for row in rows),
            seconds=_floats(sum(row.step_s) for row in rows),
            text_tokens=_floats(row.prompt_tokens + len(row.token_ids) / 2 for row in rows),
            phases={name: _floats(sum(row.phases.get(name, ())) for row in rows) for name in PHASES},
            rows=[count for row in rows for count in row.rows],
        )

    @property
    def total_tokens(self) -> float:
        return float(self.tokens.sum())

    @property
    def token_s(self) -> float:
        """Seconds per token."""
        return float(self.seconds.sum()) / self.total_tokens

    @property
    def step_text_tokens(self) -> float:
        """The mean length of the text that a step saw."""
        return float(self.text_tokens @ self.steps / self.steps.sum())

    def for_tokens(self, seconds: Floats, tokens: Floats) -> Floats:
        """What `seconds` of these answers come to for `tokens` of another method's, [answers] each.

        The sum is the seconds per token of all answers times all of `tokens`. Each answer adds its own tokens at that
        pace, and what its own pace differs from it (the influence of each observation, as in stats). Where `tokens` are
        the answers' own, the result is `seconds`.

        2 and 4 s for 1 and 3 tokens, so 1.5 s a token, and 6 and 2 tokens: 9 and 3 s at that pace, 10 and 2 with the
        paces of the answers.
        """
        pace_s = float(seconds.sum()) / self.total_tokens
        return pace_s * tokens + float(tokens.sum()) / self.total_tokens * (seconds - pace_s * self.tokens)

    def passes(self, head: float) -> Floats:
        """How many passes of the baseline its steps come to where they draft nothing and the head is that share of a
        pass, [answers]: the layers they ran and a head each. 10 steps of half the layers and a head of 0.2: 6."""
        return (1 - head) * self.depth + head * self.steps

    def step_phase_s(self, name: str) -> float:
        """Seconds per step."""
        return float(self.phases[name].sum() / self.steps.sum())


def head_share(run: Run, text_tokens: float) -> float:
    """The head's share of the bytes that a step of the baseline reads after `text_tokens`, about its share of the time.

    Without `step_bytes` in the run: its share of all parameters. This estimate is too low if the parameters include an
    input embedding or experts that a step does not use, and too high because it leaves out the cache. 0 if the number
    of parameters is unknown too.
    """
    if run.step_bytes:
        head_bytes = run.target.vocabulary * run.target.hidden_size * ITEM_BYTES[run.weights or run.dtype]
        return head_bytes / (run.step_bytes + text_tokens * run.cache_token_bytes)
    if run.target.parameters:
        return run.target.vocabulary * run.target.hidden_size / run.target.parameters
    return 0.0


def _by_phases(
    ours: Sums, theirs: Sums, split: Sums, plain: Sums, head: float
) -> tuple[tuple[Part, ...], Floats, Floats]:
    """From free and profiled answers of method and baseline, where `head` is its share of a pass: the parts, and
    seconds of each answer [answers], those that the prediction includes and the baseline's for as many tokens.

    Target steps are steps of the baseline, or that share of its layers and a head; wider passes what verification takes
    beyond one row, and rest of passes what passes that verify nothing take beyond that: more heads, and deciding by
    them. Commit and host are what those take beyond the baseline's. The prediction of a method that drafts knows the
    first three. What is unexplained is how free rows differ from profiled ones.
    """
    verify_s, commit_s, host_s = (plain.step_phase_s(name) for name in ("verify", "commit", "host"))
    whole_s = sum(plain.phases.values(), np.zeros(len(plain.steps)))
    baseline_s = plain.for_tokens(whole_s, split.tokens)
    drafts = bool(split.drafted.any())
    passes = split.steps if drafts else split.passes(head)
    wider = "wider passes" if drafts else "rest of passes"
    parts_s = {
        "target steps": passes * verify_s + split.steps * (commit_s + host_s),
        "drafting": split.phases["draft"],
        wider: split.phases["verify"] - passes * verify_s,
        "commit": split.phases["commit"] - split.steps * commit_s,
        "host": split.phases["host"] - split.steps * host_s,
    }
    known = {"target steps", "drafting", wider} if drafts else {"target steps"}
    measured, unit_s = ours.token_s / theirs.token_s, float(baseline_s.sum())
    parts = [Part(name, float(seconds.sum()) / unit_s, name in known) for name, seconds in parts_s.items()]
    parts.append(Part(UNEXPLAINED, measured - sum(part.share for part in parts), False))
    known_s = sum((seconds for name, seconds in parts_s.items() if name in known), np.zeros(len(baseline_s)))
    return tuple(parts), known_s, baseline_s


def _floats(values: Iterable[float]) -> Floats:
    return np.array(list(values), dtype=np.float64)


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


_Cell = tuple[int, RowKey]
"""One answer of any method, in any mode: the number of its file, and its key without label and mode."""
_Answers = dict[_Cell, Row]
_Found = dict[tuple[str, Mode], _Answers]


def predict(files: Sequence[RunFile]) -> Accounts:
    """An account of every method that `files` have measured, the baseline left out.

    Raises UserError for files that may not be compared with each other, for batches, and where nothing was measured.
    """
    check_alike(files)
    run = files[0].run
    if run.batch_size > 1:
        raise UserError(
            "batched_run", f"{files[0].path}: was decoded in batches. Predict from a run of --batch-size 1."
        )
    found = _collect(files)
    rows = (row for file in files for row in file.rows)
    labels = dict.fromkeys(row.label for row in rows if row.mode == "free" and row.label != run.baseline)
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
                cell = number, row_key(row)._replace(label="", mode="free")
                found.setdefault((row.label, row.mode), {})[cell] = row
    return {
        key: {cell: row for cell, row in answers.items() if round_of(cell[0], row) not in invalid_rounds}
        for key, answers in found.items()
    }


def _predict(found: _Found, label: str, run: Run) -> Prediction | Unpredicted:
    """From the same answers of the method and of the baseline, free and profiled with all phases."""
    free, profiled = ([found.get((name, mode), {}) for name in (label, run.baseline)] for mode in _MODES)
    if not any(cell in free[1] for cell in free[0]):
        return Unpredicted(
            label, "it and the baseline have no valid answer with steps to the same prompt. See `benchctl compare`"
        )
    answers = [*free, *profiled]
    cells = [cell for cell in free[0] if all(cell in others for others in answers[1:])]
    if not cells or any(set(row.phases) != set(PHASES) for rows in profiled for row in rows.values()):
        reason = "it or the baseline was not profiled, or has steps without phases"
        return Unpredicted(label, f"{reason}. Measure with `benchctl run --profile`")
    sums = [Sums.of([others[cell] for cell in cells], run.target.layers) for others in answers]
    ours, theirs, split, plain = sums
    parts, known_s, baseline_s = _by_phases(ours, theirs, split, plain, head_share(run, theirs.step_text_tokens))
    sessions = codes_of([(file, key.session) for file, key in cells])
    levels = Levels(sessions, codes_of([(key.suite, key.prompt_id) for _, key in cells]))
    tops = np.column_stack([baseline_s, theirs.for_tokens(theirs.seconds, ours.tokens)])
    bottoms = np.column_stack([known_s, ours.seconds])
    values = (tops.sum(axis=0) / bottoms.sum(axis=0)).tolist()
    predicted, measured = map(Figure, values, ratio_intervals(tops, bottoms, levels))
    (interval,) = ratio_intervals(tops[:, 1:], bottoms[:, 1:], levels, less=(tops[:, :1], bottoms[:, :1]))
    return Prediction(
        label=label,
        prompts=len({(key.suite, key.prompt_id) for _, key in cells}),
        generations=len(cells),
        baseline_token_s=theirs.token_s,
        costs=_costs(ours, split, plain),
        predicted=predicted,
        measured=measured,
        gap=Figure(measured.value - predicted.value, interval),
        parts=parts,
    )


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
