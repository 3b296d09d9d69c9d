"""Routing traces: which experts each visit of a layer needed, what was predicted, how long the computing took."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from benchctl.errors import UserError

SCHEMA_VERSION: Final = 1


@dataclass(frozen=True)
class Visit:
    """A layer's mixture of experts, reached by a pass.

    experts    those needed, in the order of computing
    predicted  what was predicted at this visit, by the coming layer: experts, the likeliest first
    before_s   seconds of computing since the visit before ended (attention, norms, head, embedding)
    predict_s  seconds the prediction took
    experts_s  seconds of demanding and computing all its experts, waiting left out
    """

    layer: int
    experts: tuple[int, ...]
    predicted: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    before_s: float = 0.0
    predict_s: float = 0.0
    experts_s: float = 0.0


Generation = tuple[Visit, ...]


@dataclass(frozen=True)
class Trace:
    """The visits of some generations, and the facts of their target.

    source     where it is from, for people: a label on a model, or how it was made up
    synthetic  made up by a generator, and not recorded from a run
    tpot_s     what the recorded run took for each decoded token; 0 for a synthetic trace
    stall_s    of that, seconds it waited for experts
    """

    source: str
    synthetic: bool
    layers: int
    experts: int
    top_k: int
    expert_bytes: int
    generations: tuple[Generation, ...]
    tpot_s: float = 0.0
    stall_s: float = 0.0

    @property
    def tokens(self) -> int:
        """Decoded tokens: passes after each generation's first, which is prefill."""
        return sum(passes(generation) - 1 for generation in self.generations)


def passes(generation: Sequence[Visit]) -> int:
    """Passes over the layers; one begins wherever the layer is not behind the one before."""
    return 1 + sum(after.layer <= before.layer for before, after in zip(generation, generation[1:], strict=False))


def write_trace(path: Path, trace: Trace) -> None:
    """One JSON object per line: the facts first, then each visit with the number of its generation.

    Raises UserError where the file cannot be written.
    """
    facts = {key: getattr(trace, key) for key in _FACTS}
    lines: list[Mapping[str, Any]] = [{"kind": "trace", "schema_version": SCHEMA_VERSION, **facts}]
    for number, generation in enumerate(trace.generations):
        lines += [{"kind": "visit", "generation": number, **asdict(visit)} for visit in generation]
    try:
        path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror}. Give another --out.") from error


def read_trace(path: Path) -> Trace:
    """A trace as written. Raises UserError, with file and line, for anything else."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read: {error}. Give a file of `benchctl simulate record`.") from error
    rows = [_object(path, number, line) for number, line in enumerate(text.splitlines(), 1)]
    if not rows or rows[0].get("kind") != "trace" or rows[0].get("schema_version") != SCHEMA_VERSION:
        raise UserError(f"{path}:1: is not a trace of this version. Record one with `benchctl simulate record`.")
    numbered = list(_visits(path, rows))
    generations = tuple(tuple(visit for _, visit in group) for _, group in groupby(numbered, key=lambda pair: pair[0]))
    try:
        return Trace(**{key: rows[0][key] for key in _FACTS}, generations=generations)
    except KeyError as error:
        raise UserError(f"{path}:1: lacks {error}. Record the trace anew.") from error


_FACTS = tuple(item.name for item in fields(Trace) if item.name != "generations")


def _object(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise UserError(f"{path}:{number}: is not a JSON object. Record the trace anew.")
    return found


def _visits(path: Path, rows: Sequence[dict[str, Any]]) -> Iterator[tuple[int, Visit]]:
    for number, row in enumerate(rows[1:], 2):
        try:
            predicted = {int(layer): tuple(experts) for layer, experts in row["predicted"].items()}
            seconds = (float(row[name]) for name in ("before_s", "predict_s", "experts_s"))
            visit = Visit(int(row["layer"]), tuple(row["experts"]), predicted, *seconds)
            generation = int(row["generation"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UserError(f"{path}:{number}: is not a visit ({error!r}). Record the trace anew.") from error
        if not 0 <= visit.layer < rows[0].get("layers", 0) or not visit.experts:
            raise UserError(f"{path}:{number}: visits layer {visit.layer}, which the target has not. Record it anew.")
        yield generation, visit
