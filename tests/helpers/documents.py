"""README and the pages in docs/ as tests read them: their blocks, commands, headings and links."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from benchctl import registry
from benchctl.cli import main

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]


def blocks(page: Path, language: str = "") -> list[str]:
    """The fenced blocks of a page in one language."""
    text = page.read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def prose(page: Path) -> str:
    """A page without its fenced blocks, and without what stands in backticks."""
    text = re.sub(r"^```\w*\n.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"`[^`\n]*`", "", text)


def commands(text: str) -> Iterator[list[str]]:
    """Every benchctl command of a text as words, what starts it (torchrun) and where its output goes taken away.

    >>> list(commands("benchctl compare 'a b.jsonl' --format md > table.md   # all"))
    [['compare', 'a b.jsonl', '--format', 'md']]
    """
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True) if re.match(r"\s*(benchctl|torchrun) ", line) else []
        if words[:1] == ["torchrun"]:
            words = words[words.index("benchctl") :]
        if words[:1] == ["benchctl"]:
            yield words[1 : words.index(">") if ">" in words else None]


def command_ids() -> list[tuple[Path, list[str]]]:
    """The commands of all pages, each with its page."""
    return [(page, words) for page in PAGES for block in blocks(page) for words in commands(block)]


def check_parses(words: Sequence[str]) -> None:
    """That a command's words are those of a verb and its options, and its labels those of methods."""
    command: click.Command = main
    context, rest = click.Context(main), list(words)
    while isinstance(command, click.Group):
        name = rest.pop(0)
        found = command.get_command(context, name)
        assert found is not None, name
        command, context = found, click.Context(found, info_name=name, parent=context)
    command.make_context(command.name, rest)
    for flag, word in zip(("", *words), words, strict=False):
        sweeps = flag == "--sweep" and words[0] == "run"  # of `plot` it is a flag
        for label in registry.expand_sweep(word) if sweeps else (word,):
            _check_label(label, named=sweeps or (flag in ("--method", "-m", "--over") and word != "all"))


def _check_label(text: str, named: bool) -> None:
    """That a word is a label if it is `named` as one, or looks like one: `medusa[heads=2]`, `gpt[model=m]`."""
    name, bracket, _ = text.partition("[")
    if name in registry.names(registry.ENGINES) and (named or bracket):
        registry.build_engine(registry.parse_label(text))
    elif named or (bracket and name in registry.names(registry.METHODS)):
        registry.build(text)
    elif bracket and name in registry.names(registry.JUDGES):
        registry.build_judge(registry.parse_label(text))


def anchors(page: Path) -> set[str]:
    """What a link to a heading of this page may end in, as GitHub makes it: `## Is it *so*? Yes` is `is-it-so-yes`.

    A heading that is there before has a number behind it: `figures`, `figures-1`.
    """
    text = re.sub(r"^```\w*\n.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    seen: Counter[str] = Counter()
    found = set()
    for heading in re.findall(r"^#{1,6} +(.+?) *$", text, re.MULTILINE):
        slug = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        found.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
        seen[slug] += 1
    return found


def links(page: Path) -> list[str]:
    """Where a page's links and pictures lead."""
    return re.findall(r"\]\(([^)\s]+)\)", prose(page))
