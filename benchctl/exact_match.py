"""Whether an answer is right, without a judge: it ends with the exact answer that its prompt came with.

Only prompts that came with one are checked (SuiteInfo.exact_answers): a reference in free text, such as those of
self-instruct and mt-bench, is never taken for one. A prompt without an exact answer has no score, rather than 0.
"""

import re
import unicodedata

_RAISED = re.compile("[⁰¹²³⁴-⁹]+")  # 10² is 10^2, and not the 102 that NFKC makes of it
_COMPARISON = re.compile("([<>≤≥≠])")
_OPERATORS = frozenset("+-*/^×÷<>≤≥≠")
_ARITHMETIC = frozenset("+-*/^×÷")
# 1,000 and 12,345.6, but not 34,62 or 1,000,2: there the commas part the items of a list.
_THOUSANDS = re.compile(r"(?<![\d,.])\d{1,3}(?:,\d{3})+(?!\d|,\d)")
_MINUS = re.compile("\N{MINUS SIGN}|(?<!\\w)\N{EN DASH}(?=[\\s\\d.])")
_GAP = re.compile(r"((?:[\s,=—]|(?<!\d):)+)")  # 10:30 stays one word
_LEAD = re.compile(r"(-?)[$€£¥]?((?:(?<!\.)\.)?)$")  # minus and point of -.5 and -$.5, not the last of three points


def is_right(answer: str, exact_answer: str) -> bool:
    """Whether the last words of `answer` are those of `exact_answer`, which must hold a letter or a digit.

    The end decides because a model may explain itself first. Words part at white space, commas, `=`, a dash and a
    colon. Case, punctuation and symbols at the edges of a word, and commas within a number do not count; a minus or a
    point at a number does, and so does the order. Nothing may follow: an answer cut off before its end is wrong.

    >>> [is_right(answer, "4") for answer in ("4", "2 + 2 = **4**.", "64", "-4", ".4", "4 apples")]
    [True, True, False, False, False, False]
    >>> is_right("That is 1,000 Meters.", "1000 meters")
    True

    A list must be whole: where `exact_answer` has commas, no comma may lead up to it in the answer; and nowhere one
    without a space, as in 3,5.

    >>> [is_right(answer, "2, 3") for answer in ("Sorted: 2, 3", "2 3", "1, 2, 3", "3, 2")]
    [True, True, False, False]

    Operators count where `exact_answer` has some, and where one stands between a number or `=` and a last number.

    >>> [is_right(answer, "4") for answer in ("- 4", "Answer - 4", "10 - 4", "x = - 4", "It is –4")]
    [True, True, False, False, False]
    >>> is_right("GPT-4 - yes", "yes")
    True

    >>> [is_right(answer, "x > 4") for answer in ("- x > 4", "x < 4")]
    [True, False]
    """
    said, asked = _words(answer), _words(exact_answer)
    if not any(word in _OPERATORS for word, _ in asked):
        whole, said = said, [(word, gap) for word, gap in said if word not in _OPERATORS]
        before = len(whole) - len(asked) - 1
        if before >= 0 and whole[before][0] in _ARITHMETIC and re.match(r"[-.]*\d", asked[0][0]):
            number, gap = before and re.search(r"\d", whole[before - 1][0]), whole[before][1]
            if "\n" not in gap and ("=" in gap or number):  # no bullet, and no dash
                return False
    end = said[-len(asked) :]
    if [word for word, _ in end] != [word for word, _ in asked]:
        return False
    _, lead = end[0] if len(said) > len(asked) else ("", "")
    return lead != "," and not ("," in lead and any("," in gap for _, gap in asked))


def _words(text: str) -> list[tuple[str, str]]:
    """Words in order without what surrounds them, each with the gap that parts it from the word before.

    Operators that stand alone are among them; other punctuation vanishes.
    """
    raised = _RAISED.sub(lambda digits: "^" + digits[0], text)
    plain = _MINUS.sub("-", unicodedata.normalize("NFKC", raised).casefold())
    whole = _THOUSANDS.sub(lambda number: number[0].replace(",", ""), plain)
    parts = ["", *_GAP.split(_COMPARISON.sub(r" \1 ", whole))]  # gap, word, gap, word ...
    words = ((_core(word), gap) for gap, word in zip(parts[::2], parts[1::2], strict=True))
    return [(core, gap) for core, gap in words if core]


def _core(word: str) -> str:
    """`word` from its first to its last letter or digit, with the accents of the last and the sign of a number."""
    inside = [at for at, char in enumerate(word) if char.isalnum()]
    if not inside:
        return word if word in _OPERATORS else ""
    start, end = inside[0], inside[-1] + 1
    while (
        end < len(word) and unicodedata.category(word[end]) in ("Mn", "Mc") and word[end] != "\N{VARIATION SELECTOR-16}"
    ):
        end += 1
    lead = _LEAD.search(word[:start]) if word[start].isdigit() else None
    return (lead[1] + lead[2] if lead else "") + word[start:end]
