"""Small chats made by rule: tasks, lists, opposites, greetings; and prompts for stories that lack one."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable

from benchctl.training.data.chats import Record
from reference.tasks import NAMES, listed, suite_tasks, training_tasks

Chat = tuple[str, str]


ANIMALS = listed("dog cat horse cow lion tiger rabbit wolf bear fox mouse elephant monkey sheep goat")
FRUITS = listed("apple banana cherry grape lemon mango orange peach pear plum strawberry melon kiwi")
COLORS = listed("red blue green yellow orange purple black white pink brown gray")
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
    listed(
        "once upon time there was were that they their them with have from very said then went when what little wanted "
        "would could play played away back like liked them this because happy felt looked came made some every around "
        "asked knew thought about other another after into good together more still home help took found said"
    )
)


def synthetic_records(tasks: int, chats: int, seed: int = 0) -> list[Record]:
    """So many tasks and so many other chats, the same ones for the same seed."""
    chance = random.Random(seed)
    made = [chance.choice(MAKERS)(chance) for _ in range(chats)]
    records = [Record.chat("tasks", task.question, task.answer) for task in training_tasks(tasks, seed)]
    return records + [Record.chat("synthetic", question, answer) for question, answer in made]


def suite_records() -> list[Record]:
    """The tasks that no model is trained on."""
    return [Record.chat("tasks", task.question, task.answer) for task in suite_tasks()]


def story_records(records: Iterable[Record]) -> list[Record]:
    """Stories as answers to a request that names the word that matters most in them."""
    return [
        Record.chat("stories", STORY_REQUESTS[number % len(STORY_REQUESTS)].format(word=_subject(r.text)), r.text)
        for number, r in enumerate(record for record in records if record.source == "tinystories_sample")
    ]


def _subject(text: str) -> str:
    words = [word.strip('.,!?"').lower() for word in text.split()]
    counted = Counter(word for word in words if len(word) > 3 and word.isalpha() and word not in COMMON)
    return counted.most_common(1)[0][0] if counted else "friend"


def _members(chance: random.Random) -> Chat:
    kind, members = chance.choice((("animals", ANIMALS), ("fruits", FRUITS), ("colors", COLORS)))
    number = chance.randint(2, 5)
    chosen = chance.sample(members, number)
    asked = chance.choice(("List {n} {k}.", "Name {n} {k}.", "Give me {n} examples of {k}."))
    lines = "\n".join(f"{place}. {member.capitalize()}" for place, member in enumerate(chosen, start=1))
    return asked.format(n=number, k=kind), lines


def _opposite(chance: random.Random) -> Chat:
    pair = list(chance.choice(OPPOSITES))
    chance.shuffle(pair)
    asked = chance.choice(('What is the opposite of "{w}"?', 'Give me an antonym of "{w}".'))
    return asked.format(w=pair[0]), f'The opposite of "{pair[0]}" is "{pair[1]}".'


def _greeting(chance: random.Random) -> Chat:
    name = chance.choice(NAMES)
    asked = chance.choice(("Hello, my name is {n}.", "Hi! I am {n}.", "Good morning, I'm {n}. How are you?"))
    return asked.format(n=name), f"Hello, {name}! It is nice to meet you. How can I help you today?"


MAKERS: tuple[Callable[[random.Random], Chat], ...] = (
    _members,
    _opposite,
    _greeting,
)
