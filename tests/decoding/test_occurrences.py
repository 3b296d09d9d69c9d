"""The index of runs of tokens counts what a scan of the texts counts."""

from __future__ import annotations

import copy
import random
from collections import Counter

import pytest

from benchctl.decoding.drafting.occurrences import END, Node, Occurrences


def scan(texts: list[list[int]], run: list[int]) -> Counter[int]:
    """What follows each place of ``run``; END where nothing does."""
    return Counter(
        text[end] if end < len(text) else END
        for text in texts
        for end in range(len(run), len(text) + 1)
        if text[end - len(run) : end] == run
    )


def random_texts(seed: int) -> list[list[int]]:
    """Up to four texts of two to five tokens, with parts that repeat."""
    draw = random.Random(seed)
    vocabulary = range(draw.randint(1, 5))
    texts = [draw.choices(vocabulary, k=draw.randint(1, 40)) for _ in range(draw.randint(1, 4))]
    return [[*text, *text[: draw.randint(0, len(text))]] for text in texts]


def index_of(texts: list[list[int]], depth: int, draw: random.Random) -> Occurrences:
    index = Occurrences(depth)
    for number, text in enumerate(texts):
        cut = draw.randint(0, len(text))
        index.append(text[:cut])
        index.append(text[cut:])
        if number < len(texts) - 1:
            index.close()
    return index


@pytest.mark.parametrize("seed", range(60))
def test_counts_of_all_runs_are_those_of_a_scan(seed: int) -> None:
    texts, draw = random_texts(seed), random.Random(seed)
    depth = draw.choice((2, 3, 8))
    for index in (built := index_of(texts, depth, draw), copy.deepcopy(built)):
        assert index.tokens == built.tokens
        open_runs: list[tuple[list[int], Node]] = [([], index._root)]
        while open_runs:
            run, node = open_runs.pop()
            children = index.children(node) if len(run) < depth else {}
            if run:
                followers = scan(texts, run)
                assert node.count == followers.total()
                assert index.tokens[node.end - len(run) + 1 : node.end + 1] == run
                if len(run) < depth:
                    del followers[END]
                    assert {token: child.count for token, child in children.items()} == followers
                    ends = [child.end for child in children.values()]
                    assert ends == sorted(ends)
            open_runs += [([*run, token], child) for token, child in children.items()]


@pytest.mark.parametrize("seed", range(60))
def test_matches_are_the_tails_that_occur_and_go_on(seed: int) -> None:
    texts, draw = random_texts(seed), random.Random(seed)
    depth = draw.choice((2, 3, 8))
    index = index_of(texts, depth, draw)
    for text in (texts[-1], random_texts(seed + 1000)[0]):
        counts = [scan(texts, text[-size:]) for size in range(1, min(depth, len(text)))]
        going_on = [found.total() for found in counts if found.total() > found[END]]
        assert [node.count for node in index.matches(text)] == going_on


@pytest.mark.parametrize("period", [1, 7, 8000])
def test_a_token_of_a_long_text_costs_no_scan(period: int) -> None:
    """8,000 tokens: of one token only, periodic, and without a repetition."""
    index = Occurrences(64)
    index.append(place % period for place in range(8000))
    visited = len(index._tails)
    assert visited == (0 if period == 8000 else 64)
    assert len(index.matches(index.tokens)) == (0 if period == 8000 else 63)


def test_runs_do_not_cross_the_end_of_a_text() -> None:
    index = Occurrences(4)
    index.append([1, 2])
    index.close()
    index.append([3, 1])
    assert [node.count for node in index.matches([3, 1])] == [2]
    assert list(index.children(index.matches([1, 1])[0])) == [2]
    index.append([3, 1])
    assert index.children(index.matches([0, 1])[0]).keys() == {2, 3}
