"""What counts as a right answer, rule by rule."""

import pytest

from benchctl.exact_match import is_right


@pytest.mark.parametrize(
    ("answer", "exact_answer"),
    [
        ("4", "4"),
        ("4.", "4"),
        (" 4\n", "4"),
        ("**4**", "4"),
        ("_4_", "4"),
        ("(4)", "4"),
        ("$4", "4"),
        ("2 + 2 = 4", "4"),
        ("2+2=4", "4"),
        ("Answer:4", "4"),
        ("It takes a while, but 4", "4"),
        ("-4", "-4"),
        ("−4", "-4"),
        ("1,000", "1000"),
        ("1000", "1,000"),
        ("1,234,567.5", "1234567.5"),
        ("Friday!", "friday"),
        ("It is FRIDAY", "Friday"),
        ("Monday, Tuesday. The answer is Tuesday", "Tuesday"),
        ("480  Seconds.", "480 seconds"),
        ("2, 3, 10", "2, 3, 10"),
        ("2,3,10", "2, 3, 10"),
        ("2 3 10", "2, 3, 10"),
        ("2,\n3,\n10.", "2, 3, 10"),
        ("- 2\n- 3\n- 10", "2, 3, 10"),
        ("In order: 2, 3, 10", "2, 3, 10"),
        ("First, the words. Here: apple, river", "apple, river"),
        ("orange dinner", "orange dinner"),
        ("They are, as you said, orange dinner", "orange dinner"),
        ("cafe\u0301", "caf\u00e9"),
        ("Well ...4", "4"),
        (".4", ".4"),
        ("4 \u2705\ufe0f", "4"),
        ("- x > 4", "x > 4"),
        ("> 4", "4"),
        ("5 * 2", "5 * 2"),
        ("10\u00b2", "10^2"),
        (", 4", "4"),
        ("-apple", "apple"),
        ("4\ufe0f", "4"),
        (",4", "4"),
        ("STRASSE", "stra\u00dfe"),
        ("12,345,67", "12, 345, 67"),
        ("2,1,000", "2, 1, 000"),
    ],
)
def test_right(answer: str, exact_answer: str) -> None:
    assert is_right(answer, exact_answer)


@pytest.mark.parametrize(
    ("answer", "exact_answer"),
    [
        ("", "4"),
        ("...", "4"),
        ("64", "4"),
        ("46", "4"),
        ("-4", "4"),
        ("4", "-4"),
        ("4.5", "4"),
        ("3.4", "4"),
        ("1/4", "4"),
        ("10:04", "04"),
        ("4 apples", "4"),
        ("4 or 5", "4"),
        ("four", "4"),
        ("1,000", "0"),
        ("1,000", "000"),
        ("2,3", "23"),
        ("100,200", "100, 200"),
        ("Blackfriday", "Friday"),
        ("Fri", "Friday"),
        ("480", "480 seconds"),
        ("seconds", "480 seconds"),
        ("1480 seconds", "480 seconds"),
        ("480 minutes", "480 seconds"),
        ("3, 2, 10", "2, 3, 10"),
        ("2, 3", "2, 3, 10"),
        ("1, 2, 3, 10", "2, 3, 10"),
        ("river, apple", "apple, river"),
        ("stone, apple, river", "apple, river"),
        ("river, orange", "orange dinner"),
        (".4", "4"),
        ("-.4", "4"),
        ("3,5", "5"),
        ("12,5 meters", "5 meters"),
        ("x < 4", "x > 4"),
        ("x <4", "x >4"),
        ("5 * 2", "5 + 2"),
        ("10\u00b2", "102"),
        ("\u0915\u093e", "\u0915\u0940"),
        ("\u0915\u0941", "\u0915"),
    ],
)
def test_wrong(answer: str, exact_answer: str) -> None:
    assert not is_right(answer, exact_answer)


def test_a_list_that_goes_on_to_the_left_is_wrong_though_its_end_is_right() -> None:
    """By its last words alone, counting from 25 instead of 26 would be as good as what was asked."""
    assert is_right("Count: 26, 27, 28", "26, 27, 28")
    assert not is_right("25, 26, 27, 28", "26, 27, 28")


def test_the_end_alone_decides_so_a_right_answer_that_goes_on_is_wrong() -> None:
    assert not is_right("The answer is 4. What else can I do for you?", "4")
