"""A report as one HTML file that needs nothing else: no network, no other file. The only door to jinja2.

Everything in a results file is text here. Templates escape it. Answers are embedded as JSON without any character that
has a meaning in HTML, and the script puts them into the page as text. The page's policy (Content-Security-Policy) runs
only that script, known by its hash, and fetches nothing.
"""

import json
from base64 import b64encode
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from benchctl.analysis.comparison import Group
from benchctl.analysis.html.answers import ComparedAnswer, answered, answers, in_turn
from benchctl.analysis.html.page import Section, section, table_rows
from benchctl.errors import UserError

ASSETS = Path(__file__).parents[2] / "assets" / "report"
MOST_BYTES = 1_900_000  # of a file that goes into a mail or onto a ticket
# In JSON these have no meaning outside of strings, in HTML and in scripts they have.
_UNSAFE = {ord(character): f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"}


@dataclass(frozen=True)
class Report:
    """A page, and how many of the answers it could have shown it shows."""

    html: str
    shown_answers: int
    answers: int


def report(groups: Sequence[Group], embedded_models: frozenset[str], *, made: str) -> Report:
    """The page of a comparison. `embedded_models` are the names of models too small for good answers; `made` names the
    program and the time.

    Raises UserError where the page would be too large even without a single answer.
    """
    sections = [section(groups, group, embedded_models) for group in groups]
    candidates = in_turn([answers(number, group) for number, group in enumerate(groups, 1)])
    total = sum(map(answered, groups))
    room = MOST_BYTES - len(_page(sections, Viewer((), total), made).encode())
    if room < 0:
        raise UserError(
            "report_too_large",
            f"the report would be larger than {MOST_BYTES / 1e6:.1f} MB even without answers: "
            f"name fewer than {sum(len(group.files) for group in groups)} files.",
        )
    viewer = Viewer(_fitting(candidates, room), total)
    return Report(_page(sections, viewer, made), len(viewer.answers), total)


@dataclass(frozen=True)
class Viewer:
    """The answers shown, of how many."""

    answers: tuple[ComparedAnswer, ...]
    total: int

    def shown(self, group: int) -> int:
        return sum(each.group == group for each in self.answers)

    @property
    def island(self) -> str:
        """The answers as JSON; a text that occurs twice is written once."""
        texts: dict[str, int] = {}
        entries = [_entry(each, texts) for each in self.answers]
        return _json({"texts": list(texts), "answers": entries})


def _fitting(candidates: Iterable[ComparedAnswer], room: int) -> tuple[ComparedAnswer, ...]:
    """As many of these, in order, as `room` bytes can hold; one that is too large does not keep others out."""
    texts: dict[str, int] = {}
    kept: list[ComparedAnswer] = []
    for each in candidates:
        known = len(texts)
        entry = _entry(each, texts)
        new = list(texts)[known:]
        size = len(_json([entry, *new]).encode())
        if size > room:
            for text in new:
                del texts[text]
            continue
        room -= size
        kept.append(each)
    return tuple(kept)


def _entry(each: ComparedAnswer, texts: dict[str, int]) -> dict[str, object]:
    """An answer for the script, its texts by their numbers in `texts`, where new ones are added."""
    entry = vars(each) | {"place": each.place._asdict()}
    for side, answer in (("answer", each.answer), ("baseline", each.baseline)):
        entry[side] = vars(answer) | {"text": texts.setdefault(answer.text, len(texts))}
    return entry


def _json(value: object) -> str:
    """JSON that may stand in a page as it is."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.translate(_UNSAFE).encode("utf-8", "replace").decode()


def _page(sections: Sequence[Section], viewer: Viewer, made: str) -> str:
    style, script = _asset("report.css"), _asset("report.js")
    policy = "; ".join(
        (
            "default-src 'none'",
            f"style-src '{_hash(style)}'",
            "style-src-attr 'unsafe-inline'",  # in pictures
            f"script-src '{_hash(script)}'",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )
    template = _templates().get_template("report.html")
    texts = {"made": made, "policy": policy, "style": style, "script": script}
    return template.render(texts, sections=sections, viewer=viewer, table_rows=table_rows)


def _hash(text: str) -> str:
    return f"sha256-{b64encode(sha256(text.encode()).digest()).decode()}"


@cache
def _asset(name: str) -> str:
    return ASSETS.joinpath(name).read_text("utf-8")


@cache
def _templates() -> Environment:
    return Environment(
        loader=FileSystemLoader(ASSETS),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
