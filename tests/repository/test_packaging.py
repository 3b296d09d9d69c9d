"""What is handed out: the wheel has all of the tree that runs, and the source distribution all of the tree."""

import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest

from benchctl import __version__, bundled, registry

pytestmark = pytest.mark.slow

FILES = ("README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff", "MANIFEST.in", "pyproject.toml")
COMMANDS = ("check", "demo", "constraints.txt", "results/README.md")
FOLDERS = ("benchctl", "methods", "judges", "benchmarks", "docs", "reference", "scripts", "tests", "results/reference")
INSTALLED = {"benchctl": "benchctl", "methods": "benchctl/methods", "judges": "benchctl/judges"}
LARGE_BYTES = 100_000
LEAST_SETUPTOOLS = 77  # see pyproject.toml
MADE = ("PKG-INFO", "setup.cfg", "benchctl.egg-info/")
LOOK = """
import json
import benchctl
from benchctl import bundled, registry
models = [(model.name, sorted(model.modules)) for model in bundled.models()]
print(json.dumps([benchctl.__file__, models, registry.builtin_names(), registry.names(registry.JUDGES)]))
"""


def below(folder: Path) -> set[str]:
    """The paths of the files in a folder; what Python leaves beside its sources is none of them."""
    files = (file.relative_to(folder) for file in folder.rglob("*") if file.is_file())
    return {file.as_posix() for file in files if "__pycache__" not in file.parts}


def _copy(source: str, place: str) -> None:
    """A large file is left empty: what is asked is which files there are, and to pack weights takes half a minute."""
    if Path(source).stat().st_size > LARGE_BYTES:
        Path(place).touch()
    else:
        shutil.copy(source, place)


@pytest.fixture(scope="module")
def tree(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy to build in: what an earlier build left in a folder gets into the next wheel."""
    copy, unpacked = tmp_path_factory.mktemp("tree"), shutil.ignore_patterns("__pycache__")
    for name in FOLDERS:
        shutil.copytree(root / name, copy / name, ignore=unpacked, copy_function=_copy)
    for name in (*FILES, *COMMANDS):
        shutil.copy(root / name, copy / name)
    return copy


@pytest.fixture(scope="module")
def built(tree: Path) -> Path:
    """A source distribution, and the wheel built from it. No network: the build takes the setuptools that is here."""
    if int(version("setuptools").partition(".")[0]) < LEAST_SETUPTOOLS:
        pytest.skip(f"no setuptools of {LEAST_SETUPTOOLS} or newer here to build with")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(tree / "dist"), str(tree)]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return tree / "dist"


def test_models_methods_and_judges_are_found_in_the_wheel_which_has_no_other_file(
    tree: Path, built: Path, tmp_path: Path
) -> None:
    """A subpackage or an asset that no pattern of pyproject.toml names is silently left out. Looked for outside of the
    repository, and before any other benchctl that is installed here."""
    wheel = built / f"benchctl-{__version__}-py3-none-any.whl"
    wanted = {f"{folder}/{name}" for source, folder in INSTALLED.items() for name in below(tree / source)}
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert names == wanted
    assert "benchctl/py.typed" in names
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    command = [sys.executable, "-c", LOOK]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    imported_from, models, methods, judges = json.loads(done.stdout)
    assert imported_from == str(tmp_path / "site" / "benchctl" / "__init__.py")
    assert models == [[model.name, sorted(model.modules)] for model in bundled.models()]
    assert (methods, judges) == ([*registry.builtin_names()], [*registry.names(registry.JUDGES)])


def test_the_source_distribution_is_the_repository(tree: Path, built: Path) -> None:
    wanted = {*FILES, *COMMANDS, *(f"{folder}/{name}" for folder in FOLDERS for name in below(tree / folder))}
    archive = built / f"benchctl-{__version__}.tar.gz"
    with tarfile.open(archive) as file:
        members = {member.name.partition("/")[2]: member for member in file.getmembers() if member.isfile()}
    assert {name for name in members if not name.startswith(MADE)} == wanted
    assert all(members[name].mode & 0o100 for name in ("check", "demo", "scripts/setup"))
