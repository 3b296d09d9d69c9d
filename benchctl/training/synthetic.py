"""Small chats made by rule: arithmetic, words, lists, dates, units; and prompts for stories that lack one."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable

from benchctl.training.corpus import Record

Chat = tuple[str, str]


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


WORDS = _words(
    "apple river stone garden window yellow market simple bridge candle summer winter forest pencil orange silver "
    "mother father doctor travel island button circle ticket school dragon planet rabbit mirror flower kitchen "
    "mountain holiday morning evening picture library station teacher student village animal engine bottle basket "
    "blanket carpet castle cheese circus coffee cotton desert dinner falcon finger guitar hammer harbor insect jacket"
)
ANIMALS = _words("dog cat horse cow lion tiger rabbit wolf bear fox mouse elephant monkey sheep goat")
FRUITS = _words("apple banana cherry grape lemon mango orange peach pear plum strawberry melon kiwi")
COLORS = _words("red blue green yellow orange purple black white pink brown gray")
NAMES = _words("Anna Ben Clara David Emma Frank Grace Henry Ida Jack Kate Leo Maria Nina Oscar Paul Rosa Sam Tom Zoe")
DAYS = _words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
MONTHS = _words("January February March April May June July August September October November December")
UNITS = (
    ("meters", "centimeters", 100),
    ("kilometers", "meters", 1000),
    ("kilograms", "grams", 1000),
    ("hours", "minutes", 60),
    ("minutes", "seconds", 60),
    ("days", "hours", 24),
    ("weeks", "days", 7),
    ("feet", "inches", 12),
    ("years", "months", 12),
)
OPPOSITES = (
    ("hot", "cold"),
    ("big", "small"),
    ("fast", "slow"),
    ("happy", "sad"),
    ("light", "dark"),
    ("early", "late"),
    ("full", "empty"),
    ("open", "closed"),
    ("hard", "soft"),
    ("old", "young"),
    ("strong", "weak"),
    ("rich", "poor"),
)
STORY_REQUESTS = (
    "Tell me a short story about a {word}.",
    "Write a short story for children about a {word}.",
    "Can you tell me a story with a {word} in it?",
    "Write a story about a {word} that teaches a lesson.",
)
COMMON = frozenset(
    _words(
        "once upon time there was were that they their them with have from very said then went when what little wanted "
        "would could play played away back like liked them this because happy felt looked came made some every around "
        "asked knew thought about other another after into good together more still home help took found said"
    )
)


def synthetic_records(count: int, seed: int = 0) -> list[Record]:
    """`count` chats, the same ones for the same seed."""
    chance = random.Random(seed)
    chats = [chance.choice(MAKERS)(chance) for _ in range(count)]
    return [Record("synthetic", question, answer) for question, answer in chats]


def story_records(records: Iterable[Record]) -> list[Record]:
    """Stories as answers to a request that names the word that matters most in them."""
    return [
        Record("stories", STORY_REQUESTS[number % len(STORY_REQUESTS)].format(word=_subject(record.text)), record.text)
        for number, record in enumerate(r for r in records if r.source == "tinystories_sample")
    ]


def _subject(text: str) -> str:
    words = [word.strip('.,!?"').lower() for word in text.split()]
    counted = Counter(word for word in words if len(word) > 3 and word.isalpha() and word not in COMMON)
    return counted.most_common(1)[0][0] if counted else "friend"


def _sum(chance: random.Random) -> Chat:
    a, b = chance.randint(1, 99), chance.randint(1, 99)
    asked = chance.choice(("What is {a} + {b}?", "Add {a} and {b}.", "How much is {a} plus {b}?"))
    return asked.format(a=a, b=b), chance.choice((f"{a} + {b} = {a + b}.", f"The sum is {a + b}."))


def _difference(chance: random.Random) -> Chat:
    b, rest = chance.randint(1, 50), chance.randint(0, 50)
    asked = chance.choice(("What is {a} - {b}?", "Subtract {b} from {a}.", "How much is {a} minus {b}?"))
    return asked.format(a=b + rest, b=b), f"{b + rest} - {b} = {rest}."


def _product(chance: random.Random) -> Chat:
    a, b = chance.randint(2, 12), chance.randint(2, 12)
    asked = chance.choice(("What is {a} times {b}?", "Multiply {a} by {b}.", "What is {a} * {b}?"))
    return asked.format(a=a, b=b), f"{a} * {b} = {a * b}."


def _sort(chance: random.Random) -> Chat:
    words = chance.sample(chance.choice((WORDS, ANIMALS, FRUITS)), chance.randint(3, 5))
    asked = chance.choice(("Sort these words alphabetically: {w}.", "Put these words in alphabetical order: {w}."))
    return asked.format(w=", ".join(words)), ", ".join(sorted(words))


def _sort_numbers(chance: random.Random) -> Chat:
    numbers = chance.sample(range(1, 100), chance.randint(3, 5))
    listed = ", ".join(map(str, numbers))
    if chance.random() < 0.3:
        return f"What is the largest of these numbers: {listed}?", f"The largest number is {max(numbers)}."
    return f"Sort these numbers from smallest to largest: {listed}.", ", ".join(map(str, sorted(numbers)))


def _count(chance: random.Random) -> Chat:
    start, length = chance.randint(1, 20), chance.randint(3, 10)
    numbers = ", ".join(map(str, range(start, start + length)))
    return f"Count from {start} to {start + length - 1}.", numbers


def _letters(chance: random.Random) -> Chat:
    word = chance.choice(WORDS)
    if chance.random() < 0.5:
        return f'How many letters are in the word "{word}"?', f'The word "{word}" has {len(word)} letters.'
    return f'Spell the word "{word}".', "-".join(word.upper())


def _repeat(chance: random.Random) -> Chat:
    words = " ".join(chance.sample(WORDS, chance.randint(2, 4)))
    asked = chance.choice(('Repeat after me: "{w}"', "Write this in capital letters: {w}"))
    return asked.format(w=words), words.upper() if "capital" in asked else words


def _members(chance: random.Random) -> Chat:
    kind, members = chance.choice((("animals", ANIMALS), ("fruits", FRUITS), ("colors", COLORS)))
    number = chance.randint(2, 5)
    chosen = chance.sample(members, number)
    asked = chance.choice(("List {n} {k}.", "Name {n} {k}.", "Give me {n} examples of {k}."))
    lines = "\n".join(f"{place}. {member.capitalize()}" for place, member in enumerate(chosen, start=1))
    return asked.format(n=number, k=kind), lines


def _day(chance: random.Random) -> Chat:
    names, kind = chance.choice(((DAYS, "day"), (MONTHS, "month")))
    place = chance.randrange(len(names))
    after = names[(place + 1) % len(names)]
    return f"Which {kind} comes after {names[place]}?", f"{after} comes after {names[place]}."


def _unit(chance: random.Random) -> Chat:
    large, small, factor = chance.choice(UNITS)
    number = chance.randint(2, 12)
    asked = chance.choice(("How many {s} are in {n} {l}?", "Convert {n} {l} to {s}."))
    return asked.format(s=small, n=number, l=large), f"{number} {large} are {number * factor} {small}."


def _opposite(chance: random.Random) -> Chat:
    pair = list(chance.choice(OPPOSITES))
    chance.shuffle(pair)
    asked = chance.choice(('What is the opposite of "{w}"?', 'Give me an antonym of "{w}".'))
    return asked.format(w=pair[0]), f'The opposite of "{pair[0]}" is "{pair[1]}".'


def _greeting(chance: random.Random) -> Chat:
    name = chance.choice(NAMES)
    asked = chance.choice(("Hello, my name is {n}.", "Hi! I am {n}.", "Good morning, I'm {n}. How are you?"))
    return asked.format(n=name), f"Hello, {name}! It is nice to meet you. How can I help you today?"


def _share(chance: random.Random) -> Chat:
    name, other = chance.sample(NAMES, 2)
    fruit = chance.choice(FRUITS)
    start, given = chance.randint(6, 20), chance.randint(1, 5)
    asked = f"{name} has {start} {fruit}s and gives {given} to {other}. How many {fruit}s does {name} have left?"
    return asked, f"{name} has {start} - {given} = {start - given} {fruit}s left.\nThe answer is {start - given}"


MAKERS: tuple[Callable[[random.Random], Chat], ...] = (
    _sum,
    _difference,
    _product,
    _sort,
    _sort_numbers,
    _count,
    _letters,
    _repeat,
    _members,
    _day,
    _unit,
    _opposite,
    _greeting,
    _share,
)
