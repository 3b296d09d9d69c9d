"""The prompts that the modules for SmolLM2 learn from: it answers them itself (benchctl train --self-distil).

python -m reference.smollm2 instruct_train.jsonl.gz instruct_val.jsonl.gz text_train.jsonl.gz PROMPTS

Records are chosen by source, so that no source prevails; passages of books and articles become tasks of the kinds that
people ask for: summaries, questions, translations.
"""

from __future__ import annotations

import gzip
import json
import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

LONGEST_PROMPT = 1200  # characters
# Prompts of each source; sources that are not named have none.
COUNTS = {
    "p3": 16000,
    "gsm8k_train": 7000,
    "gpteacher_codegen": 4400,
    "gpteacher_roleplay": 1900,
    "openstax_sections": 1900,
    "openstax_glossary": 1600,
    "llms_from_scratch": 1000,
    "tldr": 1000,
    "factbook": 1000,
    "chatterbot_corpus": 800,
    "self_instruct_seed_tasks": 170,
    "data_science_interviews": 140,
}
PASSAGES = 12000
PASSAGE_WORDS = 60, 170  # of a passage, at least and at most
TASKS = (
    "Summarize the following text.\n\n{}",
    "Write a short summary of this passage, then list its key points.\n\n{}",
    "{}\n\nWhat is the main idea of the text above?",
    "Use the passage to answer: what happens, who is involved and why does it matter?\n\nPassage: {}",
    "Explain the following text to a child in simple words.\n\n{}",
    "Write three questions that this text answers, each with its answer.\n\n{}",
    "Translate the following text to German.\n\n{}",
    "Translate the following text to French.\n\n{}",
)
HELD_OUT = 0.02  # of the passages; records to measure by are this share of COUNTS

Record = dict[str, str]


def chosen(records: Sequence[Record], share: float) -> Iterator[Record]:
    """Of each source `share` of its number, in an order that mixes the sources."""
    left = {source: round(count * share) for source, count in COUNTS.items()}
    for record in random.Random(0).sample(records, len(records)):
        source = record["source"].partition("/")[0]
        if left.get(source, 0) and len(record["instruction"] + record["input"]) <= LONGEST_PROMPT:
            left[source] -= 1
            yield record


def passage_tasks(texts: Sequence[Record], count: int) -> list[Record]:
    """Tasks on at most so many passages, each used once. The outputs are never read: smollm2 writes its own answers."""
    shortest, longest = PASSAGE_WORDS
    paragraphs = [paragraph.strip() for text in texts for paragraph in text["text"].split("\n\n")]
    fitting = [each for each in dict.fromkeys(paragraphs) if shortest <= len(each.split()) <= longest]
    chance = random.Random(0)
    passages = chance.sample(fitting, count)
    return [
        {"source": "passages", "instruction": chance.choice(TASKS).format(passage), "input": "", "output": "-"}
        for passage in passages
        if len(passage) <= LONGEST_PROMPT
    ]


def read(file: str) -> list[Record]:
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def main(train: str, held_out: str, texts: str, folder: str) -> None:
    tasks = passage_tasks(read(texts), PASSAGES)
    kept_back = round(len(tasks) * HELD_OUT)
    parts = {
        "prompts.jsonl": [*chosen(read(train), 1.0), *tasks[kept_back:]],
        "prompts_val.jsonl": [*chosen(read(held_out), HELD_OUT), *tasks[:kept_back]],
    }
    Path(folder).mkdir(parents=True, exist_ok=True)
    for name, records in parts.items():
        with (Path(folder) / name).open("w", encoding="utf-8") as out:
            out.writelines(json.dumps(record) + "\n" for record in records)


if __name__ == "__main__":
    main(*sys.argv[1:])
