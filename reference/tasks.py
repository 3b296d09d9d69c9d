"""Tasks with answers made by rule: arithmetic, sorting, words, dates, units. Every answer ends with its key.

One question in ten, by the hash of its text, is kept for the suite `tasks`; training never sees those, though it may
see the same sum in other words. `python -m reference.tasks` prints the suite.
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

SUITE_OF = 10  # one question in so many belongs to the suite
PER_SKILL = 20
SEED = 2026


@dataclass(frozen=True)
class Task:
    """A question, the answer a model learns, and the key: how a right answer must end."""

    skill: str
    question: str
    answer: str
    key: str


def listed(text: str, mark: str | None = None) -> tuple[str, ...]:
    """The words of a text, or its parts between marks: listed("red blue") is ("red", "blue")."""
    return tuple(text.split(mark))


WORDS = listed(
    "apple river stone garden window yellow market simple bridge candle summer winter forest pencil orange silver "
    "mother father doctor travel island button circle ticket school dragon planet rabbit mirror flower kitchen "
    "mountain holiday morning evening picture library station teacher student village animal engine bottle basket "
    "blanket carpet castle cheese circus coffee cotton desert dinner falcon finger guitar hammer harbor insect jacket"
)
FRUITS = listed("apples bananas cherries grapes lemons mangos oranges peaches pears plums melons kiwis")
NAMES = listed("Anna Ben Clara David Emma Frank Grace Henry Ida Jack Kate Leo Maria Nina Oscar Paul Rosa Sam Tom Zoe")
DAYS = listed("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
MONTHS = listed("January February March April May June July August September October November December")
ORDINALS = listed("first second third fourth fifth")
UNITS = (
    ("meters", "centimeters", 100),
    ("kilometers", "meters", 1000),
    ("kilograms", "grams", 1000),
    ("liters", "milliliters", 1000),
    ("hours", "minutes", 60),
    ("minutes", "seconds", 60),
    ("days", "hours", 24),
    ("weeks", "days", 7),
    ("feet", "inches", 12),
    ("years", "months", 12),
)

Maker = Callable[[random.Random], Task]


def _add(chance: random.Random) -> Task:
    a, b = chance.randint(2, 99), chance.randint(2, 99)
    wordings = ("What is {a} + {b}?", "Add {a} and {b}.", "How much is {a} plus {b}?", "Calculate {a} + {b}.")
    return Task("add", chance.choice(wordings).format(a=a, b=b), f"{a} + {b} = {a + b}", str(a + b))


def _add_three(chance: random.Random) -> Task:
    a, b, c = (chance.randint(2, 40) for _ in range(3))
    asked = chance.choice(("What is {a} + {b} + {c}?", "Add {a}, {b} and {c}.", "What is the sum of {a}, {b} and {c}?"))
    answer = f"{a} + {b} = {a + b}, and {a + b} + {c} = {a + b + c}"
    return Task("add_three", asked.format(a=a, b=b, c=c), answer, str(a + b + c))


def _subtract(chance: random.Random) -> Task:
    b, rest = chance.randint(2, 60), chance.randint(1, 60)
    asked = chance.choice(("What is {a} - {b}?", "Subtract {b} from {a}.", "How much is {a} minus {b}?"))
    return Task("subtract", asked.format(a=b + rest, b=b), f"{b + rest} - {b} = {rest}", str(rest))


def _multiply(chance: random.Random) -> Task:
    a, b = chance.randint(2, 12), chance.randint(2, 12)
    wordings = ("What is {a} times {b}?", "Multiply {a} by {b}.", "What is {a} * {b}?", "How much is {a} times {b}?")
    return Task("multiply", chance.choice(wordings).format(a=a, b=b), f"{a} * {b} = {a * b}", str(a * b))


def _share(chance: random.Random) -> Task:
    name, other = chance.sample(NAMES, 2)
    fruit, start, given = chance.choice(FRUITS), chance.randint(6, 30), chance.randint(1, 5)
    question = f"{name} has {start} {fruit} and gives {given} to {other}. How many {fruit} does {name} have left?"
    answer = f"{name} has {start} - {given} = {start - given} {fruit} left. The answer is {start - given}"
    return Task("share", question, answer, str(start - given))


def _sort_words(chance: random.Random) -> Task:
    words = chance.sample(WORDS, chance.randint(3, 5))
    asked = chance.choice(("Sort these words alphabetically: {w}", "Put these words in alphabetical order: {w}"))
    if words == sorted(words):
        words.reverse()  # a copy of the question must not be right
    key = ", ".join(sorted(words))
    return Task("sort_words", asked.format(w=", ".join(words)), key, key)


def _sort_numbers(chance: random.Random) -> Task:
    numbers = chance.sample(range(1, 100), chance.randint(3, 6))
    asked = chance.choice(("Sort these numbers from smallest to largest: {n}", "Put these numbers in order: {n}"))
    if numbers == sorted(numbers):
        numbers.reverse()
    key = ", ".join(map(str, sorted(numbers)))
    return Task("sort_numbers", asked.format(n=", ".join(map(str, numbers))), key, key)


def _largest(chance: random.Random) -> Task:
    numbers = chance.sample(range(1, 100), chance.randint(3, 6))
    kind, key = chance.choice((("largest", str(max(numbers))), ("smallest", str(min(numbers)))))
    question = f"What is the {kind} of these numbers: {', '.join(map(str, numbers))}?"
    return Task("largest", question, f"The {kind} number is {key}", key)


def _count(chance: random.Random) -> Task:
    start, by, length = chance.randint(1, 30), chance.randint(1, 5), chance.randint(5, 12)
    stop = start + by * (length - 1)
    steps = "" if by == 1 else f" by {by}s"
    key = ", ".join(map(str, range(start, stop + 1, by)))
    return Task("count", f"Count from {start} to {stop}{steps}.", key, key)


def _reverse(chance: random.Random) -> Task:
    words = chance.sample(WORDS, chance.randint(3, 6))
    asked = chance.choice(("Write these words in reverse order: {w}", "Reverse this list of words: {w}"))
    key = ", ".join(reversed(words))
    return Task("reverse", asked.format(w=", ".join(words)), key, key)


def _nth_word(chance: random.Random) -> Task:
    words = chance.sample(WORDS, chance.randint(4, 6))
    place = chance.randrange(min(len(words), len(ORDINALS)))
    question = f"What is the {ORDINALS[place]} word in this list: {', '.join(words)}?"
    return Task("nth_word", question, f"The {ORDINALS[place]} word is {words[place]}", words[place])


def _repeat(chance: random.Random) -> Task:
    words = " ".join(chance.sample(WORDS, chance.randint(2, 5)))
    asked = chance.choice(("Repeat after me: {w}", "Copy these words: {w}", "Say this again: {w}"))
    return Task("repeat", asked.format(w=words), words, words)


def _date(chance: random.Random) -> Task:
    names, kind = chance.choice(((DAYS, "day"), (MONTHS, "month")))
    place, steps = chance.randrange(len(names)), chance.randint(1, 5)
    passed = [names[(place + step) % len(names)] for step in range(steps + 1)]
    plural = kind if steps == 1 else f"{kind}s"
    wordings = (
        "Which {k} comes {n} {p} after {d}?",
        "What {k} is {n} {p} after {d}?",
        "It is {d}. Which {k} is it {n} {p} later?",
    )
    question = chance.choice(wordings).format(k=kind, n=steps, p=plural, d=passed[0])
    return Task("date", question, f"{', '.join(passed)}. The answer is {passed[-1]}", passed[-1])


def _unit(chance: random.Random) -> Task:
    large, small, factor = chance.choice(UNITS)
    number = chance.randint(2, 12)
    asked = chance.choice(("How many {s} are in {n} {l}?", "Convert {n} {l} to {s}.", "What is {n} {l} in {s}?"))
    key = f"{number * factor} {small}"
    answer = f"{number} {large} are {number} * {factor} = {key}"
    return Task("unit", asked.format(s=small, n=number, l=large), answer, key)


MAKERS: tuple[Maker, ...] = (
    *(_add, _add_three, _subtract, _multiply, _share, _sort_words, _sort_numbers),
    *(_largest, _count, _reverse, _nth_word, _repeat, _date, _unit),
)


def in_suite(question: str) -> bool:
    """Whether a question belongs to the suite; decided by its text, so it never moves."""
    return int.from_bytes(hashlib.sha256(question.encode()).digest()[:4], "big") % SUITE_OF == 0


def training_tasks(count: int, seed: int = 0) -> list[Task]:
    """`count` tasks, none of the suite; the same ones for the same seed."""
    chance = random.Random(seed)
    made: list[Task] = []
    while len(made) < count:
        task = chance.choice(MAKERS)(chance)
        if not in_suite(task.question):
            made.append(task)
    return made


def suite_tasks() -> list[Task]:
    """`PER_SKILL` different tasks of every skill, kinds in turn."""
    chance = random.Random(SEED)
    columns = [[*_held_out(maker, chance)] for maker in MAKERS]
    return [task for row in zip(*columns, strict=True) for task in row]


def _held_out(maker: Maker, chance: random.Random) -> Iterator[Task]:
    seen: set[str] = set()
    while len(seen) < PER_SKILL:
        task = maker(chance)
        if in_suite(task.question) and task.question not in seen:
            seen.add(task.question)
            yield task


def suite_lines() -> Iterator[str]:
    """The suite as the lines of its prompt file."""
    for number, task in enumerate(suite_tasks(), start=1):
        line = {"id": f"tasks_{number}", "skill": task.skill, "prompt": task.question, "reference": task.key}
        yield json.dumps(line) + "\n"


if __name__ == "__main__":
    sys.stdout.writelines(suite_lines())
