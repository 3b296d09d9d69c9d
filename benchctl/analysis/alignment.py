"""How early each residual stream aligns with the last layer, as held-out text showed when its modules were trained."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchctl.errors import UserError

FACTS = "modules.json"
_COSINE = re.compile(r"cosine_(\d+)_(slow|accelerated|target)")
_GATE = re.compile(r"gate_(\d+)_(slow|accelerated|exit)")

SOURCES = ("slow", "exit", "accelerated")


@dataclass(frozen=True)
class Alignment:
    """What the folder of a method with two streams says of them, by layer.

    cosines     for slow, accelerated (with the last layer's state) and target (of the accelerated state with what it
                was to become): layer -> mean cosine
    agreements  for slow, exit and accelerated: gate -> share of tokens that agree with the last layer
    """

    folder: Path
    title: str
    layers: int
    cosines: Mapping[str, Mapping[int, float]]
    agreements: Mapping[str, Mapping[int, float]]

    @property
    def gates(self) -> tuple[int, ...]:
        return tuple(sorted(self.agreements["accelerated"]))

    @property
    def intervals(self) -> Sequence[tuple[int, int]]:
        """First layer and gate of each interval: the accelerated stream starts from the slow one at each gate anew."""
        return list(zip((0, *self.gates), self.gates, strict=False))


def read_alignment(folder: Path) -> Alignment:
    """Raises UserError where the folder holds no modules, or those of a method without an accelerated stream."""
    file = folder / FACTS
    if not file.is_file():
        raise UserError(f"{folder}: holds no {FACTS}; name the folder that benchctl train m2r2 wrote.")
    try:
        facts = json.loads(file.read_text(encoding="utf-8"))
        method, target = str(facts["method"]), facts["target"]
        name, layers = str(target["name"]), int(target["layers"])
        yardsticks = {str(key): float(value) for key, value in dict(facts["yardsticks"]).items()}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{file}: cannot be read ({error!r}); train the modules anew.") from error
    cosines, agreements = _by_layer(_COSINE, yardsticks), _by_layer(_GATE, yardsticks)
    if not {"slow", "accelerated", "target"} <= set(cosines) or not set(SOURCES) <= set(agreements):
        raise UserError(f"{folder}: modules of {method} say nothing of two streams; name m2r2's, not for mode=aot.")
    return Alignment(folder, f"{method} on {name}", layers, cosines, agreements)


def _by_layer(pattern: re.Pattern[str], yardsticks: Mapping[str, float]) -> dict[str, dict[int, float]]:
    found: dict[str, dict[int, float]] = {}
    for name, value in yardsticks.items():
        if match := pattern.fullmatch(name):
            found.setdefault(match[2], {})[int(match[1])] = value
    return {kind: dict(sorted(values.items())) for kind, values in found.items()}
