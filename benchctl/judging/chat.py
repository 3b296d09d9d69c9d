"""The messages to a judge, and how its reply is read.

Prompts are readable .md files in judges/, named in every score with the first digits of their sha256. A reply is read
only if it is certain to contain scores from 1 to 10.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Final, Literal

JUDGES: Final = "benchctl.judges"
_VERSION: Final = 2
_DIGITS: Final = 16
_SLOT = re.compile(r"\{(question|first|second|reference|mark)\}")
_HEADING = re.compile(r"^## (system|reference|user)\n", re.MULTILINE)

_LEAST: Final = 1.0
_MOST: Final = 10.0
MOST_REPLY_BYTES: Final = 100_000
_LONGEST_LINE: Final = 200  # with a digit; the expressions below see nothing longer
_ORNAMENT = str.maketrans(dict.fromkeys('*_`"[]{}|', " "))
_SCALE = re.compile(r"\((?:on |from |a |scale |of ){0,4}1(?: ?[-\u2013] ?| to )10\)")  # (1-10), the scale asked for
# A line that gives scores, in lower case, with single blanks and without ornament.
_SCORE = r"(\d{1,2}(?:\.\d{1,6})?)(?: ?/ ?10| out of 10)?"
_OF = r" of (?:the (?:last )?answer|assistant a and assistant b)(?: for their last answers)?"
_HEAD = rf"(?:final )?(?:scores?|ratings?)(?:{_OF})?(?:, on one line)? ?[:=] ?"
_GIVES = r"(?:'s)?(?: (?:score|rating))? ?(?:[:=]|is|gets)? ?"
_A, _B = (rf"(?:(?:assistant|answer|response|score)[ -]?)?{letter}{_GIVES}" for letter in "ab")
_NEXT = r"(?: ?[,;] ?(?:and )?| and | & | )"
_LINES = {
    1: (re.compile(rf"\(?{_SCORE}\)?"), re.compile(rf"{_HEAD}{_SCORE}\.?")),
    2: (
        re.compile(rf"(?:{_HEAD})?\(?{_SCORE}{_NEXT}{_SCORE}\)?\.?"),
        re.compile(rf"(?:{_HEAD})?{_A}{_SCORE}{_NEXT}{_B}{_SCORE}\.?"),
    ),
}

_CHARACTERS_PER_TOKEN: Final = 4
_MESSAGE_TOKENS: Final = 4  # the frame of a message, and below the opening of the reply, in OpenAI's chats
_REPLY_TOKENS: Final = 3


@dataclass(frozen=True)
class Message:
    """One message of a chat."""

    role: Literal["system", "user", "assistant"]
    content: str


@dataclass(frozen=True)
class Question:
    """What is judged: the user's turns up to the judged one, and one or two answers to each of them.

    `first` and `second` are the answers in the order in which a judge is shown them; `second` is empty where a single
    answer is judged. `reference` has an answer for each turn where the prompt's references help to judge it (see
    items.py), else none; `exact_answer` is how a right answer to the judged turn ends ("" where that is not known).
    """

    turns: tuple[str, ...]
    first: tuple[str, ...]
    second: tuple[str, ...] = ()
    reference: tuple[str, ...] = ()
    exact_answer: str = ""


@dataclass(frozen=True)
class Template:
    """A prompt: `id` is its name and the first 16 digits of its sha256. `turns` says that it shows whole talks.

    Its `sections` are the messages `system` and `user`, and what stands for {reference} in the latter where a question
    has one. Pairs with a reference have a prompt of their own, as in MT-Bench (pair-math-v1). The prompt of single
    answers has an optional reference.
    """

    id: str
    sections: Mapping[str, str]
    turns: bool

    def fill(self, question: Question, mark: str) -> tuple[Message, ...]:
        """The messages for a question; texts are put in once, so that braces inside of them stay what they are.

        `mark` stands in the lines around each answer, so that no answer can contain such a line.
        """

        def shown(answers: Sequence[str], who: str = "Assistant") -> str:
            if not self.turns:
                return answers[-1] if answers else ""
            talk = zip(question.turns, answers, strict=bool(answers))
            return "\n\n".join(f"User: {asked}\n\n{who}: {said}" for asked, said in talk)

        texts = {"question": question.turns[-1], "mark": mark, "reference": ""}
        texts |= {"first": shown(question.first), "second": shown(question.second)}
        if question.reference and "reference" in self.sections:
            reference = shown(question.reference, "Reference")
            texts["reference"] = _put(self.sections["reference"], {"reference": reference}) + "\n\n"
        return Message("system", _put(self.sections["system"], texts)), Message(
            "user", _put(self.sections["user"], texts)
        )


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


def read_scores(reply: str, count: int) -> tuple[float, ...] | None:
    """The `count` (1 or 2) scores of a reply, or None where it is not sure that it says just these.

    Every line with a digit must be one that gives scores from 1 to 10 and no others: numbers alone, behind a heading,
    or each behind its answer's name, A before B. What a model thought, up to `</think>`, is no part of the reply.

    >>> read_scores("8 7.5", 2)
    (8.0, 7.5)
    >>> read_scores("Assistant A: 8/10, assistant B: 7/10", 2)
    (8.0, 7.0)
    >>> read_scores("4/5", 2) is None
    True
    """
    if len(reply.encode("utf-8", "surrogatepass")) > MOST_REPLY_BYTES:
        return None
    said = reply.rpartition("</think>")[2]
    if "<think>" in said:  # it was cut while it thought
        return None
    lines = {" ".join(line.translate(_ORNAMENT).lower().split()) for line in said.splitlines()}
    found = {_scores(line, count) for line in lines if any(map(str.isdecimal, line))}
    found.discard(())
    return found.pop() if len(found) == 1 else None


def _scores(line: str, count: int) -> tuple[float, ...] | None:
    """The scores that a line gives, () for a heading with nothing but the scale asked for, None for anything else."""
    if len(line) > _LONGEST_LINE:
        return None
    line = _SCALE.sub("", line).replace("  ", " ").strip()
    if not any(map(str.isdecimal, line)):
        return ()
    match = next(filter(None, (form.fullmatch(line) for form in _LINES[count])), None)
    scores = tuple(map(float, match.groups())) if match else ()
    return scores if scores and all(_LEAST <= score <= _MOST for score in scores) else None


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
