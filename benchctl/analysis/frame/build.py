"""Records as a table of generations, which of them count, and how far their answers are the target's.

A round is one repeat of a prompt, or of a batch, in one session, with all turns, labels and modes. Where any row of a
round is `invalid` (measured out of bounds), figures leave out the whole round, for all labels alike: leaving out single
generations would favour the shorter ones, see measuring/validity.py. A repeat beyond those of the run is a round
measured again (measuring/plan.py). It replaces the planned repeat.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import pandas as pd

from benchctl.analysis.frame.rows import Line, line_of, named_amounts
from benchctl.records.schema import Exactness, Mode, Row
from benchctl.records.writer import RunFile

_HALF = ("bfloat16", "float16")
_FAILED_CONTROLS = "fidelity_failed_controls"  # a column of frame/rows.py
_PLANNED = ["file", "session", "suite", "prompt_id", "turn", "label"]  # and the planned repeat
_WORST_FIRST: Final = ("lossy", "numeric", "failed", "unjudged", "sampled", "tie", "identical")
_RETRIED: Final = ("failed", "unjudged")  # a later try replaces these
_LEAST_PASS_TIME = 0.5  # of the baseline's, for a pass of equal depth
_RUNAWAY = 2  # times the baseline's length

Repeats = Mapping[int, int]
"""How many repeats were planned, by number of file."""


class Round(NamedTuple):
    """`file` numbers the files; a batch is named by its first prompt."""

    file: int
    session: int
    suite: str
    batch: str
    repeat: int


def round_of(file: int, row: Row) -> Round:
    """The round that a row belongs to."""
    return Round(file, row.session, row.suite, row.batch[0] if row.batch else row.prompt_id, row.repeat)


def planned_repeat(repeat: pd.Series, repeats: pd.Series) -> pd.Series:
    """The planned repeat that each repeat is, or replaces: with 2 planned repeats, 1, 3 and 5 all mean repeat 1."""
    return repeat % repeats


@dataclass(frozen=True)
class Fidelity:
    """Counts of planned generations by verdict, by failure, and without a verdict because the control failed.

    Rounds that figures leave out count too. Each turn of a prompt in each repeat counts once, by the worst verdict of
    all its tries: an answer that is not the target's is evidence against the method even where its times do not count.
    For failures and missing verdicts the last try counts. `median_first_divergence` is None where no answer diverged.
    """

    identical: int = 0
    tie: int = 0
    numeric: int = 0
    lossy: int = 0
    sampled: int = 0
    failed: int = 0
    unjudged: int = 0
    median_first_divergence: float | None = None

    @property
    def compared(self) -> int:
        """Answers that were compared with the baseline's."""
        return self.identical + self.tie + self.numeric + self.lossy


def fidelity(answers: pd.DataFrame, repeats: Repeats) -> Fidelity:
    """The counts of one method's generations; `answers` includes failed ones and all tries."""
    # Verdict, `unjudged` or `failed` of each answer; missing where there is none, as for the baseline.
    states, divergences = answers["verdict"].astype(object), answers["first_divergence"]
    if (controls := answers.get(_FAILED_CONTROLS)) is not None:
        states = states.mask(states.isna() & (controls > 0), "unjudged")
    states = states.mask(answers["error"].notna(), "failed")
    if _measured_again(answers, repeats):
        states = states.where(_is_last(answers, repeats) | ~states.isin(_RETRIED))
        ranks = states.map({state: rank for rank, state in enumerate(_WORST_FIRST)}).fillna(len(_WORST_FIRST))
        worst = ranks.groupby(_planned(answers, repeats), sort=False).idxmin()
        states, divergences = states.loc[worst], divergences.loc[worst]
    counts, diverged = states.value_counts(), divergences.dropna()
    return Fidelity(
        **{state: int(counts.get(state, 0)) for state in _WORST_FIRST},
        median_first_divergence=float(diverged.median()) if len(diverged) else None,
    )


def last_tries(generations: pd.DataFrame, repeats: Repeats) -> pd.DataFrame:
    """The last try of each planned generation."""
    return generations[_is_last(generations, repeats)] if _measured_again(generations, repeats) else generations


def _measured_again(generations: pd.DataFrame, repeats: Repeats) -> bool:
    return bool((generations["repeat"] >= generations["file"].map(repeats)).any())


def _is_last(generations: pd.DataFrame, repeats: Repeats) -> pd.Series:
    return generations["repeat"] == generations["repeat"].groupby(_planned(generations, repeats)).transform("max")


def _planned(generations: pd.DataFrame, repeats: Repeats) -> list[pd.Series]:
    """The keys of the planned generation that each generation is a try of."""
    repeat = planned_repeat(generations["repeat"], generations["file"].map(repeats))
    return [*(generations[name] for name in _PLANNED), repeat]


def claims_exact(exactness: Exactness, temperature: float) -> bool:
    """Whether the method claims the target's own answers under this sampling (`exact_greedy` does at temperature 0)."""
    return exactness == "exact" or (exactness == "exact_greedy" and temperature == 0)


def broken(counts: Fidelity, dtype: str) -> int:
    """The number of answers that no exact method gives: lossy ones, and outside half precision numeric ones too.

    In float32 or finer, rounding does not explain a numeric difference.
    """
    return counts.lossy + (0 if dtype in _HALF else counts.numeric)


def is_lossless(claim: bool, counts: Fidelity, dtype: str) -> bool:
    """Whether a report may call the method lossless: it claims so, and every one of its answers confirms it."""
    confirmed = counts.identical + counts.tie + counts.numeric
    return claim and confirmed > 0 and broken(counts, dtype) + counts.sampled + counts.failed + counts.unjudged == 0


def remembering(frame: pd.DataFrame, same_answers: bool) -> list[str]:
    """Labels that answered a prompt again in other steps. Greedy steps follow from the text, so such a method remembers
    earlier answers, and its speed is not that of a prompt it has not seen.

    With ``same_answers`` only equal answers of first turns are compared: in half precision answers may differ by
    rounding, and later turns then follow different texts.
    """
    answered = frame[frame["error"].isna() & frame["steps"].gt(0)]
    answered = answered[answered["turn"] == 0] if same_answers else answered
    keys = ["label", "suite", "prompt_id", "turn", *(["answer_id"] if same_answers else [])]
    ways = answered.groupby(keys)["steps_id"].nunique()
    return sorted(ways[ways > 1].index.unique("label"))


def impossibly_fast(pairs: pd.DataFrame) -> bool:
    """Whether the method's passes over the target took less than half the time of the baseline's, at equal depth.

    A pass reads at least the weights of the layers it runs, whatever its rows, so no method gets below that: the work
    was done elsewhere, or the clock is wrong. Measured times set the bound, since weights may lie in a cache.
    """
    first_layers = (
        pairs["full_layers"] / pairs["new_tokens"]
    ).sum()  # the prefill gives the first token, at full depth
    full_layers = pairs["full_layers"].sum() - first_layers
    if not full_layers > 0 or not pairs["passes"].sum() or not pairs["passes_baseline"].sum():
        return False
    depth = (pairs["depth_layers"].sum() - first_layers) / full_layers
    pass_s = pairs["decode_s"].sum() / pairs["passes"].sum()
    return bool(pass_s < _LEAST_PASS_TIME * depth * pairs["decode_s_baseline"].sum() / pairs["passes_baseline"].sum())


def agreed_tokens(pairs: pd.DataFrame) -> pd.Series:
    """Tokens before the first divergence; 0 where there is no verdict (the baseline, sampling)."""
    diverged = pairs["verdict"].isin(["tie", "numeric", "lossy"])
    identical_tokens = pairs["new_tokens"].where(pairs["verdict"] == "identical", 0)
    return pairs["first_divergence"].where(diverged, identical_tokens).astype(float)


def compared_tokens(pairs: pd.DataFrame) -> pd.Series:
    """Tokens that could have agreed: the longer of the two answers, since after the first divergence the texts differ.

    At a tie or a numeric difference the comparison ends: both tokens were the target's choice, and the method is not
    the reason why the texts differ from there on. So agreement is 1 for answers that are identical up to ties.
    Example: 10 tokens diverging at index 4 from a baseline of 16 tokens: 4 of 16 agree, and at a tie 4 of 4.
    """
    reached = pairs["first_divergence"].fillna(0) + 1
    longer = pd.concat([pairs["new_tokens"], pairs["new_tokens_baseline"], reached], axis=1).max(axis=1)
    return longer.where(pairs["verdict"] == "lossy", agreed_tokens(pairs)).astype(float)


def runs_away(pairs: pd.DataFrame) -> pd.Series:
    """Whether the limit cuts a method's answer off where the baseline's ended by itself, or it is over twice as long.

    The baseline never runs away.
    """
    cut = pairs["stop_reason"].isin(["length", "context"]) & (pairs["stop_reason_baseline"] == "stop")
    method_tokens, baseline_tokens = (pairs[name].astype(float) for name in ("new_tokens", "new_tokens_baseline"))
    return cut | (method_tokens > _RUNAWAY * baseline_tokens)


def degenerates(pairs: pd.DataFrame) -> pd.Series:
    """Whether the method's own answer loops or runs away. Such text is easy to draft, so it inflates a speed-up."""
    return (pairs["loops"].astype(float) > 0) | runs_away(pairs)


def either_degenerates(pairs: pd.DataFrame) -> pd.Series:
    """Whether the method's answer or the baseline's is degenerate: either text sets the time of one side."""
    return degenerates(pairs) | (pairs["loops_baseline"].astype(float) > 0)


# Answers to the same turn, measured in turns by the same process: only these are compared with each other.
_PAIRED = ["file", "suite", "prompt_id", "turn", "repeat", "session"]
_ANSWERED = ["suite", "prompt_id", "turn"]


def to_frames(files: Sequence[RunFile], modes: Iterable[Mode]) -> dict[Mode, pd.DataFrame]:
    """A Line per generation of `files`, in the order of files and rows, without warm-up.

    There is a frame for each mode, since forced and profiled generations take other times than free ones. One pass over
    the rows fills all frames. Rows of methods that their run does not list are left out.

    In addition to the fields of Line there is a column `counter_...` for every counter, `fidelity_...` for every sum
    about fidelity, `condition_...` for every condition, `position_...` for every count of a draft's positions and
    `phase_...` for the seconds of every phase that any row has, empty for the others.

    Raises UserError for a file that cannot be read.
    """
    columns = {mode: _Columns() for mode in modes}
    invalid: set[Round] = set()
    for number, file in enumerate(files):
        suites = {suite.name: suite for suite in file.run.suites}
        labels = {method.label for method in file.run.methods}
        for batch in _batches(file.rows):
            batch_decode_s = max(row.decode_s for row in batch)
            if any(row.invalid for row in batch):
                invalid.add(round_of(number, batch[0]))
            for row in batch:
                if row.mode in columns and row.label in labels and row.repeat >= 0:
                    columns[row.mode].add(line_of(number, row, file.run, suites[row.suite], batch_decode_s), row)
    return {mode: each.frame(invalid) for mode, each in columns.items()}


def _batches(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """The rows that were decoded together: rows of a batch stand together, see Row."""
    waiting: list[Row] = []
    for row in rows:
        waiting.append(row)
        if len(waiting) >= len(row.batch):
            yield waiting
            waiting = []


def pair(frame: pd.DataFrame, label: str, baseline: str) -> pd.DataFrame:
    """The valid generations of `label`, each with the baseline's answer to the same turn, if that is valid too.

    The baseline's columns end in `_baseline`. Every figure is taken over these pairs, so that all figures of a method,
    and the baseline's times, are of the same prompts. A generation that failed is not valid, nor is one of an invalid
    round. Where the two never shared a session, as in files of other programs, each generation is paired
    with every one of the baseline's for that turn; see stats/estimates.py.
    """
    whole = frame[frame["error"].isna() & ~frame["round_invalid"]]
    answers, baselines = whole[whole["label"] == label], whole[whole["label"] == baseline]
    measured = frame[["label", "file", "session"]].drop_duplicates()
    labels, places = measured["label"], measured[["file", "session"]]
    sessions = [set(places[labels == each].itertuples(index=False, name=None)) for each in (label, baseline)]
    if sessions[0] & sessions[1] or not all(sessions):  # failed generations included
        pairs = answers.merge(baselines, on=_PAIRED, suffixes=("", "_baseline"))
        return pairs.assign(file_baseline=pairs["file"], session_baseline=pairs["session"])
    return answers.merge(baselines, on=_ANSWERED, suffixes=("", "_baseline"))


class _Columns:
    """The columns of a frame while its lines are added."""

    def __init__(self) -> None:
        self._lines: list[Line] = []
        self._named: dict[str, list[float | None]] = {}

    def add(self, line: Line, row: Row) -> None:
        """A line, with the amounts that its row holds by name: each name that occurs in any row gets a column."""
        before = len(self._lines)
        self._lines.append(line)
        for name, amount in named_amounts(row):
            column = self._named.setdefault(name, [])
            column += [None] * (before - len(column))  # for the lines since the last one with this name
            column.append(amount)

    def frame(self, invalid: Set[Round]) -> pd.DataFrame:
        """The columns, each at full length, and whether a line is of an invalid round."""
        lines = len(self._lines)
        columns: dict[str, list[Any]] = {
            name: [line[field] for line in self._lines] for field, name in enumerate(Line._fields)
        }
        columns |= {name: values + [None] * (lines - len(values)) for name, values in self._named.items()}
        rounds = zip(*(columns[name] for name in Round._fields), strict=True)
        return pd.DataFrame(columns).assign(round_invalid=pd.Series([each in invalid for each in rounds], dtype=bool))
