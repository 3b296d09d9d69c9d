"""Compare the answers in results files, method by method, with those of transformers' generate on the same target.

    python -m reference.oracles.generate MODEL RESULTS...

MODEL is the target's name or folder. The first 40 prompts of each suite are decoded again, first turns only; published
suites are read from the folder in BENCHCTL_DATA. Files must agree on --weights and --max-new-tokens. Lossy methods are
left out. The counts are written to results/reference/oracles-generate.json.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

from benchctl import bundled
from benchctl.decoding.model.target import Target
from benchctl.measuring.prompts.suites import load_suite
from benchctl.records.writer import read
from benchmarks.library import Library
from reference.oracles import write_record

PROMPTS = 40


def main(model: str, *paths: str) -> int:
    files = [read(path) for path in paths]
    (most,) = {file.run.max_new_tokens for file in files}
    (weights,) = {file.run.weights for file in files}
    folder = Path(bundled.resolve(model))
    tokenizer, decode = Target.load(folder).tokenizer, Library(folder, None, halved=weights == "float16").plain()
    counts, answers = Counter[str](), Counter[tuple[str, str, str]]()
    for name in sorted({suite.name for file in files for suite in file.run.suites}):
        for prompt in load_suite(name, source="auto", limit=PROMPTS, notify=print).prompts:
            prompt_ids = tokenizer.encode_chat([{"role": "user", "content": prompt.turns[0]}])
            theirs = decode(prompt_ids, most).token_ids
            counts[f"prompts of {name}"] += 1
            for file in files:
                lossy = {method.label for method in file.run.methods if method.exactness == "lossy"}
                for row in file.rows:
                    if (row.suite, row.prompt_id, row.turn) != (name, prompt.id, 0) or row.mode != "free":
                        continue
                    if row.repeat >= 0 and row.label not in lossy:
                        assert row.prompt_tokens == len(prompt_ids), (row.suite, row.prompt_id)
                        same = tuple(row.token_ids) == theirs
                        counts[f"equal: {row.label}" if same else "unequal"] += 1
                        answers[str(file.path), name, row.label] += 1
                        if not same:
                            print(f"unequal: {name} {prompt.id} {row.label}", file=sys.stderr)
    asked = {name: counts[f"prompts of {name}"] for _, name, _ in answers}
    if any(count < asked[name] for (_, name, _), count in answers.items()):
        raise SystemExit("the files lack answers to some of these prompts")
    return write_record("generate", [file.path for file in files], counts)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
