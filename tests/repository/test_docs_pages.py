"""The pages as pages: links lead somewhere, every page is found from README, and what README shows is there."""

from __future__ import annotations

import re
import sys
from importlib import import_module
from pathlib import Path

import pytest
from documents import DOCS, PAGES, ROOT, anchors, command_ids, commands, links

from benchctl import registry
from benchctl.decoding.method import Speculative

INDEX = DOCS / "README.md"
LINKS = [(page, link) for page in PAGES for link in links(page) if "://" not in link]


@pytest.mark.parametrize(("page", "link"), LINKS, ids=[f"{page.name}: {link}" for page, link in LINKS])
def test_every_link_within_the_repository_leads_to_a_file_and_a_heading(page: Path, link: str) -> None:
    path, _, anchor = link.partition("#")
    target = (page.parent / path).resolve() if path else page
    assert target.exists() and target.is_relative_to(ROOT), target
    if anchor:
        assert anchor in anchors(target), sorted(anchors(target))


def test_headings_become_anchors_as_github_makes_them_and_links_are_found_in_prose_only(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# What's `it`? A-b_c!\n\n```\n# no heading\n```\n## Figures\n### Figures\n", encoding="utf-8")
    assert anchors(page) == {"whats-it-a-b_c", "figures", "figures-1"}
    page.write_text("[a](b.md#c) `[no](x)` ![p](q.png)\n\n```python\n[no](y)\n```\n[`k`](#run)\n", encoding="utf-8")
    assert links(page) == ["b.md#c", "q.png", "#run"]


def test_the_index_leads_to_every_page_and_readme_to_the_index() -> None:
    assert {str(page.relative_to(DOCS)) for page in PAGES[1:] if page != INDEX} <= set(links(INDEX))
    assert "docs/README.md" in links(ROOT / "README.md")


def test_every_page_has_commands() -> None:
    assert {page for page, _ in command_ids()} == set(PAGES)
    assert len(command_ids()) >= 20


def test_commands_are_read_as_a_shell_would_read_them() -> None:
    text = "benchctl compare 'a b.jsonl' \\\n  --format md > table.md   # all\ntorchrun --n 2 -m benchctl train x\nls\n"
    assert list(commands(text)) == [["compare", "a b.jsonl", "--format", "md"], ["train", "x"]]


def of_readme(section: str, language: str = "") -> str:
    """The first fenced block of a section of README."""
    text = (ROOT / "README.md").read_text(encoding="utf-8").partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    shown = re.search(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert shown is not None
    return shown[1]


def test_the_method_of_readme_is_found_by_its_file_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "repeat.py").write_text(of_readme("Add a method", "python"))
    package = import_module(registry.METHODS)
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(tmp_path)])
    method = registry.build("repeat[draft_tokens=3]")
    del sys.modules["benchctl.methods.repeat"]
    assert isinstance(method, Speculative)
    assert registry.canonical_label(method, registry.parse_label("repeat")) == "repeat[draft_tokens=3]"


def test_everything_in_the_tree_of_readme_exists_and_its_two_commands_can_be_run() -> None:
    folder = ROOT
    for line in of_readme("The tree").splitlines():
        for name in re.split(r",? +", re.split(r"\s{2,}", line.strip())[0]):
            path = (folder if line.startswith(" ") else ROOT) / name
            assert path.exists(), line
            folder = path if not line.startswith(" ") and path.is_dir() else folder
    for line in of_readme("Two commands").splitlines():
        assert (ROOT / line.split()[0]).stat().st_mode & 0o100, line
