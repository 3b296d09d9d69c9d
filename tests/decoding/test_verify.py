"""Drafts and verdicts on literal drafts. Distributions of sampled verdicts: test_sampled_distribution.py."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from benchctl.decoding import verify
from benchctl.decoding.draft import ROOT, Draft
from benchctl.decoding.verify import Verdict, verify_greedy, verify_rejection, verify_typical

TWICE = Draft((5, 7, 9, 7), (ROOT, 0, ROOT, 2))
DUPLICATES = Draft((5, 5, 8, 9), (ROOT, ROOT, 0, 1))


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def one_hot(tokens: list[int], vocabulary: int = 10) -> Tensor:
    return torch.eye(vocabulary, dtype=torch.float64)[tokens]


@pytest.mark.parametrize(
    ("draft", "argmaxes", "verdict"),
    [
        pytest.param(Draft.chain([5, 7]), [5, 8, 3], Verdict((0,), 8), id="up to the first difference"),
        pytest.param(Draft.chain([5, 7]), [5, 7, 3], Verdict((0, 1), 3), id="the whole chain"),
        pytest.param(Draft.chain([5, 7]), [4, 7, 3], Verdict((), 4), id="nothing"),
        pytest.param(Draft.chain([0, 0]), [0, 0, 0], Verdict((0, 1), 0), id="token zero, really drafted"),
        pytest.param(Draft((5, 7, 9), (ROOT, 0, ROOT)), [9, 1, 2, 3], Verdict((2,), 3), id="the second branch"),
        pytest.param(Draft((5, 7, 9), (ROOT, 0, ROOT)), [5, 7, 2, 3], Verdict((0, 1), 2), id="the first branch"),
        pytest.param(Draft((5, 7, 9), (ROOT, 0, ROOT)), [4, 7, 2, 3], Verdict((), 4), id="no branch"),
        # Both branches continue with 7; the target wants 7 after 9 only.
        pytest.param(TWICE, [9, 1, 1, 7, 4], Verdict((2, 3), 4), id="the same token where it is wanted"),
        pytest.param(TWICE, [5, 1, 1, 7, 4], Verdict((0,), 1), id="the same token where it is not"),
        pytest.param(DUPLICATES, [5, 8, 9, 3, 4], Verdict((0, 2), 3), id="the first of duplicate siblings"),
        pytest.param(DUPLICATES, [5, 9, 9, 3, 4], Verdict((0,), 9), id="never the second of them"),
    ],
)
def test_greedy_follows_the_target_and_adds_the_next(draft: Draft, argmaxes: list[int], verdict: Verdict) -> None:
    assert verify_greedy(draft, argmaxes) == verdict


def test_an_empty_draft_is_plain_decoding() -> None:
    assert verify_greedy(Draft(), [6]) == Verdict((), 6)
    assert verify_rejection(Draft(), one_hot([6]), generator()) == Verdict((), 6)
    assert verify_typical(Draft(), one_hot([6]), generator()) == Verdict((), 6)


def test_branches_of_unequal_depth_are_never_padded_with_token_zero() -> None:
    """A published implementation pads short branches with id 0 and accepts the padding when the target says 0."""
    draft = Draft((5, 7, 7, 9), (ROOT, 0, 1, ROOT))
    assert verify_greedy(draft, [9, 7, 7, 7, 0]) == Verdict((3,), 0)
    assert verify_greedy(draft, [0, 7, 7, 7, 0]) == Verdict((), 0)
    assert verify_rejection(draft, one_hot([9, 7, 7, 7, 0]), generator()) == Verdict((3,), 0)
    assert verify_typical(draft, one_hot([9, 7, 7, 7, 0]), generator()) == Verdict((3,), 0)


def test_nothing_behind_a_stop_token_counts_as_depth() -> None:
    """Rows behind a stop token were drafted tokens: the last steps of answers had too low an acceptance rate."""
    chain = Draft.chain((5, 2, 7, 9))
    assert [chain.depth_to(frozenset(stops)) for stops in ((), (2,), (5,), (9,), (8,))] == [4, 2, 1, 4, 4]
    tree = Draft((2, 7, 7, 9, 8), (ROOT, 0, ROOT, 2, 1))  # 2 7 8, and 7 9
    assert [tree.depth_to(frozenset(stops)) for stops in ((), (2,), (7,), (2, 7))] == [3, 2, 2, 1]


def test_scratch_rows_are_never_accepted() -> None:
    draft = Draft((5, 7, 5), (ROOT, 0, ROOT), scratch=(False, True, True))
    assert verify_greedy(draft, [5, 7, 1, 2]) == Verdict((0,), 7)
    assert verify_rejection(draft, one_hot([5, 7, 1, 2]), generator()) == Verdict((0,), 7)
    assert verify_typical(draft, one_hot([5, 7, 1, 2]), generator()) == Verdict((0,), 7)
    only_scratch = Draft((5,), (ROOT,), scratch=(True,))
    assert verify_greedy(only_scratch, [5, 2]) == Verdict((), 5)
    assert verify_rejection(only_scratch, one_hot([5, 2]), generator()) == Verdict((), 5)


def test_rejection_on_point_masses_is_greedy() -> None:
    """Deterministic drafts, random trees with many equal tokens: both rules must walk the same way."""
    source = generator(1)
    accepted = 0
    for seed in range(300):
        parents = [ROOT, *(int(torch.randint(-1, row, (), generator=source)) for row in range(1, 9))]
        tokens = torch.randint(0, 3, (19,), generator=source).tolist()
        draft, argmaxes = Draft(tuple(tokens[:9]), tuple(parents)), tokens[9:]
        verdict = verify_rejection(draft, one_hot(argmaxes), generator(seed))
        assert verdict == verify_greedy(draft, argmaxes)
        accepted += len(verdict.path)
    assert accepted > 100


def test_rejection_never_rejects_what_the_target_likes_at_least_as_much() -> None:
    target_probs = torch.tensor([[0.5, 0.5], [0.2, 0.8]], dtype=torch.float64)
    draft = Draft.chain([0], torch.tensor([[0.5, 0.5]], dtype=torch.float64).unbind())
    assert all(verify_rejection(draft, target_probs, generator(seed)).path == (0,) for seed in range(200))


def test_even_the_luckiest_draw_does_not_accept_the_impossible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "_uniform", lambda generator: 0.0)
    target_probs = torch.tensor([[0.0, 1.0], [1.0, 0.0]], dtype=torch.float64)
    assert verify_rejection(Draft.chain([0]), target_probs, generator()) == Verdict((), 1)
    draft = Draft.chain([0], torch.tensor([[1.0, 0.0]], dtype=torch.float64).unbind())
    assert verify_rejection(draft, target_probs, generator()) == Verdict((), 1)


def test_rejection_leaves_its_inputs_alone() -> None:
    target_probs = torch.full((4, 3), 1 / 3, dtype=torch.float64)
    draft_probs = torch.tensor([[0.8, 0.1, 0.1]] * 3, dtype=torch.float64)
    before = target_probs.clone(), draft_probs.clone()
    for seed in range(20):
        draft = Draft((0, 1, 2), (ROOT, ROOT, ROOT), probs=draft_probs.unbind(), replacement=False)
        verify_rejection(draft, target_probs, generator(seed))
    assert torch.equal(target_probs, before[0])
    assert torch.equal(draft_probs, before[1])


def test_a_verdict_depends_on_its_generator_alone() -> None:
    target_probs = torch.full((3, 4), 0.25, dtype=torch.float64)
    draft = Draft.chain(
        [1, 2], torch.tensor([[0.1, 0.7, 0.1, 0.1], [0.1, 0.1, 0.7, 0.1]], dtype=torch.float64).unbind()
    )
    first = [verify_rejection(draft, target_probs, generator(seed)) for seed in range(50)]
    torch.rand(17)
    assert first == [verify_rejection(draft, target_probs, generator(seed)) for seed in range(50)]
    assert len({verdict.path for verdict in first}) == 3


SURE, COIN, UNIFORM = [0.8, 0.12, 0.08], [0.5, 0.5], [0.05] * 20


@pytest.mark.parametrize(
    ("probs", "token", "options", "accepted"),
    [
        # At H(p) = 0.61 the bar delta exp(-H) is 0.16, so epsilon 0.09 holds: 0.12 passes, 0.08 does not.
        (SURE, 1, {}, True),
        (SURE, 2, {}, False),
        # Uniform over 20 tokens: exp(-H) is 0.05, the bar 0.3 * 0.05 = 0.015, and 0.05 passes.
        (UNIFORM, 3, {}, True),
        (UNIFORM, 3, {"delta": 1.1}, False),
        (UNIFORM, 3, {"delta": 1.1, "epsilon": 0.04}, True),
        # H is ln 2, the bar min(epsilon, delta / 2), and the comparison is strict.
        (COIN, 0, {"epsilon": 1.0, "delta": 0.99}, True),
        (COIN, 0, {"epsilon": 1.0, "delta": 1.01}, False),
    ],
)
def test_typical_acceptance_asks_for_epsilon_or_less_where_the_target_is_unsure(
    probs: list[float], token: int, options: dict[str, float], accepted: bool
) -> None:
    rows = torch.stack((torch.tensor(probs, dtype=torch.float64), one_hot([0], len(probs))[0]))
    verdict = verify_typical(Draft.chain([token]), rows, generator(), **options)
    assert verdict.path == ((0,) if accepted else ())
    assert not accepted or verdict.next_token == 0


@pytest.mark.parametrize(
    ("rows", "tokens", "parents", "verdict"),
    [
        # The longest branch; of equal ones the likeliest: 0.6 * 0.5 or 0.4 * 0.5.
        ([[0.4, 0.6], [0.5, 0.5], [0.5, 0.5], [0, 1], [1, 0]], (0, 1, 1, 0), (ROOT, ROOT, 1, ROOT), Verdict((1, 2), 1)),
        ([[0.4, 0.6], [0.5, 0.5], [0.5, 0.5], [0, 1], [1, 0]], (0, 1, 1, 0), (ROOT, ROOT, 0, 1), Verdict((1, 3), 0)),
        ([[0.4, 0.6], [0.5, 0.5], [0.5, 0.5], [0, 1], [1, 0]], (1, 0, 1, 0), (ROOT, ROOT, 0, 1), Verdict((0, 2), 1)),
        # Of the whole branch: tokens 0 0 have 0.4 * 0.9 = 0.36, tokens 1 0 have 0.6 * 0.5 = 0.3.
        ([[0.4, 0.6], [0.5, 0.5], [0.9, 0.1], [1, 0], [0, 1]], (1, 0, 0, 0), (ROOT, ROOT, 0, 1), Verdict((1, 3), 1)),
    ],
)
def test_typical_acceptance_keeps_the_longest_branch_and_the_likeliest_of_equals(
    rows: list[list[float]], tokens: tuple[int, ...], parents: tuple[int, ...], verdict: Verdict
) -> None:
    target_probs = torch.tensor(rows, dtype=torch.float64)
    assert verify_typical(Draft(tokens, parents), target_probs, generator()) == verdict


@pytest.mark.parametrize("rule", [verify_rejection, verify_typical])
def test_only_rows_that_the_walk_comes_to_are_asked_for(rule: Callable[..., Verdict]) -> None:
    """With top-p each of them is a sort of the vocabulary."""
    asked: set[int] = set()

    class Watched:
        def __getitem__(self, row: int, /) -> Tensor:
            asked.add(row)
            return one_hot([9, 1, 1, 8, 3])[row]

    assert rule(Draft((5, 7, 9, 8), (ROOT, 0, ROOT, 2)), Watched(), generator()) == Verdict((2, 3), 3)
    assert asked == {0, 3, 4}


def test_a_tree_knows_its_depths_and_children() -> None:
    """The example of the docstring: "5 7" and, besides, "9"."""
    draft = Draft((5, 7, 9), (ROOT, 0, ROOT))
    assert len(draft) == 3
    assert draft.depths == (1, 2, 1)
    assert draft.depth == 2
    assert draft.children(ROOT) == [0, 2]
    assert draft.children(0) == [1]
    assert draft.children(1) == []


def test_scratch_rows_are_nobody_s_children_and_do_not_count_as_depth() -> None:
    draft = Draft((5, 6, 7), (ROOT, 0, 1), scratch=(False, True, True))
    assert draft.depths == (1, 2, 3)
    assert draft.depth == 1
    assert draft.children(0) == draft.children(1) == []


@pytest.mark.parametrize("parents", [(0,), (ROOT, 1), (ROOT, 2, ROOT), (-2,)])
def test_a_parent_that_does_not_precede_its_child_is_refused(parents: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"row \d names parent"):
        Draft(tuple(range(len(parents))), parents)


def test_a_row_that_could_be_accepted_below_scratch_is_refused() -> None:
    with pytest.raises(ValueError, match="row 1 .*parent 0"):
        Draft((5, 6), (ROOT, 0), scratch=(True, False))


def test_lists_of_different_length_are_refused() -> None:
    with pytest.raises(ValueError, match="2 tokens .* 1 parents"):
        Draft((5, 6), (ROOT,))
    with pytest.raises(ValueError, match="2 tokens .* 1 scratch"):
        Draft((5, 6), (ROOT, 0), scratch=(True,))
