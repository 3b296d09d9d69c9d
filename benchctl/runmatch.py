"""Whether a run may go on in a file: only with the settings, and on the machine, that its first line names."""

from pathlib import Path
from typing import Any

from benchctl.errors import UserError
from benchctl.records import ModelInfo, Run, SuiteInfo

_SAME_ON_RESUME = (
    *("target", "draft", "baseline", "methods", "suites", "dtype", "device", "executor", "attention", "threads"),
    *("temperature", "top_p", "top_k", "seed", "max_new_tokens", "repeats", "batch_size", "modes", "context_fill"),
    "order",
)


def check_same_run(path: Path, stored: Run, run: Run) -> None:
    """Raises UserError, naming the setting, unless `run` may go on in `path`, whose first line is `stored`."""
    for field in _SAME_ON_RESUME:
        old, new = getattr(stored, field), getattr(run, field)
        if old != new:
            raise UserError(
                f"{path}: cannot be resumed, {field} differs: {_difference(old, new)}. "
                "Use the settings of its first line, or give another --out."
            )
    for fact in ("cpu", "gpu"):
        if stored.machine.get(fact) != run.machine.get(fact):
            raise UserError(f"{path}: was measured on another machine ({fact} differs). Give another --out.")


def _difference(old: Any, new: Any) -> str:
    """What `old` has and `new` has not, by name where it has one: lists of methods and suites are long."""
    if not (isinstance(old, tuple) and isinstance(new, tuple)):
        return f"it has {_short(old)}, this run has {_short(new)}"
    lost, added = ([item for item in one if item not in other] for one, other in ((old, new), (new, old)))
    if not (lost or added):
        return "it has them in another order"
    return f"it has {_names(lost)}, this run has {_names(added)} instead"


def _names(items: list[Any]) -> str:
    return ", ".join(map(_short, items)) or "nothing"


def _short(value: Any) -> str:
    if isinstance(value, SuiteInfo):
        return f"{value.name} ({value.prompts} prompts, {value.source} from {value.origin}, {value.sha256[:8]})"
    if isinstance(value, ModelInfo):
        return f"{value.name} (weights {value.weights_sha256[:8]})"
    modules = getattr(value, "modules_sha256", "")
    return str(getattr(value, "label", value)) + (f" (modules {modules[:8]})" if modules else "")
