"""The structure of the package: who may import whom, and which files may import which library."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
FILES = sorted(file for folder in ("benchctl", "methods", "judges") for file in (ROOT / folder).rglob("*.py"))

# A part may import itself and the parts in its line; every part may import errors.
LAYERS: dict[str, set[str]] = {
    "benchctl": set(),
    "benchctl.__main__": {"cli"},
    "benchctl.errors": set(),
    "benchctl.exact_match": set(),
    "benchctl.locks": set(),
    "benchctl.options": set(),
    "benchctl.gguf": set(),
    "benchctl.gguf_export": {"decoding", "gguf"},
    "benchctl.bundled": {"gguf"},
    "benchctl.fetch": {"bundled", "decoding", "gguf"},
    "benchctl.records": {"locks"},
    "benchctl.decoding": {"gguf"},
    "benchctl.methods": {"decoding"},
    "benchctl.judging": {"records"},
    "benchctl.judges": {"bundled", "decoding", "exact_match", "judging", "records", "registry"},
    "benchctl.serving": {"bundled", "decoding", "gguf", "gguf_export", "records"},
    "benchctl.engines": {"bundled", "gguf", "records", "serving"},
    "benchctl.registry": {"bundled", "decoding", "judging", "options", "records", "serving"},
    "benchctl.analysis": {"exact_match", "records"},
    "benchctl.measuring": {"bundled", "decoding", "options", "records", "registry", "serving"},
    "benchctl.training": {"bundled", "decoding", "locks", "options", "registry"},
    "benchctl.conformance": {"decoding", "registry"},
    "benchctl.importing": {"records"},
    "benchctl.sweeps": {"locks", "records"},
    "benchctl.cli": {
        *("analysis", "bundled", "conformance", "decoding", "fetch", "importing", "judging", "measuring"),
        *("options", "records", "registry", "sweeps", "training"),
    },
}

# A library may be imported only under the paths behind its name.
DOORS: dict[str, tuple[str, ...]] = {
    "click": ("benchctl/cli/",),
    "datasets": ("benchctl/training/data/reading.py",),
    "http": ("benchctl/measuring/prompts/sources.py", "benchctl/serving/client.py"),
    "gguf": ("benchctl/gguf.py", "benchctl/gguf_export.py"),
    "huggingface_hub": ("benchctl/fetch.py",),
    "jinja2": ("benchctl/analysis/html",),
    "matplotlib": ("benchctl/analysis/plots/",),
    "msgspec": ("benchctl/importing/", "benchctl/records/", "benchctl/sweeps/spec.py"),
    "openai": ("judges/",),
    "openvino": ("benchctl/engines/openvino.py",),
    "openvino_genai": ("benchctl/engines/openvino.py",),
    "xllamacpp": ("benchctl/serving/llama_server.py",),
    "pandas": ("benchctl/analysis/",),
    "pynvml": ("benchctl/measuring/machine/gpu.py",),
    "rich": ("benchctl/cli/", "benchctl/analysis/tables/grids.py"),
    "scipy": ("benchctl/analysis/", "benchctl/conformance/", "benchctl/training/modules/calibrate.py"),
    "time": (
        *("benchctl/judging/asking.py", "benchctl/measuring/clock.py", "benchctl/sweeps/work.py"),
        *("benchctl/training/", "judges/gpt.py"),
    ),
    "torch": (
        *("benchctl/conformance/", "benchctl/decoding/", "benchctl/gguf.py", "benchctl/measuring/"),
        *("benchctl/sweeps/work.py", "benchctl/training/", "methods/"),
    ),
    "tokenizers": ("benchctl/decoding/model/", "benchctl/gguf.py"),
    "transformers": (
        *("benchctl/conformance/", "benchctl/decoding/model/"),
        *("benchctl/fetch.py", "benchctl/gguf.py", "benchctl/training/"),
    ),
    "urllib": ("benchctl/measuring/prompts/sources.py", "benchctl/serving/client.py", "judges/gpt.py"),
}
METHOD_LIBRARIES = {"safetensors", "torch"}
IMPORTED_AS = {"nvidia-ml-py": "pynvml"}


def name_of(file: Path) -> str:
    """Where a file sits in the installed package: methods/two_model.py is benchctl.methods.two_model."""
    parts = file.relative_to(ROOT).with_suffix("").parts
    dotted = ".".join(part for part in parts if part != "__init__")
    return dotted if dotted.startswith("benchctl") else f"benchctl.{dotted}"


def package_of(file: Path, level: int) -> str:
    """What a relative import of this level starts from: level 1 in methods/m2r2/base.py is benchctl.methods.m2r2."""
    parts = name_of(file.parent / "__init__.py").split(".")
    return ".".join(parts[: len(parts) - level + 1])


def part_of(dotted: str) -> str:
    """The line of LAYERS that a module belongs to: benchctl.decoding for benchctl.decoding.kv.cache."""
    return ".".join(dotted.split(".")[:2])


@cache
def nodes_of(file: Path) -> tuple[ast.AST, ...]:
    """Every node of a file's syntax tree; each file is parsed once."""
    return tuple(ast.walk(ast.parse(file.read_text(encoding="utf-8"))))


def imports_of(file: Path) -> Iterator[str]:
    """Every module that a file imports, at any depth of nesting, also those for types only."""
    for node in nodes_of(file):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module == "benchctl":
            yield from ("benchctl" if alias.name == "__version__" else f"benchctl.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield (f"{package_of(file, node.level)}." if node.level else "") + (node.module or "")


def path_of(file: Path) -> str:
    return file.relative_to(ROOT).as_posix()


def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_imports_go_down() -> None:
    upwards: dict[str, list[str]] = {}
    for file in FILES:
        part = part_of(name_of(file))
        allowed = {f"benchctl.{name}" for name in LAYERS[part]} | {part, "benchctl", "benchctl.errors"}
        ours = [name for name in imports_of(file) if name.split(".")[0] in ("benchctl", "methods", "judges", "")]
        if wrong := [name for name in ours if part_of(name) not in allowed]:
            upwards[path_of(file)] = wrong
    assert upwards == {}


def test_each_library_has_one_door() -> None:
    wrong = {
        path_of(file): name
        for file in FILES
        for name in {name.split(".")[0] for name in imports_of(file)}
        if name in DOORS and not path_of(file).startswith(DOORS[name])
    }
    assert wrong == {}


def test_a_method_imports_only_decoding_torch_and_the_standard_library_and_no_other_method() -> None:
    """But for the modules of a package whose name its own begins with: m2r2_dynamic builds on the streams of m2r2."""
    for file in sorted((ROOT / "methods").rglob("*.py")):
        importer = method_of(name_of(file))
        for name in imports_of(file):
            library = name.split(".")[0]
            assert library in METHOD_LIBRARIES | sys.stdlib_module_names | {"benchctl"}, path_of(file)
            if part_of(name) == "benchctl.methods" and method_of(name) != importer:
                assert name.count(".") > 2 and importer.startswith(f"{method_of(name)}_"), (path_of(file), name)


def method_of(dotted: str) -> str:
    """m2r2 for benchctl.methods.m2r2.gates."""
    return ".".join(dotted.split(".")[2:3])


def test_every_library_imported_is_declared() -> None:
    project = pyproject()["project"]
    extras = project["optional-dependencies"]
    lines = [*project["dependencies"]]
    lines += [line for name in ("datasets", "gguf", "gpu", "llama-cpp", "openvino") for line in extras[name]]
    names = {re.split(r"[^\w-]", line)[0] for line in lines}
    declared = {IMPORTED_AS.get(name, name.replace("-", "_")) for name in names}
    imported = {name.split(".")[0] for file in FILES for name in imports_of(file)}
    assert imported - sys.stdlib_module_names - {"benchctl"} - declared == set()


def test_pyproject_lists_every_package() -> None:
    """A subpackage that is not listed is silently left out of the wheel."""
    folders = {name_of(file.parent / "__init__.py") for file in FILES}
    assert sorted(pyproject()["tool"]["setuptools"]["packages"]) == sorted(folders)


ERRORS = {"UserError", "InvalidData", "NoReply"}


def test_every_error_for_users_has_an_id() -> None:
    """Tests name it instead of the wording: two arguments, the first snake_case as far as it is literal."""
    for file in FILES:
        for node in nodes_of(file):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ERRORS:
                assert len(node.args) == 2, f"{path_of(file)}:{node.lineno}"
                literal = [part.value for part in ast.walk(node.args[0]) if isinstance(part, ast.Constant)]
                assert all(re.fullmatch(r"[a-z0-9_]+", str(text)) for text in literal), f"{path_of(file)}:{node.lineno}"


# The same name in two of these folders is the same subject seen by each of them: its verb, its numbers, its picture.
PARALLEL = (
    *("benchctl/analysis/metrics", "benchctl/analysis/plots", "benchctl/analysis/tables", "benchctl/cli"),
    *("judges", "methods"),
)


@cache
def imported_modules() -> dict[str, set[str]]:
    """Our modules, each with those of ours that it imports, imports inside functions and for types included."""
    names = {name_of(file) for file in FILES}
    modules: dict[str, set[str]] = {}
    for file in FILES:
        modules[name_of(file)] = set()
        for node in nodes_of(file):
            if isinstance(node, ast.ImportFrom):
                package = (f"{package_of(file, node.level)}." if node.level else "") + (node.module or "")
                imported = {f"{package}.{alias.name}" for alias in node.names} & names or {package} & names
                modules[name_of(file)] |= imported - {name_of(file)}
    return modules


def test_no_two_modules_import_each_other_even_through_others() -> None:
    """`TopologicalSorter` names the modules of a circle when there is one."""
    assert tuple(TopologicalSorter(imported_modules()).static_order())


def test_two_files_share_a_name_only_in_parallel_packages() -> None:
    folders: dict[str, list[str]] = {}
    for file in FILES:
        if file.name != "__init__.py":
            folders.setdefault(file.name, []).append(path_of(file.parent))
    clashes = {name: [folder for folder in of if not folder.startswith(PARALLEL)] for name, of in folders.items()}
    assert {name: folders[name] for name, clash in clashes.items() if len(clash) > 1 and len(folders[name]) > 1} == {}
