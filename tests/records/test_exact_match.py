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


# What models write where the exact answer is one number.
NUMBERS = {
    "18": (
        (
            *("So she has **18**.", r"So she has \boxed{18}.", r"So she has $\boxed{18}$", r"\(\boxed{18}\)"),
            *(
                r"\[\boxed{18\text{ dollars}}\] She sold 3 of 4.",
                r"In \boxed{}: 18",
                r"\boxed{x = 18}",
                r"\boxed{\$18.00}",
            ),
            *(
                "It costs $18.00.",
                "It costs US$18 a day.",
                r"\$18",
                "18 dollars",
                "18%",
                "18 %",
                "18kg",
                "18 km/h",
                "18 m^2",
            ),
            *(
                "18 cm\u00b2",
                r"18\,\text{cm}^2",
                r"18^\circ",
                "18\u20ac",
                "18/day",
                "#### 18",
                "18, as we know.",
                "eighteen (18)",
            ),
            *(
                "16 - 3 = 13, then 13 + 5 = 18",
                "She has 18 left. I hope this helps!",
                "x \u2248 18",
                "\u7b54\u6848\u662f18\u4e2a\u3002",
            ),
        ),
        (
            *(
                "18.5",
                "1,8",
                "1.8",
                "180",
                "-18",
                "- 18 x = -18",
                r"-\$18",
                r"\boxed{19}. No, 18",
                "9 + 9",
                "20 - 18",
                "18 or 19",
            ),
            *(
                "18 eggs for 3 days",
                "2024-01-18",
                "18 May 2024",
                "18:00",
                "10:18",
                "36/2",
                "18e3",
                "18-19",
                "3^18",
                "18^2",
            ),
            *(
                "1 018",
                "version 1.18",
                "GPT-18",
                "",
                "eighteen",
                r"\boxed{}",
                "18\u00b2",
                "1/18",
                "17 1/18",
                "1" * 5000,
            ),
        ),
    ),
    "-4": (
        ("-4", "x = - 4", "-4.0 degrees", r"\boxed{-4}", "-$4", r"-\$4"),
        ("4", "Part 2: - 4", "10 - 4", "10 -- 4", "- 4", "3-4"),
    ),
    "4": (("Part 2: - 4", "Part 2\n- 4"), ("Part 2 - 4",)),
    "1000": (
        ("1,000", "$1,000.00", "1 000", "1\u202f000 km", r"1{,}000", r"1\,000", r"1,\!000", "1000.0"),
        ("1.000", "1,000,2", "1 000 000", "000", "1,00"),
    ),
    "1,000": (("1000", "1 000.00"), ("1",)),
    "$1,000": (("1000 dollars",), ("100",)),
    "50%": (("50%", "50 percent", r"50\%", "50"), ("0.5", "5%")),
    "0.5": (("0.50", ".5", "1/2", r"\frac12", "\u00bd"), ("5", "0.05", "0,5")),
    "3/4": (
        ("3/4", "3 / 4", "6/8", "0.75", r"\boxed{\frac{3}{4}}", r"\dfrac34 of it", "\u00be cup"),
        ("4/3", "3", "4", "1 3/4", "2\u00be", r"-\frac{3}{4}", r"1\frac{3}{4}", "3/4/2024", "3/0"),
    ),
    "2 1/2": (("2 1/2", "2\u00bd hours", "2.5", "5/2", r"2\frac{1}{2}"), ("1/2", "2", "21/2", "-2 1/2")),
    "6/3": (("6/3",), ("3",)),
    "Friday": ((r"\boxed{\text{Friday}}", "**Friday**", r"It is \textbf{Friday}."), (r"\boxed{Monday}, not Friday",)),
}


@pytest.mark.parametrize(
    "answer",
    [
        *("18 million", "$18 million", "18k", "18x", "18i", "18π", r"3\cdot 18", "√18", r"\sqrt{18}", "x ≤ 18"),
        *("x > 18", "18 thousand people"),
    ],
)
def test_a_number_with_a_scale_a_factor_or_a_bound_is_another_one(answer: str) -> None:
    """Units behind a number do not count, and "18 million" counted as 18."""
    assert not is_right(answer, "18")


@pytest.mark.parametrize(
    ("exact_answer", "answer", "right"),
    [
        (key, text, right)
        for key, both in NUMBERS.items()
        for right, texts in zip((True, False), both, strict=True)
        for text in texts
    ],
)
def test_numbers_count_in_every_usual_notation(exact_answer: str, answer: str, right: bool) -> None:
    """Answers of mathematical models end in a LaTeX box, others in 18.00 or in 18 dollars.
    All of them were wrong where the exact answer was 18, so that a lossless method had an exact match of 0."""
    assert is_right(answer, exact_answer) is right
