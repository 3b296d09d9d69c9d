"""The pages as pages: links lead somewhere, every page is found from README, and has commands to try."""

from __future__ import annotations

from pathlib import Path

import pytest
from documents import DOCS, PAGES, ROOT, anchors, command_ids, commands, links

INDEX = DOCS / "README.md"
LINKS = [(page, link) for page in PAGES for link in links(page) if "://" not in link]


@pytest.mark.parametrize(("page", "link"), LINKS, ids=[f"{page.name}: {link}" for page, link in LINKS])
def test_every_link_within_the_repository_leads_to_a_file_and_a_heading(page: Path, link: str) -> None:
    place, _, anchor = link.partition("#")
    target = (page.parent / place).resolve() if place else page
    assert target.exists(), target
    assert target.is_relative_to(ROOT)
    if anchor:
        assert anchor in anchors(target), sorted(anchors(target))


def test_headings_become_anchors_as_github_makes_them(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# What's `it`? A-b_c!\n\n```\n# no heading\n```\n## Figures\n### Figures\n", encoding="utf-8")
    assert anchors(page) == {"whats-it-a-b_c", "figures", "figures-1"}


def test_links_are_found_in_prose_and_not_in_code(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
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
