"""two_model[draft_by=lookup]: the drafts and draws of two_model, in as many passes of the draft model as a replay."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from oracles import model_drafter
from runs import answer, pair, prompt_of, rounds_of, run

from benchctl.decoding.kv.stream import Stream
from benchctl.decoding.loop import DecodeRequest, decode
from benchctl.decoding.sampling import Sampling
from benchctl.methods.two_model import TwoModel

TOKENS = 40


def plain_guesses(text: Sequence[int], drafted: Sequence[int], most: int) -> list[int]:
    """What followed the first occurrence in the text of the longest run that ends the draft, of 7 tokens at most."""
    ends = [*text, *drafted]
    for size in range(min(7, len(ends) - 1), 0, -1):
        for end in range(size, len(text)):
            if list(text[end - size : end]) == ends[-size:]:
                return list(text[end : end + most])
    return []


def plain_passes(text: Sequence[int], proposal: Sequence[int], most: int) -> list[int]:
    """Rows of each pass of the draft model for the tokens that it proposes in the end, behind its first row."""
    rows, drafted = list[int](), 0
    while drafted < len(proposal):
        guesses = plain_guesses(text, proposal[:drafted], min(3, most - drafted - 1))
        rows.append(1 + len(guesses))
        right = 0
        while right < len(guesses) and drafted + right < len(proposal) and guesses[right] == proposal[drafted + right]:
            right += 1
        drafted += min(right + 1, len(proposal) - drafted)
    return rows


@pytest.mark.parametrize("prompt_tokens", [1, 13, 40])
@pytest.mark.parametrize("confidence", [0.0, 0.4])
@torch.inference_mode()
def test_drafts_are_the_draft_model_s_in_the_passes_of_a_replay(
    confidence: float, prompt_tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    models, prompt, text = pair("llama"), prompt_of(prompt_tokens), answer("llama", 0, prompt_tokens)
    rows, original = list[int](), Stream.advance

    def advance(stream: Stream, last: int | None = None) -> None:
        if stream.target is models.draft:
            rows.append(stream.rows)
        original(stream, last)

    monkeypatch.setattr(Stream, "advance", advance)
    method = TwoModel(draft_by="lookup", confidence=confidence)
    method.use_draft_model(models.draft)
    method.prepare(models.target)
    got = decode(method, models.target, DecodeRequest(prompt, len(text)))
    assert list(got.token_ids) == text
    whole, draft = [*prompt, *text], model_drafter(models.naive_draft, 6, confidence)
    expected, rounds = [prompt_tokens], list[tuple[int, int]]()
    at, read = prompt_tokens + 1, prompt_tokens  # committed tokens, and those that the draft model has read
    while at < len(whole):
        budget = len(whole) - at - 1
        proposal = draft(whole[:at], budget)
        passes = plain_passes(whole[:at], proposal, min(6, budget))
        expected += [at - read + passes[0] - 1, *passes[1:]] if passes else []
        accepted = next((n for n, token in enumerate(proposal) if token != whole[at + n]), len(proposal))
        read = at + min(accepted, len(proposal) - 1) if proposal else read
        rounds.append((len(proposal), accepted))
        at += accepted + 1
    assert rounds_of(got) == rounds
    assert rows == expected
    drafted = sum(drafted for drafted, _ in rounds)
    assert len(rows) - 1 < drafted or prompt_tokens != 13, "passes are saved"


@pytest.mark.parametrize("options", ["", ",accept=block", ",stop=bandit", ",stop=product,confidence=0.2"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@torch.inference_mode()
def test_steps_and_draws_are_those_of_two_model(temperature: float, options: str) -> None:
    """A guess that was not drawn is dropped, so the draft model draws each token once, and in order."""
    models, sampling = pair("llama"), Sampling(temperature=temperature, seed=3)
    found = [
        run(
            f"two_model[draft_by={by}{options}]",
            models.target,
            prompt_of(13),
            TOKENS,
            draft=models.draft,
            sampling=sampling,
        )
        for by in ("none", "lookup")
    ]
    assert found[0].token_ids == found[1].token_ids and found[0].steps == found[1].steps
