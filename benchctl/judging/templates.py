"""Prompts of judges: readable .md files in judges/, named in every score with the first digits of their sha256."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Final, NamedTuple

JUDGES: Final = "benchctl.judges"
_VERSION: Final = 1
_DIGITS: Final = 16
_PLACE = re.compile(r"\{(question|first|second|reference)\}")
_HEADING = re.compile(r"^## (system|reference|user)\n", re.MULTILINE)


class Filled(NamedTuple):
    """The two messages of a chat that asks a judge."""

    system: str
    user: str


@dataclass(frozen=True)
class Template:
    """A prompt: `id` is its name and the first 16 digits of its sha256. `turns` says that it shows whole talks.

    Its `sections` are the messages `system` and `user`, and what stands for {reference} in the latter where a question
    has one. Two answers are compared by a prompt of its own where there is a reference (MT-Bench's pair-math-v1 does so
    too); that of single answers shows one where there is one.
    """

    id: str
    sections: Mapping[str, str]
    turns: bool

    def fill(
        self, turns: Sequence[str], first: Sequence[str], second: Sequence[str], reference: Sequence[str]
    ) -> Filled:
        """The messages for a question; texts are put in once, so that braces inside of them stay what they are."""
        texts = {
            "question": turns[-1],
            "first": _talk(turns, first) if self.turns else first[-1],
            "second": (_talk(turns, second) if self.turns else second[-1]) if second else "",
            "reference": "",
        }
        if reference and "reference" in self.sections:
            shown = _talk(turns, reference, "Reference") if self.turns else reference[-1]
            texts["reference"] = _put(self.sections["reference"], {"reference": shown}) + "\n\n"
        return Filled(self.sections["system"], _put(self.sections["user"], texts))


@cache
def load_template(protocol: str, turns: int, has_reference: bool) -> Template:
    """The prompt of a protocol, for questions of one turn or of several, with reference answers or without."""
    kind = f"{'-turns' if turns > 1 else ''}{'-reference' if has_reference and protocol == 'pairwise' else ''}"
    name = f"{protocol}{kind}-v{_VERSION}"
    content = files(JUDGES).joinpath(f"{name}.md").read_bytes()
    parts = _HEADING.split(content.decode("utf-8"))[1:]
    sections = {heading: text.strip() for heading, text in zip(parts[::2], parts[1::2], strict=True)}
    return Template(f"{name}@{hashlib.sha256(content).hexdigest()[:_DIGITS]}", sections, turns > 1)


def _put(text: str, texts: Mapping[str, str]) -> str:
    return _PLACE.sub(lambda place: texts[place[1]], text)


def _talk(turns: Sequence[str], answers: Sequence[str], who: str = "Assistant") -> str:
    parts = [f"User: {asked}\n\n{who}: {said}" for asked, said in zip(turns, answers, strict=True)]
    return "\n\n".join(parts)
