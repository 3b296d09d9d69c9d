"""Drafts and stop tokens: nothing is drafted, or counted as drafted, behind a token that ends the answer."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from oracles import Drafter, model_drafter, replay
from runs import NEW_TOKENS, answer, pair, prompt_of, rounds_of, run

from benchctl.decoding.draft import ROOT, Draft
from benchctl.decoding.method import Speculative

MODELS, PROMPT, WHOLE = pair("llama"), prompt_of(13), answer("llama", 0, 13)
STOP = 18  # first said in the middle of a draft
ANSWER = WHOLE[: WHOLE.index(STOP) + 1]


def ending(drafter: Drafter, *stops: int) -> Drafter:
    """Its proposals up to their first stop token."""

    def draft(text: list[int], budget: int) -> list[int]:
        proposal = drafter(text, budget)
        return proposal[: next((end for end, token in enumerate(proposal, 1) if token in stops), len(proposal))]

    return draft


def behind(draft: Draft, stops: Sequence[int]) -> list[tuple[int, ...]]:
    """The paths of rows behind a stop token."""
    return [path for path in draft.paths if set(path[:-1]) & set(stops)]


def test_a_draft_model_drafts_nothing_behind_a_stop_token() -> None:
    """It went on behind the end of the answer, and all of that counted as drafted."""
    target = MODELS.with_stops(STOP)
    got = run("two_model[draft_tokens=6,confidence=0]", target, PROMPT, NEW_TOKENS, draft=MODELS.draft)
    plain = model_drafter(MODELS.naive_draft, 6)
    expected = replay(PROMPT, ANSWER, NEW_TOKENS, ending(plain, STOP))
    assert (list(got.token_ids), got.stop_reason) == (ANSWER, "stop")
    assert rounds_of(got) == expected != replay(PROMPT, ANSWER, NEW_TOKENS, plain)


def test_a_draft_model_stops_at_a_stop_token_of_its_own() -> None:
    """A draft model may end answers with another token than its target; what it writes behind that is worthless."""
    own = WHOLE[3]
    draft = MODELS.draft.with_blocks(MODELS.draft.blocks)
    draft.tokenizer_or_none = MODELS.with_stops(own).tokenizer_or_none
    got = run("two_model[draft_tokens=6,confidence=0]", MODELS.target, PROMPT, NEW_TOKENS, draft=draft)
    plain = model_drafter(MODELS.naive_draft, 6)
    expected = replay(PROMPT, WHOLE, NEW_TOKENS, ending(plain, own))
    assert list(got.token_ids) == WHOLE
    assert rounds_of(got) == expected != replay(PROMPT, WHOLE, NEW_TOKENS, plain)


@pytest.mark.parametrize("tree", ["likeliest,confidence=0", "best_first,confidence=0", "optimal", "3x2x2x1"])
def test_a_tree_of_a_draft_model_has_nothing_behind_a_stop_token(tree: str, monkeypatch: pytest.MonkeyPatch) -> None:
    drafts: list[Draft] = []
    observe = Speculative.verify_draft

    def watched(self: Speculative, context: object, draft: Draft) -> object:
        drafts.append(draft)
        return observe(self, context, draft)  # type: ignore[arg-type]

    monkeypatch.setattr(Speculative, "verify_draft", watched)
    stops = sorted(set(WHOLE[8:]) - set(WHOLE[:4]))
    got = run(f"draft_tree[tree={tree}]", MODELS.with_stops(*stops), PROMPT, NEW_TOKENS, draft=MODELS.draft)
    assert any(set(draft.tokens) & set(stops) for draft in drafts)
    assert not [path for draft in drafts for path in behind(draft, stops)]
    assert got.token_ids == tuple(WHOLE[: len(got.token_ids)]) and got.token_ids[-1] in stops


@pytest.mark.parametrize(
    "label",
    [
        *("kangaroo[confidence=0]", "skip_layers[confidence=0]", "sparse_cache[confidence=0]", "auto_exit"),
        *("early_exit[mode=draft,threshold=0]", "m2r2[confidence=0]", "dflash[confidence=0]"),
    ],
)
def test_no_chain_goes_on_behind_a_stop_token(label: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every drafter that writes a chain token by token went on behind the end of the answer."""
    drafts: list[Draft] = []
    verify = Speculative.verify_draft

    def watched(self: Speculative, context: object, draft: Draft) -> object:
        drafts.append(draft)
        return verify(self, context, draft)  # type: ignore[arg-type]

    monkeypatch.setattr(Speculative, "verify_draft", watched)
    run(label, MODELS.target, PROMPT, NEW_TOKENS)
    said = [token for draft in drafts for token in draft.tokens[:-1] if len(draft) > 1]
    assert said, "drafts of several tokens"
    stops = {token for token in said if token not in WHOLE[:8]} or set(said)
    drafts.clear()
    run(label, MODELS.with_stops(*stops), PROMPT, NEW_TOKENS)
    assert not [path for draft in drafts for path in behind(draft, sorted(stops))]
    assert all(parent in (row - 1, ROOT) for draft in drafts for row, parent in enumerate(draft.parents))
