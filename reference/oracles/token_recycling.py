"""Compare the steps of `token_recycling` with those of its authors' code, on a tiny random target.

    python -m reference.oracles.token_recycling TokenRecycling

The path is a folder with Luowaterbi/TokenRecycling 1b4c05c. Its loop runs unchanged but for the names of devices; the
model and the cache that it calls are replaced by full recomputation of each row. The counts are written to
results/reference/oracles-token-recycling.json.

Their matrix begins with rows of zeros, which draft token 0; ours begins empty. So the store is filled with such rows,
and then with what their matrix holds when a prompt begins. Their prefill gives no token: it gets the prompt and the
first token of the answer, which is their first root. They have no limit within a step, so only steps that the limit of
ours cannot cut short are compared.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from benchctl.conformance.random_models import Naive, autoregressive, random_models
from benchctl.decoding.loop import DecodeRequest, decode
from benchctl.methods.token_recycling import PATHS, RANKS, TokenRecycling
from reference.oracles import write_record

COMMIT = "1b4c05c"
PROMPTS = 12
NEW_TOKENS = 40
CONTEXT_TOKENS = 512
LOOP = "evaluation/inference_recycling.py"
TEMPLATE = "model/recycling/tree_template_.py"


class Recomputed:
    """Stands in for their model and cache; what their cache holds for a position is here the token itself."""

    def __init__(self, naive: Naive) -> None:
        self._naive = naive
        self.tokens = torch.zeros(1, CONTEXT_TOKENS, 1, dtype=torch.long)
        self.length = torch.zeros(1, dtype=torch.long)

    def __call__(
        self,
        input_ids: Tensor,
        past_key_values: object,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
    ) -> SimpleNamespace:
        """Logits [1, rows, vocabulary]; row i of the mask [1, 1, rows, cached + rows] shows what row i sees."""
        begin, rows = int(self.length), input_ids.shape[1]
        self.tokens[0, begin : begin + rows, 0] = input_ids[0]
        self.length += rows
        if attention_mask is None:  # the prefill, whose logits their loop does not read
            return SimpleNamespace(logits=None)
        logits: list[Tensor] = []
        for row in range(rows):
            seen = attention_mask[0, 0, row].nonzero().flatten()
            logits.append(self._naive.logits(self._naive.last_states(self.tokens[0, seen, 0].tolist())[-1]))
        return SimpleNamespace(logits=torch.stack(logits)[None])


def their_loop(folder: Path) -> ModuleType:
    """Their module, for a CPU, with its template and without the libraries of its command line."""
    stubs = ("fastchat", "fastchat.utils", "evaluation", "evaluation.eval", "model", "model.recycling")
    for name in (*stubs, "model.recycling.kv_cache", "model.recycling.modeling_llama_kv", "model.recycling.template"):
        sys.modules[name] = ModuleType(name)
    for name, *members in (
        ("fastchat.utils", "str_to_torch_dtype"),
        ("evaluation.eval", "run_eval", "reorg_answer_file"),
        ("model.recycling.kv_cache", "initialize_past_key_values"),
        ("model.recycling.modeling_llama_kv", "LlamaForCausalLM"),
    ):
        for member in members:
            setattr(sys.modules[name], member, None)
    template = _module("model.recycling.tree_template_", (folder / TEMPLATE).read_text(encoding="utf-8"))
    assert {tuple(path) for path in template.choose_tree_template("2.2.2")} == set(PATHS)
    code = (folder / LOOP).read_text(encoding="utf-8")
    return _module("their_loop", code.replace("cuda:0", "cpu").replace(".cuda()", ""))


def _module(name: str, code: str) -> ModuleType:
    module = sys.modules[name] = ModuleType(name)
    exec(compile(code, name, "exec"), module.__dict__)
    return module


def main(folder: str) -> int:
    models = random_models("llama")
    loop: Any = their_loop(Path(folder))
    vocabulary = models.target.vocabulary
    loop.adj_matrix = torch.zeros(vocabulary, RANKS, dtype=torch.long)
    tokenizer = SimpleNamespace(eos_token_id=vocabulary)  # never said
    steps = equal_steps = accepted = 0
    for seed in range(PROMPTS):
        if seed % 4 == 0:
            loop.adj_matrix.zero_()  # cold; carried over at the other prompts
        generator = torch.Generator().manual_seed(seed)
        prompt = torch.randint(vocabulary, (5 + seed % 9,), generator=generator).tolist()
        answer = autoregressive(models.naive, prompt, NEW_TOKENS)
        recomputed = Recomputed(models.naive)
        loop.initialize_past_key_values = lambda _, its=recomputed: (None, its.tokens, its.length)
        method = TokenRecycling(nodes=len(PATHS))
        store = {token: row.tolist() for token, row in enumerate(loop.adj_matrix)}
        got = decode(method, models.target, DecodeRequest(prompt, NEW_TOKENS, store=store))
        assert list(got.token_ids) == answer
        asked = SimpleNamespace(input_ids=torch.tensor([[*prompt, answer[0]]]))
        *_, their_accepted = loop.recycling_forward(asked, recomputed, tokenizer, NEW_TOKENS)
        deepest = max(map(len, PATHS))
        ours = [len(step.tokens) for step in got.steps]
        whole = [at for at in range(len(ours)) if 1 + sum(ours[: at + 1]) + deepest < NEW_TOKENS]
        steps += len(whole)
        equal_steps += sum(ours[at] == their_accepted[at] for at in whole)
        accepted += sum(ours[at] - 1 for at in whole)
        assert ours[: len(whole)] == their_accepted[: len(whole)], (seed, ours, their_accepted)
    files = [Path(folder) / name for name in (LOOP, TEMPLATE)]
    counts = {"prompts": PROMPTS, "cold": PROMPTS // 4, "steps": steps, "equal": equal_steps, "accepted": accepted}
    return write_record("token-recycling", files, counts, {"Luowaterbi/TokenRecycling": COMMIT})


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
