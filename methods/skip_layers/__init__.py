"""Draft with the target itself, of which some sublayers are skipped; the whole target verifies.

Draft & Verify: Zhang et al. 2023, arXiv 2309.08168 (a fixed set, found offline; stop=adaptive). SWIFT: Xia et al. 2024,
arXiv 2410.06916 (skip=search). CLaSp: Chen et al. 2025, arXiv 2505.24196 (skip=nearest). Drafted rows see the target's
own keys and values of the text, and are forgotten before verification. Ours: drafts are chains, without the siblings of
SWIFT. mode=answer is Unified Layer Skipping, Liu et al. 2024, arXiv 2404.06954, where nothing is verified.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from benchctl.decoding.draft import Draft
from benchctl.decoding.drafting.stops import Stop, StopRule
from benchctl.decoding.kv.stream import Stream
from benchctl.decoding.method import (
    Chain,
    Context,
    Exactness,
    Outcome,
    Speculative,
    check_options,
    one_token,
    refuse_options,
)
from benchctl.decoding.model.layers import Parts
from benchctl.decoding.model.target import TargetInfo

from .choosing import CHOICES, NOTHING, Search, all_but, even, nearest, read_list


@dataclass
class SkipLayers(Speculative):
    """Draft a chain with some sublayers of the target skipped, and verify it with all of them.

    skip          even (evenly spaced layers), search (sublayers: the best of random sets, as in SWIFT), nearest (layers
                  chosen at each step by the states of the last row, as in CLaSp), or a list such as 3+5a+8m: layer 3,
                  the attention of layer 5 and the MLP of layer 8
    share         share of the layers between the first and the last that is skipped, or of their sublayers
    window        for skip=search: tokens of the answer that a set is scored on
    mode          draft (exact) or answer (all tokens skip these layers: lossy)
    draft_tokens  tokens drafted per verification
    confidence    the draft ends where the drafter is less confident; 0 never stops
    stop          measure of that confidence: confidence, product or entropy; adaptive: confidence, its threshold
                  follows the acceptance rate, as in Draft & Verify; or bandit: learn the best length on the way
    token_cost    for stop=bandit, time of drafting and verifying a token in target passes
    """

    skip: str = "even"
    share: float = 0.5
    window: int = 32
    mode: Literal["draft", "answer"] = "draft"
    draft_tokens: int = 4
    confidence: float = 0.6
    stop: Literal[StopRule, "adaptive"] = "confidence"
    token_cost: float = 0.7
    can_combine = False
    _parts: tuple[Parts, ...] = field(default=(), init=False, repr=False, compare=False)
    _search: Search | None = field(default=None, init=False, repr=False, compare=False)
    _row: int = field(default=-1, init=False, repr=False, compare=False)  # of the latest pass, the text's last
    _stop: Stop = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_options(self, 0, "share", "confidence", most=1)
        check_options(self, 0, "token_cost")
        check_options(self, 1, "window", "draft_tokens")
        parts = {} if self.skip in CHOICES else read_list(self.skip)
        if self.mode == "answer":
            if self.skip in ("search", "nearest") or set(parts.values()) - {NOTHING}:
                raise ValueError(f"skip is {self.skip}; with mode=answer it is even or a list of whole layers")
            refuse_options(self, "with mode=answer", "draft_tokens", "confidence", "stop", "token_cost")
        if self.skip not in CHOICES:
            refuse_options(self, "with a list of layers", "share")
        if self.skip != "search":
            refuse_options(self, f"with skip={self.skip}", "window")
        refuse_options(self, f"with stop={self.stop}", "confidence" if self.stop == "bandit" else "token_cost")
        if self.stop == "adaptive":
            check_options(self, 0.01, "confidence", most=1)  # it would rise from 0, which is to stop no draft

    @property
    def exactness(self) -> Exactness:  # type: ignore[override]
        return "exact" if self.mode == "draft" else "lossy"

    @property
    def reason(self) -> str:  # type: ignore[override]
        return "" if self.mode == "draft" else "every token skips layers, and the whole target verifies none"

    @property
    def drafts_from_text(self) -> bool:  # type: ignore[override]
        return self.skip != "search" and self.stop not in ("bandit", "adaptive")

    def unsupported(self, target: TargetInfo) -> str | None:
        needed = 3 if self.skip in CHOICES else max(read_list(self.skip)) + 1
        if needed > target.layers:
            return f"skip={self.skip} needs {needed} layers, and the target has {target.layers}"
        skipped = self.skipped(target.layers)
        if not skipped:
            return f"share={self.share} skips none of the target's {target.layers} layers; give a larger one"
        if self.mode == "answer" and len(skipped) == target.layers:
            return "skip lists all layers of the target; with mode=answer some layer must run"
        return None

    def skipped(self, layers: int) -> dict[int, Parts]:
        """What runs of the layers that do not run whole, by index; of a search or nearest, until one is chosen."""
        return even(layers, self.share) if self.skip in CHOICES else read_list(self.skip)

    def start(self, context: Context) -> int:
        layers = context.target.layers
        self._parts = all_but(layers, self.skipped(layers))
        self._search = Search(self._parts, self.share, self.window) if self.skip == "search" else None
        self._stop = Stop(self.stop, self.confidence, self.draft_tokens, self.token_cost)
        if self.mode == "answer":
            return context.pick(context.target.head(self.prefill(context, self._run)))
        context.stream.taps = tuple(range(layers + 1)) if self.skip == "nearest" else ()
        self._row = -1
        return super().start(context)

    def draft(self, context: Context, budget: int) -> Draft:
        stream, chain = context.stream, Chain(context)
        if budget and self._search is not None:
            self._search.step(stream, context.tokens[context.prompt_tokens :])
            self._parts = self._search.parts
        elif budget and self.skip == "nearest":
            self._parts = nearest(stream, self._row, self.share)
        for earlier in range(min(self._stop.begin(), budget)):
            token = chain.tokens[-1] if earlier else context.tokens[-1]
            state = stream.target.embed([token], [stream.base + earlier])
            state = stream.detour(state, self._parts, earlier=earlier)
            draft_logits = stream.target.head(state)
            if self._stop.ends(draft_logits, chain.add(draft_logits)) or chain.ended:
                break
        return chain.draft()

    def observe(self, context: Context, outcome: Outcome) -> None:
        self._stop.learn(len(outcome.draft), len(outcome.verdict.path))
        self._row = outcome.kept_rows[-1]

    def step(self, context: Context) -> Sequence[int]:
        return super().step(context) if self.mode == "draft" else one_token(context, self._run)

    def _run(self, stream: Stream) -> None:
        """Open rows through the layers that mode=answer runs."""
        for layer in sorted(self.skipped(stream.target.layers)):
            stream.advance(layer)
            stream.pass_by(layer, layer + 1)
        stream.advance()
