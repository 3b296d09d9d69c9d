"""The pages as pages: links lead somewhere, every page is found from README, and what README shows is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
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


def of_readme(section: str, language: str = "") -> str:
    """The first fenced block of a section of README."""
    text = (ROOT / "README.md").read_text(encoding="utf-8").partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    shown = re.search(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert shown is not None
    return shown[1]


def test_everything_in_the_tree_of_readme_exists_and_its_two_commands_can_be_run() -> None:
    folder = ROOT
    for line in of_readme("The tree").splitlines():
        for name in re.split(r",? +", re.split(r"\s{2,}", line.strip())[0]):
            path = (folder if line.startswith(" ") else ROOT) / name
            assert path.exists(), line
            folder = path if not line.startswith(" ") and path.is_dir() else folder
    for line in of_readme("Two commands").splitlines():
        assert (ROOT / line.split()[0]).stat().st_mode & 0o100, line


def test_the_citation_names_this_version() -> None:
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.findall(r"^version: (.*)$", citation, re.MULTILINE) == [Version(__version__).base_version]
