"""Compare the drafts and the scores of sets of `skip_layers` with those of SWIFT's authors' code, on a random target.

    python -m reference.oracles.skip_layers SWIFT

The path is a folder with hemingkx/SWIFT 88caed7. Its drafting and its search run unchanged; the model and the cache
that they call are replaced by full recomputation, in which skipped sublayers add nothing to drafted rows. Siblings,
which only their verification reads, are left out. The counts are written to results/reference/oracles-skip-layers.json.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchctl.conformance.random_models import LLAMA, VOCABULARY, in_float64, prompt_of, random_config, random_model
from benchctl.decoding.draft import Draft
from benchctl.decoding.kv.stream import Stream
from benchctl.decoding.loop import DecodeRequest, decode
from benchctl.decoding.method import Context
from benchctl.decoding.model.layers import Parts
from benchctl.decoding.model.target import Target
from benchctl.methods.skip_layers import SkipLayers
from benchctl.methods.skip_layers.choosing import matchness
from reference.oracles import write_record

COMMIT = "88caed7"
FILES = ("model/swift/utils.py", "model/swift/kv_cache.py")
LAYERS, CONTEXT_TOKENS, NEW_TOKENS = 8, 128, 40
PROMPTS, SETS, WINDOW = (13, 1, 30), 12, 32


class Recomputed:
    """Stands in for their model; a cache is the list of the tokens whose rows it would hold."""

    def __init__(self, model: Any) -> None:
        self.config, self.lm_head, self._model = model.config, model.lm_head, model
        self._skipped: tuple[Sequence[int], Sequence[int]] = ((), ())
        self.tried: list[tuple[Sequence[int], Sequence[int]]] = []

    @contextmanager
    def self_draft(self) -> Iterator[None]:
        yield  # nothing but drafts is asked for

    def get_skip_layers(self) -> tuple[Sequence[int], Sequence[int]]:
        return self._skipped

    def set_skip_layers(self, attentions: Sequence[int], mlps: Sequence[int]) -> None:
        self._skipped = (attentions, mlps)
        self.tried.append(self._skipped)

    def model(self, input_ids: Tensor, past_key_values: SimpleNamespace, **_: object) -> tuple[Tensor]:
        """Normed states [1, rows, width] of further drafted rows."""
        past_key_values.tokens += input_ids[0].tolist()
        whole = past_key_values.whole

        def silence(_module: Any, _inputs: Any, output: Any) -> Any:
            out = (output[0] if isinstance(output, tuple) else output).clone()
            out[:, whole:] = 0
            return (out, *output[1:]) if isinstance(output, tuple) else out

        layers, (attentions, mlps) = self._model.model.layers, self._skipped
        skipped = [layers[index].self_attn for index in attentions] + [layers[index].mlp for index in mlps]
        handles = [module.register_forward_hook(silence) for module in skipped]
        states = self._model.model(torch.tensor([past_key_values.tokens]), use_cache=False).last_hidden_state
        for handle in handles:
            handle.remove()
        return (states[:, -input_ids.shape[1] :],)


def parts_of(skipped: tuple[Sequence[int], Sequence[int]]) -> tuple[Parts, ...]:
    return tuple(Parts(index not in skipped[0], index not in skipped[1]) for index in range(LAYERS))


class Compared(SkipLayers):  # type: ignore[misc]  # see pyproject.toml: methods have no types here
    """Drafts with a given set, and compares each draft with theirs for the same text."""

    def against(self, theirs: ModuleType, stand_in: Recomputed, counts: Counter[str]) -> None:
        self._theirs, self._stand_in, self._counts = theirs, stand_in, counts

    def draft(self, context: Context, budget: int) -> Draft:
        self._parts = parts_of(self._stand_in.get_skip_layers())
        ours: Draft = super().draft(context, budget)
        if budget:
            (top, _, _), _ = self._theirs.swift_draft(
                self._stand_in,
                torch.tensor([context.tokens[-1:]]),
                past_key_values_data=[torch.tensor(context.tokens[:-1])],
                current_length_data=torch.zeros(1),
                max_step_draft=self.draft_tokens,
                stop_threshold=self.confidence,
            )
            drafted = tuple(top[:, 0, 0].tolist())[:budget]
            assert ours.tokens == drafted, (context.tokens, ours.tokens, drafted)
            self._counts["drafts_equal"] += 1
            self._counts["drafted_tokens"] += len(drafted)
        return ours


def search(theirs: ModuleType, stand_in: Recomputed, target: Target, prompt: list[int], answer: list[int]) -> int:
    """Scores that are equal, of so many sets that their search draws; the best of them is set in the end."""
    scores: list[float] = []
    optimizer = SimpleNamespace(register=lambda params, target: scores.append(target))
    fixed = {"bayes": False, "bayes_interval": 25, "max_score": 2.0, "max_tolerance_iter": 300, "max_opt_iter": 1000}
    state = {**fixed, "skip_ratio": 0.45, "context_window": WINDOW, "origin_score": 0, "opt_iter": 0}
    state |= {"tolerance_iter": 0, "optimization": True}
    stream = Stream(target, CONTEXT_TOKENS)
    stream.push([*prompt, *answer[:-1]])
    stream.advance()
    stream.keep(range(stream.rows))
    for _ in range(SETS):
        stand_in.tried.clear()
        tensors = (torch.tensor([answer]), [torch.tensor(prompt)], torch.zeros(1))
        theirs.swift_optimization(stand_in, *tensors, len(answer), state, optimizer=optimizer)
        ours = matchness(stream, parts_of(stand_in.tried[0]), answer, WINDOW)
        assert ours == scores[-1], (stand_in.tried[0], ours, scores[-1])
    assert state["origin_score"] == max(scores)
    return len(scores)


@torch.inference_mode()
def main(folder: str) -> int:
    sys.path.insert(0, folder)
    theirs = import_module("model.swift.utils")
    setattr(  # noqa: B010 the module has no types
        theirs,
        "clone_past_key_values",
        lambda _model, data, _length: SimpleNamespace(tokens=data[0].tolist(), whole=len(data[0])),
    )
    np.random.seed(0)
    sizes = {"num_hidden_layers": LAYERS, "vocab_size": VOCABULARY, "max_position_embeddings": CONTEXT_TOKENS}
    model = in_float64(random_model(random_config("llama", **LLAMA, **sizes), 1, torch.float64))
    target, stand_in, counts = Target(model, None), Recomputed(model), Counter[str]()
    for tokens in PROMPTS:
        prompt, even = prompt_of(tokens), range(1, LAYERS - 1, 2)
        stand_in.set_skip_layers(even, even)
        for confidence in (0.0, 0.4, 0.8):
            method = Compared(draft_tokens=25, confidence=confidence)
            method.against(theirs, stand_in, counts)
            answer = list(decode(method, target, DecodeRequest(prompt, NEW_TOKENS)).token_ids)
            if not confidence:
                counts["scores_equal"] += search(theirs, stand_in, target, prompt, answer)
    files = [Path(folder) / name for name in FILES]
    return write_record("skip-layers", files, counts, {"hemingkx/SWIFT": COMMIT})


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
