"""Scores made in code, for rows of fixtures_records, whose figures can be worked out by hand."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from fixtures_records import BASELINE, EXITING, write

from benchctl.records.schema import Row, Run, to_line
from benchctl.records.scores import Order, Score, scores_path

Both = tuple[float, float]


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def score(prompt_id: str = "p0", mine: float | None = 7, theirs: float | None = 7, /, **changes: Any) -> Score:
    """A pairwise judgement of early_exit's answer "mine" beside the baseline's "text"; see own() for single ones."""
    usual: dict[str, Any] = {
        "suite": "koala",
        "prompt_id": prompt_id,
        "turn": 0,
        "label": EXITING,
        "repeat": 0,
        "session": 0,
        "baseline": BASELINE,
        "judge": "gpt",
        "model": "gpt-4o",
        "protocol": "pairwise",
        "template": "pairwise-v1@0123456789abcdef",
        "order": "baseline_first",
        "score": None if mine is None else float(mine),
        "baseline_score": None if theirs is None else float(theirs),
        "unreadable": "" if mine is not None or changes.get("identical") else "no scores in it",
        "answer_sha256": sha256("mine"),
        "baseline_sha256": sha256("text"),
        "judged_at": "2025-01-01T00:00:00+00:00",
    }
    return Score(**(usual | changes))


def both_orders(prompt_id: str, baseline_first: Both, baseline_second: Both, /, **changes: Any) -> list[Score]:
    """Two judgements, each with the scores of early_exit's answer and of the baseline's."""
    orders: tuple[Order, Order] = ("baseline_first", "baseline_second")
    scores = zip(orders, (baseline_first, baseline_second), strict=True)
    return [score(prompt_id, mine, theirs, order=order, **changes) for order, (mine, theirs) in scores]


def same(prompt_id: str, /, protocol: Literal["pairwise", "exact"] = "pairwise", **changes: Any) -> Score:
    """Of early_exit's answer where it is the baseline's own."""
    given = None if protocol == "pairwise" else 1.0
    alike = {"order": "", "identical": True, "answer_sha256": sha256("text"), "protocol": protocol}
    return score(prompt_id, given, given, **(alike | changes))


def own(label: str, prompt_id: str, points: float | None, /, **changes: Any) -> Score:
    """A judgement of a single answer."""
    text = "text" if label == BASELINE else "mine"
    single = {"label": label, "protocol": "single", "order": "", "baseline": "", "baseline_sha256": ""}
    return score(
        prompt_id, points, None, **(single | {"answer_sha256": sha256(text), "template": "single-v1@ff"} | changes)
    )


def write_both(path: Path, rows: Sequence[Row], scores: Sequence[Score], run: Run) -> Path:
    """A results file, and the file of its scores beside it."""
    scores_path(path).write_bytes(b"".join(map(to_line, scores)))
    return write(path, rows, run)
