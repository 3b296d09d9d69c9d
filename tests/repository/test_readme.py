"""What README shows is true: its method runs, its tree exists. Its commands: test_docs.py."""

import re
import sys
from importlib import import_module
from pathlib import Path

import pytest

from benchctl import registry
from benchctl.decoding.method import Speculative


@pytest.fixture
def readme(root: Path) -> str:
    return (root / "README.md").read_text(encoding="utf-8")


def blocks(readme: str, section: str, language: str = "") -> list[str]:
    """The fenced blocks of one section."""
    text = readme.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def test_the_method_it_shows_is_found_by_its_file_name(
    readme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "repeat.py").write_text(blocks(readme, "Add a method", "python")[0])
    folders = import_module(registry.METHODS).__path__
    monkeypatch.setattr(import_module(registry.METHODS), "__path__", [*folders, str(tmp_path)])
    method = registry.build("repeat[draft_tokens=3]")
    del sys.modules["benchctl.methods.repeat"]
    assert isinstance(method, Speculative)
    assert registry.canonical_label(method, registry.parse_label("repeat")) == "repeat[draft_tokens=3]"


def test_everything_in_its_tree_exists(readme: str, root: Path) -> None:
    folder = root
    for line in blocks(readme, "The tree")[0].splitlines():
        for name in re.split(r",? +", re.split(r"\s{2,}", line.strip())[0]):
            path = (folder if line.startswith(" ") else root) / name
            assert path.exists(), line
            folder = path if not line.startswith(" ") and path.is_dir() else folder


def test_its_two_commands_are_there_and_can_be_run(readme: str, root: Path) -> None:
    for line in blocks(readme, "Two commands")[0].splitlines():
        assert (root / line.split()[0]).stat().st_mode & 0o100, line
