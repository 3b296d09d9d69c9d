"""Every speed-up with an interval on README and the pages is one that the kept files in results/reference/ give.

Where its line names labels, it is that of one of them.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from documents import PAGES, ROOT, command_ids
from scipy.stats import spearmanr

from benchctl import registry
from benchctl.analysis.stats.intervals import Levels, ratio_intervals

KEPT = ROOT / "results" / "reference"
FIGURE = re.compile(r"\d\.\d\dx\s\[\d\.\d\d,\s\d\.\d\d\]")
LABEL = re.compile(r"`([a-z]\w*)(?:\[([^`]*)\])?`")
RATIO = "a ratio of the benchmarks"

Seconds = dict[tuple[str, ...], float]
"""How long each answer took, by session, suite, prompt, turn and repeat."""


def figures_on(page: Path) -> list[str]:
    """`1.55x [1.51, 1.60]`, wherever a line breaks."""
    return [re.sub(r"\s", " ", found) for found in FIGURE.findall(page.read_text(encoding="utf-8"))]


def labels_on(line: str) -> list[tuple[str, frozenset[str]]]:
    """Methods in a line, each with the options that it gives."""
    known = {*registry.names(registry.METHODS), *registry.names(registry.ENGINES)}
    pairs = [(name, [each.partition("=") for each in options.split(",")]) for name, options in LABEL.findall(line)]
    return [
        (name, frozenset(_option(key, value) for key, equals, value in options if equals))
        for name, options in pairs
        if name in known
    ]


def _option(name: str, value: object) -> str:
    """`confidence=0.0` for `confidence=0` too."""
    try:
        return f"{name}={float(str(value))}"
    except ValueError:
        return f"{name}={str(value).lower()}"


def foreign_figures(page: Path) -> list[str]:
    """Figures of a page that no kept file gives, or gives only for labels that the figure's line does not name."""
    foreign = [figure for figure in figures_on(page) if figure not in kept_figures()]
    for line in page.read_text(encoding="utf-8").splitlines():
        named = labels_on(line)
        for figure in FIGURE.findall(line):
            of = kept_figures().get(figure, set())
            if named and not any(name == label and options <= has for name, options in named for label, has in of):
                foreign.append(f"{figure} in: {line}")
    return foreign


@cache
def kept_figures() -> dict[str, set[tuple[str, frozenset[str]]]]:
    """By speed-up, the methods and their options that have it, see _speedups; sessions of a run together; over another
    method where a page has that command; ratios of the benchmarks. From the lines as they are: `compare` would take ten
    times as long, and be held against itself."""
    figures: dict[str, set[tuple[str, frozenset[str]]]] = defaultdict(set)
    runs = [path for path in sorted(KEPT.glob("*.jsonl")) if _is_run(path)]
    compared = [words for _, words in command_ids() if words[0] == "compare" and "--over" in words]
    for base, files in groupby(runs, lambda path: re.sub(r"-\d+$", "", path.stem)):
        sessions = list(files)
        suites = _run_of(sessions[0])["suites"]
        categories = {(each["name"], id): of for each in suites for id, of in each.get("categories", {}).items()}
        over = {words[words.index("--over") + 1] for words in compared if Path(words[1]).stem == base}
        for together in (sessions, *([session] for session in sessions if len(sessions) > 1)):
            seconds = _seconds(together)
            for usual in {_run_of(sessions[0])["baseline"], *over}:
                for label in seconds.keys() - {usual}:
                    of = (registry.parse_label(label).name, _options(sessions[0], label))
                    for figure in _speedups(seconds[label], seconds[usual], categories):
                        figures[figure].add(of)
    for path in KEPT.glob("*.json"):
        for figure in _ratios(json.loads(path.read_text(encoding="utf-8"))):
            figures[figure].add((RATIO, frozenset()))
    return figures


def _seconds(files: Iterable[Path]) -> dict[str, Seconds]:
    """By label; warm-up, failures, other modes and disturbed rounds left out."""
    seconds: dict[str, Seconds] = defaultdict(dict)
    for path in files:
        with path.open(encoding="utf-8") as lines:
            _, *rows = map(json.loads, lines)
        disturbed = {_round(row) for row in rows if row.get("invalid")}
        for row in rows:
            counts = row["repeat"] >= 0 and not row["error"] and row.get("mode", "free") == "free"
            if counts and _round(row) not in disturbed:
                answer = (path.name, *_round(row), str(row["turn"]))
                whole_s = row["arrived_s"][-1] if row.get("arrived_s") else row["ttft_s"] + sum(row["step_s"])
                seconds[row["label"]][answer] = whole_s
    return seconds


def _options(path: Path, label: str) -> frozenset[str]:
    """Those of a label in a file, its defaults at that time included."""
    methods = _run_of(path)["methods"]
    (options,) = (each["options"] for each in methods if each["label"] == label)
    return frozenset(_option(name, value) for name, value in options.items())


def _round(row: dict[str, Any]) -> tuple[str, ...]:
    return (row["suite"], row["prompt_id"], str(row["repeat"]))


def _speedups(method: Seconds, baseline: Seconds, categories: Mapping[tuple[str, str], str]) -> Iterator[str]:
    """Over all suites, over each, and over each category of them."""
    both = sorted(method.keys() & baseline.keys())
    parts = defaultdict(list)
    for answer in both:
        category = categories.get((answer[1], answer[2]))
        for part in {(), (answer[1],), (answer[1], category)}:
            parts[part].append(answer)
    for answers in parts.values():
        tops, bottoms = (np.array([[of[answer]] for answer in answers]) for of in (baseline, method))
        session, prompt = (
            np.unique([str(answer[columns]) for answer in answers], return_inverse=True)[1]
            for columns in (slice(0, 1), slice(1, 3))
        )
        (interval,) = ratio_intervals(tops, bottoms, Levels(session, prompt))
        if interval is not None:
            yield f"{tops.sum() / bottoms.sum():.2f}x [{interval.low:.2f}, {interval.high:.2f}]"


def _ratios(found: Any) -> Iterator[str]:
    if isinstance(found, dict) and {"ratio", "low", "high"} <= found.keys():
        yield f"{found['ratio']:.2f}x [{found['low']:.2f}, {found['high']:.2f}]"
    for part in found.values() if isinstance(found, dict) else found if isinstance(found, list) else ():
        yield from _ratios(part)


def _run_of(path: Path) -> Any:
    with path.open(encoding="utf-8") as lines:
        return json.loads(lines.readline())


def _is_run(path: Path) -> bool:
    with path.open("rb") as file:
        return file.readline().startswith(b'{"kind":"run"')


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if figures_on(page)], ids=lambda page: str(page.name))
def test_every_speedup_with_its_interval_is_of_a_kept_file(page: Path) -> None:
    assert foreign_figures(page) == []


def test_the_rank_correlations_are_those_of_the_table_above_them() -> None:
    page = (ROOT / "docs" / "ours-and-theirs.md").read_text(encoding="utf-8")
    rows = [re.findall(r"(\d\.\d\d)x", line) for line in page.splitlines() if re.match(r"\| .*, ours `", line)]
    theirs, a100, ours = np.array(rows, dtype=float).T
    found = [spearmanr(*pair).statistic for pair in ((theirs, ours), (theirs, a100), (a100, ours))]
    said = page.partition("rank correlation")[2].partition("Prompt lookup")[0]
    assert len(rows) == 8 and [f"{each:.2f}" for each in found] == re.findall(r"\d\.\d\d", said)


@pytest.mark.slow
def test_a_figure_of_another_label_is_found(tmp_path: Path) -> None:
    figure, of = next((figure, next(iter(of))) for figure, of in kept_figures().items() if len(of) == 1)
    other = next(name for name in registry.names(registry.METHODS) if name != of[0])
    (tmp_path / "page.md").write_text(f"| `{of[0]}` | {figure} |\n| `{of[0]}[no=such]` | {figure} |\n")
    assert len(foreign_figures(tmp_path / "page.md")) == 1
    (tmp_path / "page.md").write_text(f"`{other}` has {figure}, and 9.99x [9.98, 9.99] nobody.\n")
    assert len(foreign_figures(tmp_path / "page.md")) == 3


def test_the_figures_of_the_benchmarks_are_those_that_the_readme_cites() -> None:
    """Parts that no command makes any more, and no page cites, were kept for a long time."""
    kept = json.loads((KEPT / "figures.json").read_text(encoding="utf-8"))
    assert set(kept) == {"created", "commit", "machine", "versions", "asked", "library"}
    one_thread = [each for each in kept["library"] if each["threads"] == 1]
    cited = figures_on(ROOT / "README.md")
    assert len(one_thread) == 3 and all(figure in cited for figure in _ratios(one_thread))
