"""Records as a table: one line per generation, with sums of the per-step lists and the unit in each column's name."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import pandas as pd

from benchctl.analysis.gather import Wanted, gather
from benchctl.recordfile import RunFile, read
from benchctl.records import Mode

# Answers to the same turn, measured in turns by the same process: only these are compared with each other.
_PAIRED = ["file", "suite", "prompt_id", "turn", "repeat", "session"]
_ANSWERED = ["suite", "prompt_id", "turn"]


def load(paths: Sequence[Path | str], *, warm_up: bool = False, mode: Mode = "free") -> pd.DataFrame:
    """The generations of results files, see `to_frame`. Raises UserError for a file that cannot be read."""
    return to_frame([read(path) for path in paths], warm_up=warm_up, mode=mode)


def to_frame(files: Sequence[RunFile], *, warm_up: bool = False, mode: Mode = "free") -> pd.DataFrame:
    """The generations of one mode: see `to_frames`."""
    return to_frames(files, [mode], warm_up=warm_up)[mode]


def to_frames(
    files: Sequence[RunFile], modes: Iterable[Mode], *, warm_up: bool = False, texts: bool = False
) -> dict[Mode, pd.DataFrame]:
    """A Line per generation of `files`, in the order of files and rows, warm-up left out unless asked for.

    A frame for each mode, for what is forced or profiled takes other times than what runs freely: a figure that mixed
    them would be of neither. All are made as the rows are gone through once, which is what takes time. Nothing is of
    methods that are not among its run's: see comparison.over. Answers' texts are as large as all else together, so they
    are left out unless asked for.

    Beside its fields there is a column `counter_...` for every counter, `fidelity_...` for every sum about fidelity,
    `condition_...` for every condition, `position_...` for every count of a draft's positions (see acceptance.py) and
    `phase_...` for the seconds of every phase of its steps that any of the rows has, empty for the others.
    """
    found = gather(files, Wanted(tuple(modes), warm_up, texts))
    return {mode: columns.frame(found.doubted) for mode, columns in found.columns.items()}


def pair(frame: pd.DataFrame, label: str, baseline: str) -> pd.DataFrame:
    """The valid generations of `label`, each with the baseline's answer to the same turn, if that is valid too.

    The baseline's columns end in `_baseline`. Every figure is taken over these pairs, so that all figures of a method,
    and the baseline's times, speak of the same prompts. A generation that failed is not valid, nor is any of a round
    that was measured out of bounds, see rounds.py. Where the two never shared a session, as in files of other programs,
    each generation stands beside every one of the baseline's for that turn; see measured_apart.
    """
    whole = frame[frame["error"].isna() & ~frame["round_invalid"]]
    answers, baselines = whole[whole["label"] == label], whole[whole["label"] == baseline]
    if _share_a_session(frame, label, baseline):
        pairs = answers.merge(baselines, on=_PAIRED, suffixes=("", "_baseline"))
        return pairs.assign(file_baseline=pairs["file"], session_baseline=pairs["session"])
    return answers.merge(baselines, on=_ANSWERED, suffixes=("", "_baseline"))


def measured_apart(pairs: pd.DataFrame) -> bool:
    """Whether these pairs set a session against another one, so that the difference between them is in every ratio."""
    same = (pairs["file"] == pairs["file_baseline"]) & (pairs["session"] == pairs["session_baseline"])
    return not bool(same.all())


def _share_a_session(frame: pd.DataFrame, label: str, baseline: str) -> bool:
    """Also where nothing of it came out well: a session whose baseline failed is not made up for by another's."""
    measured = frame[["label", "file", "session"]].drop_duplicates()
    sessions = [set(zip(rows["file"], rows["session"], strict=True)) for rows in
                (measured[measured["label"] == label], measured[measured["label"] == baseline])]  # fmt: skip
    return bool(sessions[0] & sessions[1]) or not all(sessions)
