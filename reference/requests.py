"""Requests as users make them, without answers: the target answers them itself when something is distilled from it.

The instruction data ask about few kinds of things in few ways; a draft model that has read only answers to those drafts
worse for what users ask. Made by rule from everyday words and from the terms that a glossary among the data defines.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable

from benchctl.training.data.chats import Message, Record
from reference.tasks import listed

GLOSSARY = "openstax_glossary"
_TRIES = 5  # draws for each request: how many there are depends on the glossary
_QUOTED = re.compile(r'"([^"]{3,40})"')
_EVERYDAY = listed(
    "cooking dinner, learning a language, a job interview, a birthday party, saving money, a healthy breakfast, a "
    "new bicycle, the ocean, a small garden, public transport, a school trip, a broken phone, good sleep, the moon, "
    "climate change, a pet dog, an old house, football, chess, coffee, rice and beans, a rainy day, a long journey, "
    "a lost key, friendship, courage, winter, the stars, bees, volcanoes, electric cars, robots, computers, the "
    "internet, a password, spreadsheets, loops in Python, a list of numbers, a web page, databases, photography, "
    "painting, the guitar, a museum, a good book, reading aloud, a library, exercise, stretching, running, swimming, "
    "a headache, stress, teamwork, a difficult customer, a meeting, a resume, marketing, a small business, taxes, a "
    "budget, online shopping, a hotel, the train to Paris, a map, mountains, rivers, rain forests, recycling, solar "
    "power, the history of Rome, the first airplane, the printing press, a famous scientist, a king, a wizard, a "
    "brave mouse, a talking tree, a dragon, a detective, a pirate, time travel, life on Mars, bread, chocolate cake, "
    "tea, soup, a vegetable garden, house plants, cats, horses, elephants, whales, a noisy neighbor, a wedding "
    "speech, a thank-you note",
    ", ",
)
_WAYS = listed(
    "What is {a}? | Explain {a} in simple words. | Explain {a} to a child. | How does {a} work? | Why does {a} "
    "matter? | Tell me about {a}. | Write a short story about {a}. | Write a poem about {a}. | Write a paragraph "
    "about {a}. | Give me five tips for {a}. | List three facts about {a}. | What are the advantages and "
    "disadvantages of {a}? | What is the difference between {a} and {b}? | Compare {a} with {b}. | How are {a} and "
    "{b} connected? | I want to know more about {a}. Where should I begin? | Can you help me with {a}? | What should "
    "I know about {a}? | Write an email to a friend about {a}. | Write a short letter to my boss about {a}. | Write "
    "a dialogue about {a}. | You are a teacher. Explain {a} to your class. | Act as an expert on {a} and answer a "
    "question about {b}. | Give an example of {a}. | Describe {a} in two sentences. | Summarize the main ideas of "
    "{a}. | Make a plan for {a}. | Write three questions about {a} with their answers. | What would the world be "
    "like without {a}? | Suggest a title for an article about {a}. | Write a review of {a}. | Is {a} a good thing? "
    "Give reasons. | What are the steps of {a}? | How can I explain {a} to somebody who only knows {b}? | Write a "
    "joke about {a}. | Write a slogan for {a}. | Which problems does {a} solve? | What do people often get wrong "
    "about {a}?",
    " | ",
)


def user_requests(records: Iterable[Record], count: int, seed: int = 0) -> list[tuple[Message, ...]]:
    """`count` different requests at most, the same ones for the same seed and data."""
    found = dict.fromkeys(term for record in records if record.source == GLOSSARY for term in _terms(record))
    topics = [*_EVERYDAY, *found]
    chance = random.Random(seed)
    made: dict[str, None] = {}
    for _ in range(_TRIES * count):
        if len(made) == count:
            break
        first, second = chance.sample(topics if chance.random() < 0.5 else _EVERYDAY, 2)
        made[chance.choice(_WAYS).format(a=first, b=second)] = None
    return [(Message("user", text),) for text in made]


def _terms(record: Record) -> list[str]:
    return _QUOTED.findall(" ".join(message.content for message in record.prompt))
