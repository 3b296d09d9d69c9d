"""The pictures of `benchctl plot`, found by file name. No picture is imported before it is drawn.

A picture is a module in this folder, or an entry point of the group `benchctl.plots`, with `PLOT = Plot(...)` at top
level. Its name is the flag, and the first line of its docstring is the help.
"""

from __future__ import annotations

import ast
import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from benchctl.analysis import plots

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from benchctl.analysis.comparison import Group
    from benchctl.analysis.plots.style import Style

ENTRY_POINTS = "benchctl.plots"


@dataclass(frozen=True)
class Request:
    """What the command line asks for; "" and () for what it leaves out."""

    style: Style
    methods: tuple[str, ...] = ()
    quality: str = ""
    judge: str = ""
    by: str = ""


@dataclass(frozen=True)
class Drawing:
    """A figure, and notes about it for the user."""

    figure: Figure
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Plot:
    """A picture. `draw` gets the groups of runs that may be compared.

    options       options of `benchctl plot` that the picture uses, other than --out and --size
    needs_greedy  whether sampled and imported runs are left out
    """

    draw: Callable[[Sequence[Group], Request], Drawing]
    options: tuple[str, ...] = ()
    needs_greedy: Callable[[Request], bool] = lambda request: False


def helps() -> dict[str, str]:
    """Each picture's name with its line of help; built-in pictures first, and they win over others of their name."""
    modules = {name.rpartition(".")[2]: name for name in _built_in()}
    for entry in sorted(entry_points(group=ENTRY_POINTS), key=lambda entry: entry.name):
        modules.setdefault(entry.name, entry.module)
    found = ((name, _help(module)) for name, module in modules.items())
    return {name: line for name, line in found if line is not None}


def plot(name: str) -> Plot:
    """The picture of this name, which `helps` contains."""
    module = f"{plots.__name__}.{name}"
    if module not in _built_in():
        (module,) = (entry.module for entry in entry_points(group=ENTRY_POINTS, name=name))
    picture: Plot = import_module(module).PLOT
    return picture


def _built_in() -> list[str]:
    return [f"{plots.__name__}.{file.name}" for file in pkgutil.iter_modules(plots.__path__)]


def _help(module: str) -> str | None:
    """The first line of a module's docstring; None for a module without PLOT. Reads the source without running it."""
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        return None
    tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    targets = [target for node in tree.body if isinstance(node, ast.Assign) for target in node.targets]
    if not any(isinstance(target, ast.Name) and target.id == "PLOT" for target in targets):
        return None
    return (ast.get_docstring(tree) or "").partition("\n")[0]
