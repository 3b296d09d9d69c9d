"""The shape of the house: who may import whom, which library has which door, how long things may be."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from benchctl.cli import VERBS, main

ROOT = Path(__file__).parent.parent
FILES = sorted(file for folder in ("benchctl", "methods", "judges") for file in (ROOT / folder).rglob("*.py"))

# A part may import itself and what stands behind its name here; every part may import errors.
LAYERS: dict[str, set[str]] = {
    "benchctl": set(),
    "benchctl.__main__": {"benchctl.cli"},
    "benchctl.errors": set(),
    "benchctl.records": set(),
    "benchctl.rowkeys": {"benchctl.records"},
    "benchctl.rowdecoder": {"benchctl.records"},
    "benchctl.rowstream": {"benchctl.records", "benchctl.rowdecoder", "benchctl.rowkeys"},
    "benchctl.runmatch": {"benchctl.records"},
    "benchctl.linefile": set(),
    "benchctl.recordfile": {
        "benchctl.linefile",
        "benchctl.records",
        "benchctl.rowkeys",
        "benchctl.rowstream",
        "benchctl.runmatch",
    },
    "benchctl.scores": {"benchctl.linefile", "benchctl.records", "benchctl.rowstream"},
    "benchctl.packs": set(),
    "benchctl.exact_match": set(),
    "benchctl.options": set(),
    "benchctl.offload": set(),  # what the real run in decoding and the simulator share: no tensors, no clock
    "benchctl.decoding": {"benchctl.offload"},
    "benchctl.methods": {"benchctl.decoding", "benchctl.offload"},
    "benchctl.registry": {"benchctl.decoding", "benchctl.judging", "benchctl.options"},
    "benchctl.analysis": {
        "benchctl.exact_match",
        "benchctl.recordfile",
        "benchctl.records",
        "benchctl.rowkeys",
        "benchctl.rowstream",
        "benchctl.scores",
    },
    "benchctl.measuring": {
        "benchctl.decoding",
        "benchctl.offload",
        "benchctl.packs",
        "benchctl.recordfile",
        "benchctl.records",
        "benchctl.registry",
        "benchctl.rowkeys",
    },
    "benchctl.training": {"benchctl.decoding", "benchctl.packs", "benchctl.registry"},
    "benchctl.conformance": {"benchctl.decoding", "benchctl.registry"},
    "benchctl.judging": {
        "benchctl.linefile",
        "benchctl.recordfile",
        "benchctl.records",
        "benchctl.rowkeys",
        "benchctl.scores",
    },
    "benchctl.judges": {
        "benchctl.decoding",
        "benchctl.exact_match",
        "benchctl.judging",
        "benchctl.packs",
        "benchctl.registry",
        "benchctl.scores",
    },
    "benchctl.importing": {"benchctl.records", "benchctl.scores"},
    "benchctl.cli": {
        "benchctl.analysis",
        "benchctl.conformance",
        "benchctl.decoding",
        "benchctl.importing",
        "benchctl.judging",
        "benchctl.linefile",
        "benchctl.measuring",
        "benchctl.offload",
        "benchctl.options",
        "benchctl.packs",
        "benchctl.recordfile",
        "benchctl.records",
        "benchctl.registry",
        "benchctl.rowkeys",
        "benchctl.scores",
        "benchctl.training",
    },
}

# A library may be imported only under the paths behind its name.
DOORS: dict[str, tuple[str, ...]] = {
    "click": ("benchctl/cli/",),
    "datasets": ("benchctl/training/hub_data.py",),
    "http": ("benchctl/measuring/download.py",),
    "huggingface_hub": (),
    "jinja2": ("benchctl/analysis/html",),
    "matplotlib": ("benchctl/analysis/plot",),
    "msgspec": ("benchctl/rowdecoder.py",),
    "openai": ("judges/",),
    "pandas": ("benchctl/analysis/",),
    "pynvml": ("benchctl/measuring/gpu.py",),
    "pydantic": ("benchctl/records.py", "benchctl/rowstream.py", "benchctl/scores.py"),
    "rouge_score": ("benchctl/analysis/overlap.py",),
    "sacrebleu": ("benchctl/analysis/overlap.py",),
    "rich": ("benchctl/cli/", "benchctl/analysis/report.py"),
    "time": ("benchctl/measuring/clock.py", "benchctl/training/"),
    "torch": ("benchctl/conformance/", "benchctl/decoding/", "benchctl/measuring/", "benchctl/training/", "methods/"),
    "tokenizers": ("benchctl/decoding/target.py", "benchctl/decoding/token_text.py", "benchctl/training/"),
    "transformers": (
        "benchctl/conformance/",
        "benchctl/decoding/hub.py",
        "benchctl/decoding/target.py",
        "benchctl/decoding/tokenizer.py",
        "benchctl/training/",
    ),
    "urllib": ("benchctl/measuring/download.py",),
}
METHOD_LIBRARIES = {"torch"}
IMPORTED_AS = {"nvidia-ml-py": "pynvml"}
PRINTERS = ("benchctl/cli/", "benchctl/analysis/report.py")
LINES_OF_FILE = 300
LINES_OF_METHOD_FILE = 150
LINES_OF_FUNCTION = 60


def name_of(file: Path) -> str:
    """Where a file sits in the installed package: methods/two_model.py is benchctl.methods.two_model."""
    parts = file.relative_to(ROOT).with_suffix("").parts
    dotted = ".".join(part for part in parts if part != "__init__")
    return dotted if dotted.startswith("benchctl") else f"benchctl.{dotted}"


def part_of(dotted: str) -> str:
    """The line of LAYERS that a module belongs to: benchctl.decoding for benchctl.decoding.cache."""
    return ".".join(dotted.split(".")[:2])


def imports_of(file: Path) -> Iterator[str]:
    """Every module that a file imports, at any depth of nesting, also those for types only."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module == "benchctl":
            yield from ("benchctl" if alias.name == "__version__" else f"benchctl.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield "." * node.level + (node.module or "")


def path_of(file: Path) -> str:
    return file.relative_to(ROOT).as_posix()


def pyproject() -> dict[str, object]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def commands(group: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The path of every command below a group, subcommands included."""
    if not isinstance(group, click.Group):
        yield path
        return
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None, name
        yield from commands(command, (*path, name))


@pytest.mark.parametrize("file", FILES, ids=path_of)
def test_imports_go_down(file: Path) -> None:
    part = part_of(name_of(file))
    allowed = LAYERS[part] | {part, "benchctl", "benchctl.errors"}
    ours = [name for name in imports_of(file) if name.split(".")[0] in ("benchctl", "methods", "judges", "")]
    assert [name for name in ours if part_of(name) not in allowed] == []


@pytest.mark.parametrize("file", FILES, ids=path_of)
def test_each_library_has_one_door(file: Path) -> None:
    libraries = {name.split(".")[0] for name in imports_of(file)}
    wrong = [name for name in libraries if name in DOORS and not path_of(file).startswith(DOORS[name])]
    assert wrong == []


@pytest.mark.parametrize("file", sorted((ROOT / "methods").glob("*.py")), ids=path_of)
def test_a_method_imports_only_decoding_torch_and_the_standard_library(file: Path) -> None:
    libraries = {name.split(".")[0] for name in imports_of(file)} - {"benchctl"}
    assert libraries - METHOD_LIBRARIES - sys.stdlib_module_names == set()


def test_every_library_imported_is_declared() -> None:
    project = pyproject()["project"]
    assert isinstance(project, dict)
    extras = project["optional-dependencies"]
    lines = [*project["dependencies"], *extras["datasets"], *extras["gpu"]]
    names = {re.split(r"[^\w-]", line)[0] for line in lines}
    declared = {IMPORTED_AS.get(name, name.replace("-", "_")) for name in names}
    imported = {name.split(".")[0] for file in FILES for name in imports_of(file)}
    assert imported - sys.stdlib_module_names - {"benchctl"} - declared == set()


@pytest.mark.parametrize("file", FILES, ids=path_of)
def test_files_and_functions_are_short(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    limit = LINES_OF_METHOD_FILE if file.parent.name in ("methods", "judges") else LINES_OF_FILE
    assert text.count("\n") <= limit
    functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    lengths = {node.name: (node.end_lineno or node.lineno) - node.lineno + 1 for node in functions}
    assert {name: lines for name, lines in lengths.items() if lines > LINES_OF_FUNCTION} == {}


@pytest.mark.parametrize("file", FILES, ids=path_of)
def test_only_the_command_line_and_the_report_print(file: Path) -> None:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    calls = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    prints = any(isinstance(function, ast.Name) and function.id == "print" for function in calls)
    assert not prints or path_of(file).startswith(PRINTERS)


def test_pyproject_lists_every_package() -> None:
    """A subpackage that is not listed is silently left out of the wheel."""
    tool = pyproject()["tool"]
    assert isinstance(tool, dict)
    folders = {part_of(name_of(file.parent / "__init__.py")) for file in FILES}
    assert sorted(tool["setuptools"]["packages"]) == sorted(folders)


@pytest.mark.parametrize("verb", VERBS)
def test_the_help_of_every_verb_shows_an_example(verb: str) -> None:
    group = main.get_command(click.Context(main), verb)
    assert group is not None
    for path in commands(group, (verb,)):
        help_text = CliRunner().invoke(main, [*path, "--help"]).output
        assert re.search(rf"^\s+benchctl {' '.join(path)} ", help_text, re.MULTILINE), path
