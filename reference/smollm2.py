"""The training prompts of the modules for SmolLM2, and its answers to them.

python -m reference.smollm2 prompts instruct_train.jsonl.gz instruct_val.jsonl.gz PROMPTS
python -m reference.smollm2 answers PROMPTS CACHE

The first chooses records by source, so that no source prevails. The second puts the answers kept here, which took 40
minutes, into a cache of `benchctl train --cache`; the file has the hash of each prompt and the ids of its answer.
"""

from __future__ import annotations

import gzip
import json
import random
import sys
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from pathlib import Path

import numpy as np

from benchctl.training.data.reading import read_corpus
from benchctl.training.modules.frozen import chat_of, find_target

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


ANSWERS = Path(__file__).with_name("smollm2-answers.jsonl.gz")


def prompts(train: str, held_out: str, folder: str) -> None:
    Path(folder).mkdir(parents=True, exist_ok=True)
    for source, name, share in ((train, "prompts.jsonl", 1.0), (held_out, "prompts_val.jsonl", 0.1)):
        with gzip.open(source, "rt", encoding="utf-8") as lines:
            records = [json.loads(line) for line in lines]
        with (Path(folder) / name).open("w", encoding="utf-8") as out:
            out.writelines(json.dumps(record) + "\n" for record in chosen(records, share))


def answers(folder: str, cache: str) -> None:
    """The file is named by the hash of target, tokenizer and settings: those of `--self-distil` with 160 tokens."""
    corpus, chat = read_corpus((folder,)), chat_of(find_target("smollm2"))
    records = [*corpus.train, *(record for part in corpus.held_out.values() for record in part)]
    heads = {key(head): head for head in chat.heads(list(dict.fromkeys(record.prompt for record in records)))}
    with gzip.open(ANSWERS, "rt", encoding="utf-8") as lines:
        name, kept = json.loads(next(lines)), [json.loads(line) for line in lines]
    Path(cache).mkdir(parents=True, exist_ok=True)
    with (Path(cache) / name).open("w", encoding="utf-8") as out:
        for sha, answer in kept:
            if sha in heads:
                out.write(json.dumps({"prompt": list(map(int, heads[sha])), "answer": answer}) + "\n")


def keep(file: str) -> None:
    """Write the answers of a cache here."""
    pairs = [json.loads(line) for line in Path(file).read_text(encoding="utf-8").splitlines()]
    with gzip.open(ANSWERS, "wt", encoding="utf-8") as out:
        out.write(json.dumps(Path(file).name) + "\n")
        out.writelines(
            json.dumps([key(pair["prompt"]), pair["answer"]], separators=(",", ":")) + "\n" for pair in pairs
        )


def key(prompt: Sequence[int]) -> str:
    return blake2b(np.asarray(prompt, dtype=np.int32).tobytes(), digest_size=8).hexdigest()


if __name__ == "__main__":
    {"prompts": prompts, "answers": answers, "keep": keep}[sys.argv[1]](*sys.argv[2:])
