"""The training prompts of the modules for SmolLM2: a choice of records by source, so that no source prevails.

python -m reference.smollm2 instruct_train.jsonl.gz instruct_val.jsonl.gz FOLDER
"""

from __future__ import annotations

import gzip
import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path

LONGEST_PROMPT = 1200  # characters
# Prompts of each source, of 2,600; sources that are not named have none.
COUNTS = {
    "gpteacher_roleplay": 700,
    "gpteacher_codegen": 400,
    "gsm8k_train": 400,
    "openstax_sections": 250,
    "self_instruct_seed_tasks": 150,
    "llms_from_scratch": 150,
    "data_science_interviews": 100,
    "openstax_glossary": 100,
    "tldr": 50,
    "factbook": 50,
    "p3": 250,
}


def chosen(records: list[dict[str, str]], share: float) -> Iterator[dict[str, str]]:
    """Of each source `share` of its number, in an order that mixes the sources."""
    random.Random(0).shuffle(records)
    left = {source: round(count * share) for source, count in COUNTS.items()}
    for record in records:
        source = record["source"].partition("/")[0]
        if left.get(source, 0) and len(record["instruction"] + record["input"]) <= LONGEST_PROMPT:
            left[source] -= 1
            yield record


def main(train: str, held_out: str, folder: str) -> None:
    Path(folder).mkdir(parents=True, exist_ok=True)
    for source, name, share in ((train, "prompts.jsonl", 1.0), (held_out, "prompts_val.jsonl", 0.1)):
        with gzip.open(source, "rt", encoding="utf-8") as lines:
            records = [json.loads(line) for line in lines]
        with (Path(folder) / name).open("w", encoding="utf-8") as out:
            out.writelines(json.dumps(record) + "\n" for record in chosen(records, share))


if __name__ == "__main__":
    main(*sys.argv[1:])
