"""The pages as pages: links lead somewhere, every page is found from README, and what README shows is there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from command import cli
from documents import DOCS, PAGES, ROOT, anchors, links
from packaging.version import Version

from benchctl import __version__

INDEX = DOCS / "README.md"
LINKS = [(page, link) for page in PAGES for link in links(page) if "://" not in link]


@pytest.mark.parametrize(("page", "link"), LINKS, ids=[f"{page.name}: {link}" for page, link in LINKS])
def test_every_link_within_the_repository_leads_to_a_file_and_a_heading(page: Path, link: str) -> None:
    path, _, anchor = link.partition("#")
    target = (page.parent / path).resolve() if path else page
    assert target.exists() and target.is_relative_to(ROOT), target
    if anchor:
        assert anchor in anchors(target), sorted(anchors(target))


def test_the_index_leads_to_every_page_and_readme_to_the_index() -> None:
    assert {str(page.relative_to(DOCS)) for page in PAGES[1:] if page != INDEX} <= set(links(INDEX))
    assert "docs/README.md" in links(ROOT / "README.md")


def block_of(page: Path, section: str) -> str:
    """The first fenced block of a section."""
    text = page.read_text(encoding="utf-8").partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    shown = re.search(r"^```\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert shown is not None
    return shown[1]


def test_everything_in_the_tree_exists_and_the_two_commands_of_readme_can_be_run() -> None:
    folder = ROOT
    for line in block_of(INDEX, "The tree").splitlines():
        for name in re.split(r",? +", re.split(r"\s{2,}", line.strip())[0]):
            path = (folder if line.startswith(" ") else ROOT) / name
            assert path.exists(), line
            folder = path if not line.startswith(" ") and path.is_dir() else folder
    commands = block_of(ROOT / "README.md", "Install").splitlines()[:2]
    assert [line.split()[0] for line in commands] == ["./demo", "./check"]
    assert all((ROOT / line.split()[0]).stat().st_mode & 0o100 for line in commands)


def test_readme_shows_what_compare_prints_and_keeps_to_120_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    command, _, shown = text.partition("```\n$ benchctl ")[2].partition("\n```\n")[0].partition("\n")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(ROOT)
    result = cli(*shlex.split(command))
    assert result.stdout.rstrip() == shown
    assert len(text.splitlines()) <= 120


def test_the_citation_names_this_version() -> None:
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.findall(r"^version: (.*)$", citation, re.MULTILINE) == [Version(__version__).base_version]
