"""How often 95% intervals contain the truth, and equal methods are told apart: `python -m benchmarks.coverage`.

Data sets are drawn from measured times, so that lengths and gains are as uneven as they really are:

* Prompts are drawn with replacement from those that head-to-head.jsonl has of the baseline and of prompt lookup; the
  truth is the ratio over all of them. In a run of several suites each gives its own number of prompts: for "mixed" the
  four chat suites give equally many; for "all" they give a half, and the short tasks the other half. For "one file" all
  392 prompts are one suite, as if a user had written chats and tasks into one file; this line has no goal.
* Each generation is disturbed by a residual of the five sessions all-1.jsonl to all-5.jsonl, and 3% of them take 1.2
  to 3 times as long. Several sessions each favour the method or not, by 3%.
* A/A: the method's times are the baseline's, disturbed anew. Each p-value below 0.05 is then an error.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import numpy as np
import pandas as pd

from benchctl.analysis.frame.build import to_frames
from benchctl.analysis.stats.intervals import LEVEL, Floats, Levels, p_value, ratio_intervals
from benchctl.records.writer import read
from benchmarks.origin import circumstances

CHAT = ("koala", "self-instruct", "wizardlm", "mt-bench")
ALL = (*CHAT, "tasks")
LINES = {"mixed": CHAT, "all": ALL, **{suite: (suite,) for suite in ALL}, "one file": ALL}
PROMPTS, SESSIONS = (8, 16, 80), (1, 3)
_TURN = ["suite", "prompt_id", "turn"]
_SPIKES, _SESSION_SPREAD = 0.03, 0.03


@dataclass(frozen=True)
class World:
    """Measured times. `seconds` of each suite, [prompts, 2]: the baseline's and the method's; `residuals` of their
    logarithms."""

    seconds: Mapping[str, Floats]
    residuals: Floats

    @classmethod
    def of(cls, folder: Path) -> World:
        """From the kept results files."""
        pairs = _rows([folder / "head-to-head.jsonl"])
        pairs = pairs[pairs["error"].isna() & ~pairs["round_invalid"]]
        name = pairs["label"].str.partition("[")[0]
        times = pairs.groupby([name, "suite", "prompt_id"])["whole_s"].sum().unstack(0)
        times = times[["autoregressive", "prompt_lookup"]].dropna()
        sessions = _rows([folder / f"all-{number}.jsonl" for number in range(1, 6)])
        sessions = sessions[sessions["error"].isna() & ~sessions["round_invalid"]]
        logs = np.log(sessions["whole_s"])
        residuals = (logs - logs.groupby([sessions[key] for key in ("label", *_TURN)]).transform("mean")).to_numpy()
        return cls({suite: times.loc[suite].to_numpy() for suite in ALL}, residuals)


def _rows(paths: Sequence[Path]) -> pd.DataFrame:
    return to_frames([read(path) for path in paths], ["free"])["free"]


@dataclass(frozen=True)
class Line:
    """The shares of data sets whose interval contains the truth (n/a where there is none), lies above it, below it,
    and of pairs of equal methods that were called different."""

    suites: str
    prompts: int
    sessions: int
    covered: float
    too_high: float
    too_low: float
    width: float
    different: float


def study(world: World, suites: str, prompts: int, sessions: int, data_sets: int, seed: int = 0) -> Line:
    """`width` is the median quotient of an interval's ends."""
    rng = np.random.default_rng(seed)
    names = LINES[suites]
    strata = [world.seconds[name] for name in names]
    if suites == "one file":
        strata = [np.concatenate(strata)]
    shares = [1, 1, 1, 1, 4] if suites == "all" else [1] * len(strata)
    counts = [prompts * share // sum(shares) for share in shares]
    means = [count * stratum.mean(axis=0) for count, stratum in zip(counts, strata, strict=True)]
    baseline_s, method_s = np.sum(means, axis=0)
    truth = baseline_s / method_s
    ends, different = [], 0
    for _ in range(data_sets):
        drawn = np.concatenate(
            [stratum[rng.integers(len(stratum), size=count)] for count, stratum in zip(counts, strata, strict=True)]
        )
        above, below, levels = _measured(world, drawn, sessions, rng)
        (interval,) = ratio_intervals(above[:, None], below[:, None], levels)
        assert interval is not None
        ends.append((interval.low, interval.high))
        different += p_value(*_measured(world, drawn[:, [0, 0]], sessions, rng)) < LEVEL
    low, high = np.array(ends).T
    covered, too_high, too_low = ((low <= truth) & (truth <= high)).mean(), (low > truth).mean(), (high < truth).mean()
    width = float(np.median(high / low))
    return Line(
        suites, prompts, sessions, float(covered), float(too_high), float(too_low), width, different / data_sets
    )


def _measured(world: World, drawn: Floats, sessions: int, rng: np.random.Generator) -> tuple[Floats, Floats, Levels]:
    """Disturbed times of prompts `drawn` [prompts, 2]: one generation a session, or two in a single session of few."""
    repeats = 1 if sessions > 1 or len(drawn) >= 80 else 2
    session, prompt, _ = (code.ravel() for code in np.indices((sessions, len(drawn), repeats)))
    shape = (len(prompt), 2)
    seconds = drawn[prompt] * np.exp(rng.choice(world.residuals, shape))
    seconds *= np.where(rng.random(shape) < _SPIKES, rng.uniform(1.2, 3, shape), 1)
    if sessions > 1:
        seconds *= np.exp(rng.normal(0, _SESSION_SPREAD, (sessions, 2)))[session]
    return seconds[:, 0], seconds[:, 1], Levels(session, prompt)


@click.command()
@click.option("--data-sets", type=click.IntRange(10), default=2000, show_default=True, help="Drawn for each line.")
@click.option("--suites", type=click.Choice(tuple(LINES)), multiple=True, help="Lines to draw; all by default.")
@click.option("--results", type=click.Path(path_type=Path, exists=True), default="results/reference", show_default=True)
@click.option("--out", default="results/bench", show_default=True, type=click.Path(path_type=Path), help="Folder.")
def main(data_sets: int, suites: tuple[str, ...], results: Path, out: Path) -> None:
    """Count how often intervals contain the truth. Exit code 1 where a line misses the goal.

    \b
    Goal: 93 to 97% of intervals, at most 6% of equal pairs, in every line but "one file".
    Example:
      python -m benchmarks.coverage --suites mixed --data-sets 300
    """
    world, lines = World.of(results), []
    print(f"{'suites':14} prompts sessions  covered  too high  too low  width  A/A different")
    for name in suites or LINES:
        for prompts in PROMPTS:
            for sessions in SESSIONS:
                line = study(world, name, prompts, sessions, data_sets)
                lines.append(line)
                shares = f"{line.covered:9.3f} {line.too_high:9.3f} {line.too_low:8.3f} {line.width:6.2f}"
                print(f"{name:14} {prompts:7} {sessions:8}{shares} {line.different:14.3f}", flush=True)
    out.mkdir(parents=True, exist_ok=True)
    path = out / "figures-coverage.json"
    figures = {**circumstances(), "data_sets": data_sets, "lines": [asdict(line) for line in lines]}
    path.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    print(f"Figures: {path}")
    raise SystemExit(any(missed(line, data_sets) for line in lines))


def missed(line: Line, data_sets: int) -> bool:
    """Whether a line surely misses the goal: by more than two standard errors of its shares."""
    error = 2 * (0.05 * 0.95 / data_sets) ** 0.5
    return line.suites != "one file" and (
        not 0.93 - error <= line.covered <= 0.97 + error or line.different > 0.06 + error
    )


if __name__ == "__main__":
    main()
