"""A/A: the baseline against itself. How often equal arms are called different, and from which size on a difference of a
run like this one can be told from none."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import exp
from pathlib import Path
from statistics import NormalDist
from typing import TypeGuard

import numpy as np
import pandas as pd

from benchctl.analysis.frame.build import to_frame
from benchctl.analysis.stats.bootstrap import LEVEL, Floats, Ints, Levels, bootstrap
from benchctl.analysis.stats.student import critical
from benchctl.errors import UserError
from benchctl.records.schema import Run
from benchctl.records.writer import RunFile

SPLITS = 400
POWER = 0.8
_VERSION = 1


@dataclass(frozen=True)
class SelfComparison:
    """What equal arms look like, each with half of the repeats.

    `false_positive_rate` is the share of splits whose 95% interval leaves out 1; it should be about 0.05. A speed-up of
    `1 + minimum_detectable_effect`, alike on all prompts, would be called different with a chance of 80%.
    """

    baseline: str
    false_positive_rate: float
    minimum_detectable_effect: float
    prompts: int
    repeats: int
    sessions: int
    splits: int = SPLITS


@dataclass(frozen=True)
class Floor:
    """What compare is given: below `effect`, a share of 1, a speed-up is no difference. `measured_on` has the settings
    that it was found under."""

    path: Path
    effect: float
    measured_on: dict[str, object]

    def differs_from(self, run: Run) -> tuple[str, ...]:
        """The settings in which a run differs from those, so that its noise may be another."""
        return tuple(name for name, value in _settings(run).items() if self.measured_on.get(name) != value)


def compare_with_itself(files: Sequence[RunFile], *, splits: int = SPLITS, seed: int = 0) -> SelfComparison:
    """Deal the repeats of the baseline's every answer out to two equal arms, by lot, again and again.

    Repeats of an answer are measured close to each other, as the arms of a comparison are. The chances of a lot are
    those of a comparison whose arms do not differ, with the pairs, the interval and the noise of these files.

    Raises UserError for files without two prompts of two repeats each, and for sampled ones, whose repeats are other
    texts.
    """
    run = files[0].run
    if run.temperature > 0:
        raise UserError(f"{files[0].path}: its answers are sampled: each repeat is another text. Measure greedily.")
    times_s, levels = _cells(to_frame(files), run.baseline)
    prompts = int(levels.prompt.max(initial=-1)) + 1
    if prompts < 2:
        raise UserError(
            f"{files[0].path}: has fewer than two prompts that {run.baseline} answered twice or more in a session. "
            "Measure with --repeats 4 or more."
        )
    above, below = _deal(times_s, splits, np.random.default_rng(seed))
    found = [interval for interval in bootstrap(above, below, levels, seed=seed) if interval is not None]
    wrong = sum(not interval.low <= 1 <= interval.high for interval in found)
    spread = float(np.log(above.sum(axis=0) / below.sum(axis=0)).std(ddof=1))
    reach = critical(LEVEL, prompts - 1) + NormalDist().inv_cdf(POWER)
    return SelfComparison(
        baseline=run.baseline,
        false_positive_rate=wrong / len(found),
        minimum_detectable_effect=exp(reach * spread) - 1,
        prompts=prompts,
        repeats=times_s.shape[1],
        sessions=int(levels.session.max()) + 1,
        splits=splits,
    )


def to_text(found: SelfComparison, run: Run) -> str:
    """The file that `read_floor` reads."""
    record = {"kind": "aa", "schema_version": _VERSION, **asdict(found), **_settings(run)}
    return json.dumps(record, indent=2) + "\n"


def read_floor(path: Path | str) -> Floor:
    """Raises UserError for a file that `benchctl doctor --aa --out` did not write."""
    path = Path(path)
    try:
        record = json.loads(path.read_bytes())
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}.") from error
    except ValueError:
        record = None
    if not isinstance(record, dict) or record.get("kind") != "aa":
        raise UserError(f"{path}: is no A/A file. Make one with `benchctl doctor --aa --out {path.name}`.")
    effect = record.get("minimum_detectable_effect")
    if record.get("schema_version") != _VERSION or not _is_amount(effect):
        raise UserError(f"{path}: has no minimum_detectable_effect of this version ({_VERSION}). Make it anew.")
    return Floor(path, float(effect), record)


def _is_amount(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < np.inf


def _settings(run: Run) -> dict[str, object]:
    """What the noise of a run depends on."""
    return {
        "target_sha256": run.target.weights_sha256,
        "dtype": run.dtype,
        "device": run.device,
        "threads": run.threads,
        "batch_size": run.batch_size,
        "cpu": run.machine.get("cpu"),
        "gpu": run.machine.get("gpu"),
    }


def _cells(frame: pd.DataFrame, baseline: str) -> tuple[Floats, Levels]:
    """Whole seconds [cells, repeats] of each prompt in each session, its turns together, and which these are.

    The number of repeats is even, and that which leaves out the fewest generations: cells that have less are left out,
    and so are the last repeats of those that have more.
    """
    valid = frame[(frame["label"] == baseline) & frame["error"].isna() & ~frame["round_invalid"]]
    where = ["file", "session", "suite", "batch"]
    turns = valid.groupby([*where, "repeat"])["whole_s"].agg(["sum", "size"])
    # A repeat that lost one of its turns would look fast.
    whole = turns[turns["size"] == turns.groupby(level=where)["size"].transform("max")]["sum"]
    cells: dict[tuple[object, ...], list[float]] = {}
    for place, time_s in zip(whole.reset_index()[where].itertuples(index=False, name=None), whole, strict=True):
        cells.setdefault(place, []).append(time_s)
    repeats = _repeats([len(times) for times in cells.values()])
    kept = [(place, times[:repeats]) for place, times in cells.items() if len(times) >= repeats]
    if not kept or not repeats:
        return np.zeros((0, 2)), Levels(_codes([]), _codes([]))
    sessions, prompts = ([place[:2] for place, _ in kept], [place[2:] for place, _ in kept])
    return np.array([each for _, each in kept], dtype=float), Levels(_codes(sessions), _codes(prompts))


def _repeats(counts: Sequence[int]) -> int:
    """For cells of 8, 8, 7 and 2 repeats it is 6: 18 generations, where 8 would keep 16 and 2 only 8. 0 for none."""
    evens = range(2, max(counts, default=0) + 1, 2)
    return max(evens, key=lambda even: even * sum(count >= even for count in counts), default=0)


def _codes(places: Sequence[tuple[object, ...]]) -> Ints:
    known = {place: code for code, place in enumerate(dict.fromkeys(places))}
    return np.array([known[place] for place in places], dtype=np.int64)


def _deal(times_s: Floats, splits: int, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Two arms [cells, splits]: sums of one half of the repeats of each cell, and of the other."""
    cells, repeats = times_s.shape
    first = np.argsort(rng.random((splits, cells, repeats)), axis=2) < repeats // 2
    above = (times_s * first).sum(axis=2).T
    return above, times_s.sum(axis=1)[:, None] - above
