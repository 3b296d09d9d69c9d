"""Whether an answer is right, without a judge: it ends with the exact answer that its prompt came with.

Only prompts that came with one are checked (SuiteInfo.exact_answers): a reference in free text, such as those of
self-instruct and mt-bench, is never taken for one. A prompt without an exact answer has no score, rather than 0.
"""

import re
import unicodedata
from fractions import Fraction

_RAISED = re.compile("[⁰¹²³⁴-⁹]+")  # 10² is 10^2, and not the 102 that NFKC makes of it
_VULGAR = re.compile("(?=[¼-¾⅐-⅞])")  # 2½ is 2 1/2, and not the 21/2 that NFKC makes of it
_COMPARISON = re.compile("([<>≤≥≠])")
_OPERATORS = frozenset("+-*/^×÷<>≤≥≠")
_ARITHMETIC = frozenset("+-*/^×÷")
# 1,000 and 12,345.6, but not 34,62 or 1,000,2: there the commas part the items of a list.
_THOUSANDS = re.compile(r"(?<![\d,.])\d{1,3}(?:,\d{3})+(?!\d|,\d)")
_SPACED_THOUSANDS = re.compile("(?<![\\d,.])\\d{1,3}(?:[ \u00a0\u2009\u202f]\\d{3})+(?![\\d/]|,\\d)")
_MINUS = re.compile("\N{MINUS SIGN}|(?<!\\w)\N{EN DASH}(?=[\\s\\d.])")
_GAP = re.compile(r"((?:[\s,=≈—]|(?<!\d):|:(?!\d))+)")  # 10:30 stays one word
_LEAD = re.compile(r"(-?)[$€£¥₹]?((?:(?<!\.)\.)?)$")  # minus and point of -.5 and -$.5, not the last of three points

_BOXED = re.compile(r"\\f?boxed\s*\{")
_LATEX = tuple(
    (re.compile(pattern), plain)
    for pattern, plain in (
        (r"\\(?:text(?:bf|it|rm)?|math(?:rm|bf))\s*\{([^{}]*)\}", r"\1"),
        (r"(?<=\d)\s*(?=\\[dt]?frac)", " "),
        (r"\\[dt]?frac\s*(?:\{(-?\d+)\}|(\d))\s*(?:\{(\d+)\}|(\d))", r"\1\2/\3\4"),
        (r"\{,\}|,\\!", ","),
        (r"\\[,;: ]", "\N{THIN SPACE}"),
        (r"\\(?=[$%])", ""),
        (r"\\(?:times|cdot)\b", " × "),
        (r"\\sqrt\b", "√"),
        (r"\\approx\b", "≈"),
        (r"\^\{?\\circ\b\}?", "°"),
    )
)
# How parts of one number are put together, and what parts it from a text without spaces.
_JOINTS = tuple(
    (re.compile(pattern), joined)
    for pattern, joined in (
        ("\N{FRACTION SLASH}", "/"),
        (r"√\s*", "sqrt"),
        (r"(?<=\d) / (?=\d)", "/"),
        (r"(?<![\w.,/^])(\d+) +(?=\d+/\d+(?![\w/]))", r"\1&"),  # 2 1/2 becomes one word, 2&1/2
        (r"(=\s*)-\s+(?=[$.\d])", r"\1-"),
        (r"(?<=[\u3040-\u30ff\u4e00-\u9fff])(?=[-$¥]?\d)", " "),
    )
)
_NUMBER = re.compile(r"(-?)(?:(\d{1,99})&)?(\d{0,99}\.?\d{1,99})(?:/(\d{1,99}))?")
# What stands directly before a number, and behind it: us$18, 18kg, 18km/h, 18-year-old, 18m^2.
_CURRENCY = re.compile(r"^[a-z]*[$€£¥₹](?=-?[\d.])")
# Behind a number they make another one of it.
_SCALES = frozenset(
    (
        "k",
        "mn",
        "mio",
        "bn",
        "hundred",
        "thousand",
        "million",
        "millions",
        "billion",
        "billions",
        "trillion",
        "x",
        "i",
        "π",
    )
)
_UNIT = re.compile(r"(?<=\d)\.?[^\d.,:^&+×÷]*[^\W\d](?:\^\W?\d)?$")


def is_right(answer: str, exact_answer: str) -> bool:
    """Whether `answer` ends with `exact_answer`, which must hold a letter or a digit.

    The end decides because a model may explain itself first. Where the answer has a LaTeX box, the last box is its end.
    An exact answer that is one number is compared with the last number, every other one with the last words.

    The last number may be followed by words, and have a currency or a unit. Numbers are equal if their values are. A
    calculation is no number, and a fraction equals no whole number.

    >>> [is_right(answer, "4") for answer in ("4", "2 + 2 = **4**.", r"\\boxed{4}", "$4.00", "4 apples are left.")]
    [True, True, True, True, True]
    >>> [is_right(answer, "4") for answer in ("64", "-4", ".4", "4 or 5", "10 - 4", "x = - 4", "8/2", "4:00", "3,4")]
    [False, False, False, False, False, False, False, False, False]
    >>> [is_right(answer, "3/4") for answer in (r"\\frac{3}{4}", "0.75", "1 3/4")]
    [True, True, False]

    Words part at white space, commas, `=`, a dash and a colon. Case, punctuation and symbols at the edges of a word,
    and commas within a number do not count; a minus or a point at a number does, and so does the order. Nothing may
    follow words: an answer cut off before its end is wrong.

    >>> is_right("That is 1,000 Meters.", "1000 meters")
    True

    A list must be whole: where `exact_answer` has commas, no comma may lead up to it in the answer; and nowhere one
    without a space, as in 3,5.

    >>> [is_right(answer, "2, 3") for answer in ("Sorted: 2, 3", "2 3", "1, 2, 3", "3, 2")]
    [True, True, False, False]

    Operators count where `exact_answer` has some, and where one stands between a number and a last number.

    >>> [is_right(answer, "4") for answer in ("- 4", "Answer - 4", "10 - 4", "It is –4")]
    [True, True, False, False]
    >>> is_right("GPT-4 - yes", "yes")
    True

    >>> [is_right(answer, "x > 4") for answer in ("- x > 4", "x < 4")]
    [True, False]
    """
    asked, end = _words(_without_latex(exact_answer)), _without_latex(answer)
    is_number = len(asked) == 1 and _value(asked[0][0]) is not None
    said = _to_last_number(end) if is_number else _words(end)
    if not any(word in _OPERATORS for word, _ in asked):
        whole, said = said, [(word, gap) for word, gap in said if word not in _OPERATORS]
        before = len(whole) - len(asked) - 1
        if before > 0 and whole[before][0] in _ARITHMETIC and re.match(r"[-.]*\d", asked[0][0]):
            is_bullet = re.search(r"[\n:]", whole[before][1])
            if not is_bullet and re.search(r"\d", whole[before - 1][0]):
                return False
    last = said[-len(asked) :]
    if len(last) < len(asked) or not all(map(_is_same, (word for word, _ in last), (word for word, _ in asked))):
        return False
    _, lead = last[0] if len(said) > len(asked) else ("", "")
    return lead != "," and not ("," in lead and any("," in gap for _, gap in asked))


def _without_latex(text: str) -> str:
    """`text` with usual commands of LaTeX as plain text; of a text with boxes, the content of the last one."""
    for start in reversed([box.end() for box in _BOXED.finditer(text)]):
        depth, end = 1, start
        while end < len(text) and depth:
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            end += 1
        if any(map(str.isalnum, text[start:end])):
            text = text[start:end]
            break
    for pattern, plain in _LATEX:
        text = pattern.sub(plain, text)
    return text


def _to_last_number(text: str) -> list[tuple[str, str]]:
    """Words as of `_words` up to the last one with a digit that does not begin with a letter, such as m^2.

    That word loses its currency and its unit. Without a number where a scale, such as million, or a comparison changes
    its value.
    """
    said, behind = _words(_SPACED_THOUSANDS.sub(lambda number: re.sub(r"\s", "", number[0]), text)), ("", "")
    while said:
        word, gap = said.pop()
        word = _CURRENCY.sub("", word)
        if any(map(str.isdigit, word)) and not word[0].isalpha():
            number = _UNIT.sub("", word)
            scaled = word[len(number) :].strip(".- ") in _SCALES or (behind[0] in _SCALES and behind[1].isspace())
            compared = len(said) > 1 and _COMPARISON.fullmatch(said[-1][0]) is not None
            return [] if scaled or compared else [*said, (number, gap)]
        behind = word, gap
    return []


def _value(word: str) -> Fraction | None:
    """The number that `word` is: whole, decimal, a fraction, or a whole number and a fraction; None for all else."""
    number = _NUMBER.fullmatch(word)
    if number is None or not int(number[4] or 1):
        return None
    value = int(number[2] or 0) + Fraction(number[3]) / int(number[4] or 1)
    return -value if number[1] else value


def _is_same(word: str, asked: str) -> bool:
    value = _value(word)
    is_calculation = "/" in word and value is not None and value.denominator == 1
    return word == asked or (value is not None and not is_calculation and value == _value(asked))


def _words(text: str) -> list[tuple[str, str]]:
    """Words in order without what surrounds them, each with the gap that parts it from the word before.

    Operators that stand alone are among them; other punctuation vanishes.
    """
    raised = _RAISED.sub(lambda digits: "^" + digits[0], _VULGAR.sub(" ", text))
    plain = _MINUS.sub("-", unicodedata.normalize("NFKC", raised).casefold())
    for pattern, joined in _JOINTS:
        plain = pattern.sub(joined, plain)
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
