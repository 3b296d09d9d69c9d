"""draft_tree takes the steps that the definitions of its trees dictate; see also the matrix of methods."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from oracles import Naive, TreeDrafter, replay_tree
from plain_trees import Model, Text, dyspec, likeliest, of_shape
from runs import FIRST_FAST, NEW_TOKENS, answer, check_replayed, pair, prompt_of, rounds_of, run
from torch import Tensor

from benchctl.decoding.drafting.grow import Picks
from benchctl.decoding.drafting.trees import optimal_tree, wide_tree
from benchctl.decoding.method import Context
from benchctl.decoding.sampling import Sampling
from benchctl.methods.draft_tree import DraftTree

Tree = Callable[[Model, int], list[Text]]  # probabilities and levels in, texts out
SHAPE = optimal_tree((0.6, 0.13, 0.06, 0.03), 9, 4, 0.02, 0.01)

TREES: dict[str, Tree] = {
    "tree=likeliest,width=3,depth=3,nodes=6,confidence=0.1": lambda model, depth: likeliest(
        model, 3, min(3, depth), 6, 0.1
    ),
    "tree=likeliest,width=1,depth=5,nodes=9,confidence=0": lambda model, depth: likeliest(model, 1, min(5, depth), 9),
    "tree=best_first,depth=4,nodes=7,confidence=0.05": lambda model, depth: dyspec(model, min(4, depth), 7, 0.05),
    "tree=3x2x1": lambda model, depth: of_shape(model, wide_tree((3, 2, 1)[:depth])),
    "tree=optimal,nodes=9,depth=4,draft_cost=0.02,row_cost=0.01": lambda model, depth: of_shape(
        model, [path for path in SHAPE if len(path) <= depth]
    ),
}


def tree_drafter(naive: Naive, tree: Tree, context_tokens: int = 1 << 30) -> TreeDrafter:
    """The branches of a tree, by full recomputation of every text."""

    def draft(text: list[int], budget: int) -> list[list[int]]:
        known: dict[Text, Tensor] = {}

        def probs(more: Text) -> Tensor:
            if more not in known:
                known[more] = naive.logits(naive.last_states([*text, *more])[-1]).softmax(-1)
            return known[more]

        depth = min(budget, context_tokens + 1 - len(text))
        return [[], *map(list, tree(probs, depth) if depth > 0 else [])]

    return draft


@pytest.mark.parametrize(("family", "seed"), FIRST_FAST)
@pytest.mark.parametrize(("options", "tree"), TREES.items(), ids=TREES.keys())
def test_steps_equal_replay(options: str, tree: Tree, family: str, seed: int) -> None:
    draft = tree_drafter(pair(family, seed).naive_draft, tree)
    label = f"draft_tree[{options}]"
    check_replayed(label, family, seed, lambda prompt, text: replay_tree(prompt, text, len(text), draft))


def test_text_beyond_the_draft_model_s_context_goes_on_without_drafts() -> None:
    models, short = pair("llama"), pair("llama", 0, 32)
    tree = TREES["tree=3x2x1"]
    for prompt_tokens in (20, 32, 33):
        prompt, text = prompt_of(prompt_tokens), answer("llama", 0, prompt_tokens)
        got = run("draft_tree[tree=3x2x1]", models.target, prompt, NEW_TOKENS, draft=short.draft)
        assert list(got.token_ids) == text
        assert rounds_of(got) == replay_tree(prompt, text, len(text), tree_drafter(models.naive_draft, tree, 32))


@pytest.mark.parametrize("limit", [1, 2, 3])
@pytest.mark.parametrize("options", TREES)
def test_a_draft_leaves_room_for_the_bonus_token(options: str, limit: int) -> None:
    models = pair("llama")
    got = run(f"draft_tree[{options}]", models.target, prompt_of(5), limit, draft=models.draft)
    assert list(got.token_ids) == answer("llama", 0, 5)[:limit]
    assert all(step.drafted < limit - 1 or limit == 1 for step in got.steps)


def test_behind_equal_siblings_the_draft_model_keeps_the_accepted_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal siblings shifted the numbers of later nodes: for the 8 behind the 6 it kept the 8 behind the root.

    The target drafts for itself, so the first path, 6 8 10, is accepted whatever the chances of its tokens are.
    """
    models, feed, fed = pair("llama"), DraftTree.feed, list[tuple[list[int], Tensor]]()

    def watched(method: DraftTree, context: Context, own_tokens: Sequence[int]) -> Tensor:
        draft_logits: Tensor = feed(method, context, own_tokens)
        fed.append((list(context.tokens), draft_logits[0]))
        return draft_logits

    monkeypatch.setattr(DraftTree, "feed", watched)
    monkeypatch.setattr(Picks, "of", lambda picks, probs, count: {4: [6, 7, 7, 8], 2: [8, 9], 1: [10]}[count])
    label, sampling = "draft_tree[tree=4x2x1,replacement=true]", Sampling(temperature=1.0)
    got = run(label, models.target, prompt_of(13), NEW_TOKENS, draft=models.target, sampling=sampling)
    assert rounds_of(got) == [(3, 3)] * 9 + [(2, 2)]
    assert len(fed) == 11
    for text, draft_logits in fed:
        assert torch.allclose(draft_logits, models.naive.logits(models.naive.last_states(text)[-1]))
