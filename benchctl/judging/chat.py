"""What a judge is sent and how its reply is read.

Prompts are readable .md files in judges/, named in every score with the first digits of their sha256. A reply is read
only where it surely holds scores from 1 to 10.
"""

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
_SLOT = re.compile(r"\{(question|first|second|reference)\}")
_HEADING = re.compile(r"^## (system|reference|user)\n", re.MULTILINE)

_LEAST: Final = 1.0
_MOST: Final = 10.0
_OUT_OF = re.compile(r"\s*(?:/|out of)\s*10(?:\.0+)?\b", re.IGNORECASE)
_NUMBER = re.compile(r"(?<![\w.])[-+]?\d+(?:\.\d+)?(?![\w.]*\w)")
# Words that may stand around scores. Others may turn numbers into something else: "answer 1 is better than answer 2".
_WORD = re.compile(r"[^\W\d_]+(?:'s)?")
_AROUND = frozenset(
    {"a", "b", "i", "s", "my", "the", "and", "is", "are", "of", "for", "to", "with", "final", "respectively"}
    | {"give", "get", "gets", "rate", "score", "scores", "rating", "ratings"}
    | {"assistant", "assistants", "answer", "answers", "response", "responses"}
)
_NAMED = re.compile(r"(?:assistant|answer|response)s?\s*[#\d]", re.IGNORECASE)
_SCALE = re.compile(r"\d\s+(?:to|of)\s+\d|\b1\s*[-\u2010-\u2015]\s*10\b", re.IGNORECASE)  # 1 to 10, 1-10
_LETTER = re.compile(r"(?i:assistant|answer|response)\s+([ABab])(?!\w)|(?<!\w)([ABb])(?!\w)|(?<!\w)(a)(?=\s*[:=])")
_IN_ORDER = re.compile(r"a*|a+b+")
_BARE = re.compile(r"[\s\d.,;:|&*_`()\[\]+-]+")

_CHARACTERS_PER_TOKEN: Final = 4
_MESSAGE_TOKENS: Final = 4  # the frame of a message, and below the opening of the reply, in OpenAI's chats
_REPLY_TOKENS: Final = 3


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
    return _SLOT.sub(lambda slot: texts[slot[1]], text)


def _talk(turns: Sequence[str], answers: Sequence[str], who: str = "Assistant") -> str:
    parts = [f"User: {asked}\n\n{who}: {said}" for asked, said in zip(turns, answers, strict=True)]
    return "\n\n".join(parts)


def read_scores(reply: str, count: int) -> tuple[float, ...] | None:
    """`count` scores that stand on one line, or None.

    A line of nothing but them counts before lines of words, which may only be such as name scores and answers, A before
    B. None where such lines disagree, where a number in them is not from 1 to 10, and where a line has more or fewer
    numbers than are asked for.

    >>> read_scores("8 7.5", 2)
    (8.0, 7.5)
    >>> read_scores("Assistant A: 8/10, assistant B: 7/10", 2)
    (8.0, 7.0)
    >>> read_scores("9 11", 2) is None
    True
    """
    lines = [_OUT_OF.sub("", line).strip() for line in reply.splitlines()]
    with_numbers = [line for line in lines if _NUMBER.search(line)]
    bare = [line for line in with_numbers if _BARE.fullmatch(line)]
    scores_of_lines = {_numbers(line) for line in bare or with_numbers}
    if len(scores_of_lines) != 1 or not all(map(_names_scores, bare or with_numbers)):
        return None
    (scores,) = scores_of_lines
    return scores if len(scores) == count and all(_LEAST <= score <= _MOST for score in scores) else None


def _numbers(line: str) -> tuple[float, ...]:
    return tuple(float(number) for number in _NUMBER.findall(line))


def _names_scores(line: str) -> bool:
    words = {word.lower().removesuffix("'s") for word in _WORD.findall(line)}
    letters = "".join("".join(groups).lower() for groups in _LETTER.findall(line))
    in_order = _IN_ORDER.fullmatch(letters) is not None
    return words <= _AROUND and in_order and not (_NAMED.search(line) or _SCALE.search(line))


def count_prompt(messages: Sequence[str]) -> int:
    """An estimate of the tokens of a chat: one for every 4 characters, and those of its frame.

    Byte-pair vocabularies of 100 000 to 200 000 entries take 4 to 4.5 characters of English a token, and fewer of code
    and of other languages.
    """
    return sum(len(message) // _CHARACTERS_PER_TOKEN + _MESSAGE_TOKENS for message in messages) + _REPLY_TOKENS


def most_tokens(messages: Sequence[str]) -> int:
    """The most tokens that a chat can be billed for: byte-pair tokenizers make no token of less than a byte."""
    sizes = (len(message.encode("utf-8", "surrogatepass")) for message in messages)
    return sum(size + _MESSAGE_TOKENS for size in sizes) + _REPLY_TOKENS
