"""From a judge's reply to scores: what is not surely scores from 1 to 10 is not read at all."""

import re
from typing import Final

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
    found = {_numbers(line) for line in bare or with_numbers}
    if len(found) != 1 or not all(map(_names_scores, bare or with_numbers)):
        return None
    (scores,) = found
    return scores if len(scores) == count and all(_LEAST <= score <= _MOST for score in scores) else None


def _numbers(line: str) -> tuple[float, ...]:
    return tuple(float(number) for number in _NUMBER.findall(line))


def _names_scores(line: str) -> bool:
    words = {word.lower().removesuffix("'s") for word in _WORD.findall(line)}
    letters = "".join("".join(found).lower() for found in _LETTER.findall(line))
    in_order = _IN_ORDER.fullmatch(letters) is not None
    return words <= _AROUND and in_order and not (_NAMED.search(line) or _SCALE.search(line))
