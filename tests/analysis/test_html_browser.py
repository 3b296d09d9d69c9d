"""The report in a browser: it has no errors, sends no requests, and works by mouse, by keyboard and on a phone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from browser import PROGRAM, Page, browser
from fixtures_records import EXITING, RUN, usual_rows
from fixtures_scores import score, sha256, write_both
from pages import HOSTILE, TWO_SUITES, hostile_file, page_of, two_suites

from benchctl.analysis.comparison import compare
from benchctl.records.writer import read

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(PROGRAM is None, reason="no Chromium here (Debian: apt-get install chromium)"),
]

SEEN = "element => element.checkVisibility()"
_UNFOLD = "document.querySelectorAll('details').forEach(box => { box.open = true; })"


@pytest.fixture(scope="module")
def chromium() -> Iterator[Page]:
    with browser() as page:
        yield page


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two suites, three methods, a judgement, and answers that differ from the baseline's from their third token on."""
    folder = tmp_path_factory.mktemp("page")
    rows = [replace(row, text="mine, differing") if row.label == EXITING else row for row in two_suites()]
    said = score("p0", 3, 8, answer_sha256=sha256("mine, differing"), reply="3 8 <b>bold</b>")
    (group,) = compare([read(write_both(folder / "run.jsonl", rows, [said], TWO_SUITES))], ())
    page = folder / "page.html"
    page.write_text(page_of([group]), encoding="utf-8")
    return page


@pytest.fixture
def page(chromium: Page, file: Path) -> Page:
    """The report, freshly opened at the width of a desk."""
    chromium.size(1280, 900)
    chromium.complaints.clear()
    chromium.requests.clear()
    chromium.open(file)
    return chromium


def _count(page: Page, selector: str) -> int:
    """How many of these can be seen."""
    found = page.run(f"[...document.querySelectorAll({selector!r})].filter({SEEN}).length")
    return int(found)


def test_it_opens_without_complaints_and_asks_for_nothing_else(page: Page, file: Path) -> None:
    assert page.complaints == []
    assert page.requests == [file.as_uri()]
    assert page.run("document.querySelectorAll('.viewer select').length") == 2


def test_only_the_answer_to_the_question_is_unfolded_and_printing_unfolds_the_rest(page: Page) -> None:
    assert _count(page, ".picture") == 1 and _count(page, "table") == 1 and _count(page, ".warning") == 0
    page.run("dispatchEvent(new Event('beforeprint'))")
    assert _count(page, "details") == _count(page, "details[open]")
    assert _count(page, ".picture") >= 3 and _count(page, "table") > 3 and _count(page, ".warning") > 0


def _column(page: Page, title: str) -> list[str]:
    """What can be seen of the first column with this head."""
    script = f"""(() => {{
      const head = [...document.querySelectorAll('thead th')].find(head => head.textContent.trim() === {title!r});
      return [...head.closest('table').querySelectorAll('tbody tr')].filter({SEEN})
        .map(line => line.cells[head.cellIndex].textContent);
    }})()"""
    return list(page.run(script))


def _focus_head(page: Page, title: str) -> None:
    page.run(
        "[...document.querySelectorAll('thead button')]"
        f".find(button => button.textContent.trim() === {title!r}).focus()"
    )


def test_tables_sort_by_keyboard_with_the_largest_first_and_what_has_no_number_last(page: Page) -> None:
    before = [cell for cell in _column(page, "speed-up [95%]") if cell != "baseline"]
    _focus_head(page, "speed-up [95%]")
    page.press("Enter", 13)
    down = _column(page, "speed-up [95%]")
    assert down == sorted(before, key=lambda cell: -float(cell.split("x")[0])) + ["baseline"]
    page.press("Enter", 13)
    assert _column(page, "speed-up [95%]") == down[-2::-1] + ["baseline"]
    assert page.run("document.activeElement.closest('th').getAttribute('aria-sort')") == "ascending"


def test_numbers_with_thousands_sort_as_such(chromium: Page, tmp_path: Path) -> None:
    """1,234 MB came before 987 MB, as its digits up to the comma are 1."""
    memory = dict(zip(dict.fromkeys(row.label for row in usual_rows()), (987, 1234, 21_345), strict=True))
    rows = [replace(row, reserved_memory_bytes=memory[row.label] * 10**6) for row in usual_rows()]
    (group,) = compare([read(write_both(tmp_path / "run.jsonl", rows, [], RUN))])
    file = tmp_path / "page.html"
    file.write_text(page_of([group]), encoding="utf-8")
    chromium.open(file)
    chromium.run(_UNFOLD)
    _focus_head(chromium, "held by torch MB")
    chromium.press("Enter", 13)
    assert _column(chromium, "held by torch MB") == ["21,345", "1,234", "987"]


def test_the_viewer_shows_answers_side_by_side_with_their_first_difference(page: Page) -> None:
    """From the first letter that differs on."""
    page.run(f"""(() => {{
      const [method] = document.querySelectorAll('.viewer select');
      method.value = {EXITING!r};
      method.dispatchEvent(new Event('change'));
    }})()""")
    verdict = page.run("document.querySelector('.verdict').textContent")
    assert all(number in verdict for number in ("token 2", "0.5000", "1.00e-6"))
    said = page.run("[...document.querySelectorAll('.side .text')].map(side => side.textContent)")
    assert said == ["text", "mine, differing"]
    assert _count(page, ".side .cut") == 2
    assert page.run("document.querySelector('.viewer .judgement summary').textContent") == (
        "gpt gpt-4o pairwise, baseline first: 3, the baseline 8"
    )
    assert page.run("document.querySelector('.viewer .judgement .text').textContent") == "3 8 <b>bold</b>"
    page.run("document.querySelectorAll('.choices button')[1].click()")
    assert page.run("document.querySelectorAll('.viewer select')[1].selectedIndex") == 1
    assert _count(page, ".judgement") == 0


def test_nothing_that_was_written_in_the_files_runs(chromium: Page, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    file.write_text(page_of(compare([read(hostile_file(tmp_path))])), encoding="utf-8")
    chromium.complaints.clear()
    chromium.open(file)
    assert chromium.run("typeof hacked") == "undefined"
    assert chromium.run("[document.scripts.length, document.images.length]") == [2, 0]
    assert HOSTILE in chromium.run("document.querySelector('.side .text').textContent")
    labels = chromium.run("[...document.querySelectorAll('.viewer option')].map(option => option.value)")
    assert any(HOSTILE in label for label in labels)
    assert chromium.complaints == []


def test_the_policy_stops_a_script_that_found_its_way_in_and_any_request(page: Page) -> None:
    page.run("document.body.append(Object.assign(document.createElement('script'), {textContent: 'hacked = 1'}))")
    assert page.run("typeof hacked") == "undefined"
    assert page.run("fetch('http://127.0.0.1:9/').then(() => 'went', () => 'stopped')") == "stopped"
    assert sum("Content Security Policy" in complaint for complaint in page.complaints) >= 2
