"""Compare the drafts of `suffix` with those of its authors' code, on random texts.

    python -m reference.oracles.suffix ArcticInference/csrc/suffix_decoding SAM-Decoding/samd/sam/dyn_sam.py

The first path is a folder with suffix_tree.cc (ArcticInference 9d46438), which is compiled with g++. The second is a
file with the class DynSAM (SAM-Decoding 18c41f0). The counts are written to results/reference/oracles-suffix.json.

Drafts must be equal where no counts tie. Where counts tie, the order of siblings decides, which in the authors' code
depends on the order of insertions; there only the scores of trees must be equal.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from random import Random
from typing import Any

from benchctl.decoding.draft import Draft
from benchctl.decoding.drafting.occurrences import Node, Occurrences
from benchctl.methods.suffix import Suffix
from reference.oracles import write_record

STORES = 3000
_ROUNDING = 1e-6  # of their scores, which are float32
# Reads, line by line: depth, texts, and questions. Writes for each question score, length of the match and rows.
DRIVER = """
#include <iostream>
#include "suffix_tree.h"

static std::vector<int32_t> read_list() {
    size_t size;
    std::cin >> size;
    std::vector<int32_t> list(size);
    for (auto& value : list) std::cin >> value;
    return list;
}

int main() {
    int depth, texts, questions;
    while (std::cin >> depth >> texts >> questions) {
        SuffixTree tree(depth);
        for (int text = 0; text < texts; text++) {
            auto tokens = read_list();
            tree.extend(text, tokens);
        }
        for (int question = 0; question < questions; question++) {
            int most, as_tree;
            float factor, offset, least;
            std::cin >> most >> factor >> offset >> least >> as_tree;
            auto context = read_list();
            Draft draft = tree.speculate(context, most, factor, offset, least, as_tree);
            std::cout << draft.score << ' ' << draft.match_len << ' ' << draft.token_ids.size();
            for (auto token : draft.token_ids) std::cout << ' ' << token;
            for (auto parent : draft.parents) std::cout << ' ' << parent;
            std::cout << '\\n';
        }
    }
}
"""


@dataclass(frozen=True)
class Case:
    """One store and one question: the next tokens after ``text``."""

    texts: list[list[int]]
    text: list[int]
    method: Suffix


@dataclass(frozen=True)
class Answer:
    """Paths of the drafted rows from the root, sorted."""

    score: float
    paths: tuple[tuple[int, ...], ...]


def random_case(seed: int) -> Case:
    """Half of the questions are about the only text of the store, the others about another text."""
    draw = Random(seed)
    vocabulary, weights = range(1, draw.randint(3, 12)), [draw.random() ** 2 for _ in range(12)]
    texts: list[list[int]] = []
    for _ in range(1 if seed % 2 else draw.randint(2, 6)):
        text = draw.choices(vocabulary, weights[: len(vocabulary)], k=draw.randint(10, 120))
        for _ in range(draw.randint(0, 4)):  # parts of it again, as in real texts
            begin = draw.randrange(len(text))
            text += text[begin : begin + draw.randint(2, 25)]
        texts.append(text)
    text = texts[0] if seed % 2 else draw.choices(texts)[0][: draw.randint(2, 60)]
    method = Suffix(
        draft_tokens=draw.randint(1, 30),
        depth=draw.choice((4, 16, 24, 64)),
        factor=draw.choice((1.0, 1.5, 2.0, 4.0)),
        offset=draw.choice((0.0, 0.0, 1.0, -1.0)),
        min_prob=draw.choice((0.0, 0.0999, 0.3001)),  # no ratio of small counts, which rounding would move
        tree=draw.random() < 0.5,
    )
    return Case(texts, text, method)


def ours(case: Case) -> tuple[Answer, bool]:
    """Our draft, and whether equal counts or equal scores took part in the choice."""
    store, method = Occurrences(case.method.depth), case.method
    for number, text in enumerate(case.texts):
        store.append(text)
        if number < len(case.texts) - 1:
            store.close()
    best, draft = method._best(store, case.text, 1000)
    tied, scores = False, list[float]()
    for size, match in enumerate(store.matches(case.text), 1):
        tokens = max(min(method.draft_tokens, int(size * method.factor + method.offset + 1e-6)), 0)
        depth = min(tokens, method.depth - size)
        score, _ = (method._tree if method.tree else method._chain)(store, match, tokens, depth)
        scores.append(score)
        if not method.tree:  # which of two equal counts is followed changes the score
            tied |= _chain_ties(store, match, depth)
        elif score == best:
            tied |= _tree_ties(store, match, tokens, depth, method)
    tied |= sum(abs(score - best) < _ROUNDING for score in scores) > 1
    return Answer(best, tuple(sorted(draft.paths))), tied


def _chain_ties(store: Occurrences, match: Node, depth: int) -> bool:
    node = match
    for _ in range(depth):
        counts = sorted((child.count for child in store.children(node).values()), reverse=True)
        if not counts:
            return False
        if counts[1:2] == counts[:1]:
            return True
        node = max(store.children(node).values(), key=lambda child: child.count)
    return False


def _tree_ties(store: Occurrences, match: Node, tokens: int, depth: int, method: Suffix) -> bool:
    """Whether the last row that is drafted is as frequent as the first that is not."""
    more = [method._tree(store, match, size, depth) for size in (tokens, tokens + 1, tokens - 1)]
    totals = [round(score * match.count) for score, _ in more]
    return tokens > 0 and totals[1] - totals[0] == totals[0] - totals[2]


def build_driver(source: Path, folder: Path) -> Path:
    (folder / "driver.cc").write_text(DRIVER, encoding="utf-8")
    program = folder / "driver"
    files = [str(folder / "driver.cc"), str(source / "suffix_tree.cc")]
    subprocess.run(["g++", "-std=c++20", "-O1", f"-I{source}", *files, "-o", str(program)], check=True)
    return program


def theirs(program: Path, cases: Sequence[Case]) -> list[Answer]:
    """The drafts of ArcticInference's suffix tree."""
    asked: list[str] = []
    for case in cases:
        method, context = case.method, case.text[-case.method.depth :]
        asked.append(f"{method.depth} {len(case.texts)} 1")
        asked += [f"{len(text)} {' '.join(map(str, text))}" for text in case.texts]
        asked.append(f"{method.draft_tokens} {method.factor} {method.offset} {method.min_prob} {int(method.tree)}")
        asked.append(f"{len(context)} {' '.join(map(str, context))}")
    printed = subprocess.run([program], input="\n".join(asked), capture_output=True, text=True, check=True).stdout
    answers: list[Answer] = []
    for line in printed.splitlines():
        score, _, rows, *ids = line.split()
        numbers = tuple(map(int, ids))
        drafted = Draft(numbers[: int(rows)], numbers[int(rows) :])
        answers.append(Answer(float(score), tuple(sorted(drafted.paths))))
    return answers


def compare_scores(program: Path) -> Counter[str]:
    """Counts of stores; raises AssertionError for a draft that differs where it must not."""
    cases = [random_case(seed) for seed in range(STORES)]
    counts = Counter[str]()
    for seed, (case, their) in enumerate(zip(cases, theirs(program, cases), strict=True)):
        our, tied = ours(case)
        kind = "tree" if case.method.tree else "chain"
        equal = our.paths == their.paths and abs(our.score - their.score) < 1e-4
        assert equal or tied, (seed, our, their)
        assert not case.method.tree or abs(our.score - their.score) < 1e-4, (seed, our, their)
        counts[f"{kind}s"] += 1
        counts[f"{kind}s_not_empty"] += bool(our.paths)
        counts[f"{kind}s_with_ties"] += tied
        counts[f"{kind}s_with_ties_equal"] += tied and equal
        counts[f"{kind}s_without_ties_equal"] += not tied and equal
    return counts


def compare_copies(file: Path) -> Counter[str]:
    """The same for SAM-Decoding's automaton of one text and ``rank=longest``; its padding, 0, is left out."""
    spec = spec_from_file_location("dyn_sam", file)
    assert spec is not None and spec.loader is not None
    module: Any = module_from_spec(spec)
    sys.modules["dyn_sam"] = module
    spec.loader.exec_module(module)
    counts = Counter[str]()
    for seed in range(1, 2 * STORES, 2):
        case = random_case(seed)
        draft_tokens = case.method.draft_tokens
        automaton = module.DynSAM(draft_tokens + 1)
        automaton.add_tokens(case.text[:-1])
        index, length = automaton.lookup(case.text[-1])
        their = [token for token in automaton.gen_draft(index, case.text[-1])[1:] if token] if length else []
        store = Occurrences(len(case.text) + 1)
        store.append(case.text)
        method = Suffix(draft_tokens=draft_tokens, depth=len(case.text) + 1, rank="longest")
        score, draft = method._best(store, case.text, draft_tokens)
        our = list(draft.tokens)
        # Their text lacks its last token, so a copy that ends with it is one token shorter.
        equal = our in (their, [*their, case.text[-1]])
        assert equal and score == length, (seed, our, their)
        counts["copies"] += 1
        counts["copies_equal"] += our == their
        counts["copies_not_empty"] += bool(their)
    return counts


def main(arctic: str, sam: str) -> int:
    with tempfile.TemporaryDirectory() as folder:
        counts = compare_scores(build_driver(Path(arctic), Path(folder)))
    counts += compare_copies(Path(sam))
    files = [*(Path(arctic) / name for name in ("suffix_tree.cc", "suffix_tree.h", "int32_map.h")), Path(sam)]
    commits = {"snowflakedb/ArcticInference": "9d46438", "hyx1999/SAM-Decoding": "18c41f0"}
    return write_record("suffix", files, counts, commits)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
