"""What counts as a right answer, rule by rule."""

import pytest

from benchctl.exact_match import is_right

# Answers by the exact answer that they are held against.
RIGHT = {
    "4": (
        *("4", "4.", " 4\n", "**4**", "_4_", "(4)", "$4", "2 + 2 = 4", "2+2=4", "Answer:4"),
        *(
            "Answer - 4",
            "Step 2\n- 4",
            "It takes a while, but 4",
            "Well ...4",
            "4 \u2705\ufe0f",
            "> 4",
            ", 4",
            "4\ufe0f",
            ",4",
        ),
    ),
    "-4": ("-4", "−4", "-$4", "$-4"),
    "1000": ("1,000",),
    "1,000": ("1000",),
    "1234567.5": ("1,234,567.5",),
    "friday": ("Friday!",),
    "Friday": ("It is FRIDAY",),
    "Tuesday": ("Monday, Tuesday. The answer is Tuesday",),
    "480 seconds": ("480  Seconds.",),
    "2, 3, 10": ("2, 3, 10", "2,3,10", "2 3 10", "2,\n3,\n10.", "- 2\n- 3\n- 10", "In order: 2, 3, 10"),
    "apple, river": ("First, the words. Here: apple, river",),
    "orange dinner": ("orange dinner", "They are, as you said, orange dinner"),
    "caf\u00e9": ("cafe\u0301",),
    ".4": (".4",),
    "x > 4": ("- x > 4",),
    "5 * 2": ("5 * 2",),
    "10^2": ("10\u00b2",),
    "apple": ("-apple",),
    "stra\u00dfe": ("STRASSE",),
    "12, 345, 67": ("12,345,67",),
    "2, 1, 000": ("2,1,000",),
    "26, 27, 28": ("Count: 26, 27, 28",),
}
WRONG = {
    "4": (
        "",
        "...",
        "64",
        "46",
        "-4",
        "4.5",
        "3.4",
        "1/4",
        "4 apples",
        "4 or 5",
        "four",
        ".4",
        "-.4",
        "x = - 4",
        "-$4",
        "10 - 4",
        "3 / 4",
    ),
    "-4": ("4",),
    "04": ("10:04",),
    "0": ("1,000",),
    "000": ("1,000",),
    "23": ("2,3",),
    "100, 200": ("100,200",),
    "Friday": ("Blackfriday", "Fri"),
    "480 seconds": ("480", "seconds", "1480 seconds", "480 minutes"),
    "2, 3, 10": ("3, 2, 10", "2, 3", "1, 2, 3, 10"),
    "apple, river": ("river, apple", "stone, apple, river"),
    "orange dinner": ("river, orange",),
    "5": ("3,5",),
    "5 meters": ("12,5 meters",),
    "x > 4": ("x < 4",),
    "x >4": ("x <4",),
    "5 + 2": ("5 * 2",),
    "102": ("10\u00b2",),
    "\u0915\u0940": ("\u0915\u093e",),
    "\u0915": ("\u0915\u0941",),
    # By its last words alone, counting from 25 instead of 26 would be as good as what was asked.
    "26, 27, 28": ("25, 26, 27, 28",),
    "for you": ("The answer is for you. What else can I do?",),
}


@pytest.mark.parametrize(("exact_answer", "answer"), [(key, text) for key, texts in RIGHT.items() for text in texts])
def test_right(exact_answer: str, answer: str) -> None:
    assert is_right(answer, exact_answer)


@pytest.mark.parametrize(("exact_answer", "answer"), [(key, text) for key, texts in WRONG.items() for text in texts])
def test_wrong(exact_answer: str, answer: str) -> None:
    assert not is_right(answer, exact_answer)
