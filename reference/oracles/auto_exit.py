"""Compare the estimates and choices of `auto_exit` with those of DEL's authors' code, on random targets.

    python -m reference.oracles.auto_exit DEL

The path is a folder with hoenza/DEL 0365a81. Its class DEL runs unchanged, on states that transformers' model gives for
the whole text; decoding is ours. It counts rows behind a rejected token where the best draft length was 0; ours never
does, so its best length is set to 1 there. The counts are written to results/reference/oracles-auto-exit.json.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from benchctl.conformance.random_models import (
    LLAMA,
    VOCABULARY,
    Naive,
    in_float64,
    prompt_of,
    random_config,
    random_model,
)
from benchctl.decoding.loop import DecodeRequest, decode
from benchctl.decoding.method import Context, Outcome
from benchctl.decoding.model.target import Target
from benchctl.methods.auto_exit import AutoExit
from reference.oracles import write_record

COMMIT = "0365a81"
FILE = "self_speculation/DEL.py"
LAYERS, CONTEXT_TOKENS, NEW_TOKENS = 8, 160, 100
PROMPTS = (13, 1, 50)
LENGTHS = 18  # draft lengths that theirs compares: 0 to 17


class Compared(AutoExit):  # type: ignore[misc]  # see pyproject.toml: methods have no types here
    """Gives theirs the rows of each step, and compares what both choose for the next one."""

    def against(self, theirs: Any, naive: Naive, counts: Counter[str]) -> None:
        self._theirs, self._naive, self._counts = theirs, naive, counts

    def start(self, context: Context) -> int:
        first: int = super().start(context)
        self._compare(self._naive.states(context.tokens), len(context.tokens) - 1)
        return first

    def observe(self, context: Context, outcome: Outcome) -> None:
        super().observe(context, outcome)
        states = self._naive.states([*context.tokens, *outcome.draft.tokens])
        self._compare(states[:, len(context.tokens) - 1 :], 0)

    def _compare(self, states: Tensor, earlier_rows: int) -> None:
        """``states`` [layers + 1, rows, width]."""
        theirs = self._theirs
        theirs.cached_hidden_states = [[state.unsqueeze(0)] for state in states[1:]]
        theirs.current_gamma = max(1, theirs.current_gamma)
        theirs.run(theirs.current_exit_layer, earlier_rows, False)
        exits = range(1, LAYERS)
        at, length = self.store.best(exits, LAYERS, LENGTHS - 1)
        assert (exits[at], length) == (theirs.current_exit_layer, theirs.current_gamma)
        for place, layer in enumerate(exits):
            expected, found = float(theirs.average_confidence[layer - 1].mean()), self.store.threshold(place)
            assert math.isnan(found) if math.isnan(expected) else abs(found - expected) < 1e-9
            self._counts["thresholds_equal"] += not math.isnan(expected)
        self._counts["choices_equal"] += 1
        self._counts[f"choices_of_exit_{exits[at]}"] += 1


@torch.inference_mode()
def main(folder: str) -> int:
    sys.path.insert(0, folder)
    unused: Any = ModuleType("lxml.html.diff")  # an import of theirs that nothing reads
    unused.token = None
    sys.modules.update({"lxml": ModuleType("lxml"), "lxml.html": ModuleType("lxml.html"), "lxml.html.diff": unused})
    theirs = import_module("self_speculation.DEL")
    torch.set_default_dtype(torch.float64)  # of their sums
    counts = Counter[str]()
    sizes = {"num_hidden_layers": LAYERS, "vocab_size": VOCABULARY, "max_position_embeddings": CONTEXT_TOKENS}
    for seed in range(4):
        model = in_float64(random_model(random_config("llama", **LLAMA, **sizes), seed, torch.float64))
        for layer in model.model.layers[2:]:  # so that exits are right now and then
            for part in (layer.self_attn.o_proj, layer.mlp.down_proj):
                part.weight.mul_(0.25)
        target = Target(model, None)
        for tokens in PROMPTS:
            method = Compared(draft_tokens=LENGTHS - 1)
            method.against(theirs.DEL(model, gamma_max=LENGTHS, omega=method.decay), Naive(model), counts)
            answer = decode(method, target, DecodeRequest(prompt_of(tokens), NEW_TOKENS))
            counts["accepted_tokens"] += sum(step.accepted for step in answer.steps)
    return write_record("auto-exit", [Path(folder) / FILE], counts, {"hoenza/DEL": COMMIT})


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
