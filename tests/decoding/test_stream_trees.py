"""Trees in a stream: each row sees its own branch and nothing else, before, while and after a path is kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
import torch
from streams import TEXT, VARIANTS, after, assert_cached_as_if_fresh, assert_same, commit, logits_of, target_of
from tiny import VOCABULARY, tiny_target

from benchctl.decoding.kv.stream import Stream
from benchctl.decoding.model.target import Target

# Root 0; 1 and 2 continue it, 3 and 4 continue 1, 5 continues 2, 6 continues 4, 7 continues the root.
PARENTS = (-1, 0, 0, 1, 1, 2, 4, 0)
TOKENS = (50, 11, 12, 13, 14, 15, 16, 11)


@pytest.fixture(autouse=True)
def no_gradients() -> Iterator[None]:
    with torch.inference_mode():
        yield


@pytest.fixture(params=VARIANTS)
def target(request: pytest.FixtureRequest) -> Target:
    return target_of(request.param)


def path_to(row: int, parents: Sequence[int]) -> list[int]:
    return [] if row < 0 else [*path_to(parents[row], parents), row]


def test_every_row_of_a_tree_sees_exactly_its_own_branch(target: Target) -> None:
    stream = after(target, TEXT[:9])
    stream.push(TOKENS, PARENTS)
    stream.advance()
    for row in range(len(TOKENS)):
        branch = [TOKENS[other] for other in path_to(row, PARENTS)]
        alone = logits_of(target, TEXT[:9] + branch)[-1]
        assert_same(stream.logits()[row], alone)


def test_a_wide_tree_takes_the_other_attention_and_gives_the_same(target: Target) -> None:
    generator = torch.Generator().manual_seed(5)
    parents = [-1, *(int(torch.randint(0, row, (), generator=generator)) for row in range(1, 30))]
    tokens = torch.randint(0, VOCABULARY, (30,), generator=generator).tolist()
    stream = after(target, TEXT[:7])
    stream.push(tokens, parents)
    stream.advance()
    for row in (0, 3, 11, 17, 25, 29):
        branch = [tokens[other] for other in path_to(row, parents)]
        assert_same(stream.logits()[row], logits_of(target, TEXT[:7] + branch)[-1])


@pytest.mark.parametrize("before", [0, 7])
def test_branches_deeper_than_the_window_lose_sight_of_their_beginning(target: Target, before: int) -> None:
    """Two interleaved branches: the window counts positions in the text, not slots in the cache."""
    tokens = TEXT[:18]
    stream = after(target, TEXT[:before]) if before else Stream(target, 18)
    stream.push(tokens, [-1, -1, *range(16)])
    stream.advance()
    for row in (12, 15, 16, 17):
        alone = logits_of(target, TEXT[:before] + tokens[row % 2 : row + 1 : 2])[-1]
        assert_same(stream.logits()[row], alone)


def test_a_tree_may_start_the_text(target: Target) -> None:
    stream = Stream(target, 8)
    stream.push(TOKENS, PARENTS)
    stream.advance()
    for row in range(len(TOKENS)):
        branch = [TOKENS[other] for other in path_to(row, PARENTS)]
        assert_same(stream.logits()[row], logits_of(target, branch)[-1])


def test_a_path_of_finished_and_unfinished_rows_is_kept(target: Target) -> None:
    """Rows 0 to 3 ran all layers, 4 to 7 only two; the path 0, 1, 4, 6 has both."""
    stream = after(target, TEXT[:8])
    stream.push(TOKENS[:4], PARENTS[:4])
    stream.advance()
    stream.push(TOKENS[4:], PARENTS[4:])
    stream.advance(2)
    stream.keep(path_to(6, PARENTS))
    assert (stream.base, stream.text[stream.base :]) == (10, [TOKENS[4], TOKENS[6]])
    stream.push([77])
    stream.advance()
    text = [*TEXT[:8], *(TOKENS[row] for row in path_to(6, PARENTS)), 77]
    assert_same(stream.logits(), logits_of(target, text)[10:])
    stream.keep(range(3))
    assert_cached_as_if_fresh(stream, text)


def test_a_tree_run_part_of_the_way_and_extended_ends_as_in_one_pass(target: Target) -> None:
    stream = after(target, TEXT[:9])
    stream.push(TOKENS[:4], PARENTS[:4])
    stream.advance(1)
    stream.push(TOKENS[4:6], PARENTS[4:6])
    stream.advance(3)
    stream.push(TOKENS[6:], PARENTS[6:])
    stream.advance()
    whole = after(target, TEXT[:9])
    whole.push(TOKENS, PARENTS)
    whole.advance()
    assert_same(stream.logits(), whole.logits())


@pytest.mark.parametrize("row", range(len(TOKENS)))
def test_after_keeping_a_path_the_cache_is_as_if_the_others_were_never_read(target: Target, row: int) -> None:
    stream = after(target, TEXT[:9])
    stream.push(TOKENS, PARENTS)
    stream.advance()
    path = path_to(row, PARENTS)
    stream.keep(path)
    text = TEXT[:9] + [TOKENS[other] for other in path]
    assert (stream.rows, stream.length) == (0, len(text))
    assert_cached_as_if_fresh(stream, text)
    assert_same(commit(stream, [77]), logits_of(target, [*text, 77])[-1:])


def test_deferred_rows_and_a_tree_behind_them_run_together(target: Target) -> None:
    stream = after(target, TEXT[:8])
    stream.push(TEXT[8:10])
    stream.advance(2)
    stream.keep([0, 1])
    stream.push(TOKENS, [1, *(parent + 2 for parent in PARENTS[1:])])
    stream.advance()
    for row in range(len(TOKENS)):
        branch = [TOKENS[other] for other in path_to(row, PARENTS)]
        alone = logits_of(target, TEXT[:10] + branch)[-1]
        assert_same(stream.logits(2)[row], alone)
    stream.keep([0, 1, *(2 + row for row in path_to(6, PARENTS))])
    assert_cached_as_if_fresh(stream, TEXT[:10] + [TOKENS[row] for row in path_to(6, PARENTS)])


def test_a_path_kept_part_of_the_way_up_runs_the_rest_later(target: Target) -> None:
    """Layers below have run the tree and keep its path; layers above see only the path."""
    stream = after(target, TEXT[:8])
    stream.push(TOKENS, PARENTS)
    stream.advance(2)
    path = path_to(6, PARENTS)
    stream.keep(path)
    assert stream.text[stream.base :] == [TOKENS[row] for row in path]
    stream.push([77])
    stream.advance()
    text = [*TEXT[:8], *(TOKENS[row] for row in path), 77]
    assert_same(stream.logits(), logits_of(target, text)[8:])
    stream.keep(range(stream.rows))
    assert_cached_as_if_fresh(stream, text)


def test_keeping_nothing_forgets_every_open_row() -> None:
    stream = after(target_of("llama"), TEXT[:8])
    stream.push(TOKENS, PARENTS)
    stream.advance(2)
    stream.keep([])
    assert (stream.rows, stream.length) == (0, 8)
    assert_cached_as_if_fresh(stream, TEXT[:8])


@pytest.mark.parametrize("rows", [2, 8, 9, 16, 17])
def test_float32_kernels_run_a_tree_as_its_branches_alone(rows: int) -> None:
    """Transposed weights up to 8 rows, packed ones above; one attention up to 16, the other above."""
    target = tiny_target("llama", layers=4, seed=1, dtype=torch.float32)
    generator = torch.Generator().manual_seed(rows)
    parents = [-1, *(int(torch.randint(0, row, (), generator=generator)) for row in range(1, rows))]
    tokens = torch.randint(0, VOCABULARY, (rows,), generator=generator).tolist()
    stream = after(target, TEXT[:9])
    stream.push(tokens, parents)
    stream.advance()
    for row in range(rows):
        alone = after(target, TEXT[:9])
        for other in path_to(row, parents):
            last = commit(alone, [tokens[other]])[-1]
        torch.testing.assert_close(stream.logits()[row], last, rtol=0.0, atol=1e-4)
