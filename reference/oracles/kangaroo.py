"""Compare steps of `kangaroo` with those of the authors' code, with equal random weights in float64.

    python -m reference.oracles.kangaroo Kangaroo

The path is a clone of Equationliu/Kangaroo (4f0949d was used). Their loop, adapter and target run unchanged. They need
two things of transformers 4.33, which are added to the target: layers that take a pair as cache, and a function for
masks. The counts are written to results/reference/oracles-kangaroo.json; the exit code is 1 where anything was unequal.

For each of their steps, the draft and the number of committed tokens must be equal; the answers too. Their loop ends
where a whole draft could exceed the limit: our later, shorter drafts are not compared. Their loop does not end where
the prompt's first new token is the end token: such prompts are only counted.

Differences of definition, made equal here. Their adapter rotates by base 10000 for any target, and its heads have width
/ heads columns: ours takes both from the target. Their epsilons are in the adapter's configuration (Vicuna: 1e-6): ours
are 1e-5 in the first norm, and the target's in the last. Their last norm has its own gain: ours is the target's gain
times a trained one. Training is not compared: theirs leaves out the first token of a text, which their decoding reads.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from importlib import import_module
from pathlib import Path
from random import Random
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from benchctl.conformance.method_under_test import facts_of, untrained
from benchctl.conformance.random_models import in_float64, random_config, random_model
from benchctl.decoding.draft import Draft
from benchctl.decoding.loop import DecodeRequest, decode
from benchctl.decoding.method import Context
from benchctl.decoding.model.target import Target
from benchctl.decoding.model.tokenizer import TargetTokenizer
from benchctl.decoding.modules.folders import save_modules
from benchctl.methods.kangaroo import Kangaroo
from reference.oracles import write_record

FILES = ("evaluation/inference_kangaroo.py", "kangaroo/adapter.py", "kangaroo/earlyexit.py")
VOCABULARY, WIDTH, HEADS, LAYERS, NEW_TOKENS, CASES = 12, 32, 4, 6, 60, 100
SHARED = {"vocab_size": VOCABULARY, "hidden_size": WIDTH, "num_attention_heads": HEADS, "rms_norm_eps": 1e-5}
Drafts = dict[int, tuple[int, ...]]  # by the position of the root


def accept_pairs(layer: Any, rotary: Any) -> None:
    """Let a layer also be called as in transformers 4.33, with its keys and values as a pair."""
    forward_now, index = layer.forward, layer.self_attn.layer_idx

    def forward(state: Tensor, past_key_value: Any = None, **options: Any) -> Any:
        if past_key_value is None:
            return forward_now(state, **options)
        cache: Any = DynamicCache()
        cache.update(*past_key_value[:2], index)
        turns, mask = rotary(state, options["position_ids"]), options["attention_mask"]
        state = forward_now(state, mask, past_key_values=cache, position_embeddings=turns)
        return state, (cache.layers[index].keys, cache.layers[index].values)

    layer.forward = forward


def their_target(code: Any, model: Any, mask: Any, exit_layer: int, drafts: Drafts) -> Any:
    theirs = code.EarlyExitLlamaForCausalLM(model.config, exit_layer).double().eval()
    theirs.load_state_dict(model.state_dict())
    theirs.model._prepare_decoder_attention_mask = lambda *about: mask(*about).double()
    for layer in theirs.model.layers:
        accept_pairs(layer, theirs.model.rotary_emb)
    forward, tokens = theirs.forward_draft_or_large_model, list[int]()

    def watched(**options: Any) -> Any:
        if (token := options.get("in_tokens_small")) is not None:
            tokens.append(int(token))
        else:
            drafts[int(options["position_ids"][0, 0])] = tuple(tokens[1:])
            tokens.clear()
        return forward(**options)

    theirs.forward_draft_or_large_model = watched
    return in_float64(theirs)


def their_adapter(code: Any, model: Any, ours: dict[str, Tensor]) -> Any:
    config = {**SHARED, "num_key_value_heads": HEADS, "num_hidden_layers": 1, "pad_token_id": 0}
    adapter = code.AdapterModel(SimpleNamespace(**config, max_position_embeddings=128))
    theta = model.config.rope_parameters["rope_theta"]
    adapter.layers[0].self_attn.rotary_emb = code.LlamaRotaryEmbedding(WIDTH // HEADS, base=theta)
    # The numbers of a rotated pair are adjacent in ours; theirs has the first ones of all pairs, then the second ones.
    queries, keys, values = ours["qkv.weight"].chunk(3)
    queries, keys = (each.view(HEADS, -1, 2, WIDTH).transpose(1, 2).flatten(0, 2) for each in (queries, keys))
    products = {"q_proj": queries, "k_proj": keys, "v_proj": values, "o_proj": ours["out.weight"]}
    weights = {f"layers.0.self_attn.{name}.weight": weight for name, weight in products.items()}
    last_gain = model.model.norm.weight * ours["gain"]
    weights |= {"layers.0.input_layernorm.weight": ours["norm.weight"], "norm.weight": last_gain}
    adapter.double().eval().load_state_dict(weights)
    return in_float64(adapter)


class Ours(Kangaroo):  # type: ignore[misc]  # see pyproject.toml: methods have no types here
    def draft(self, context: Context, budget: int) -> Draft:
        draft: Draft = super().draft(context, budget)
        self.drafts[len(context.tokens) - 1] = draft.tokens
        return draft


def compare(code: Any, seed: int, folder: Path) -> Counter[str]:
    draw = Random(seed)
    rotations = {"rope_type": "default", "rope_theta": draw.choice((300.0, 10000.0))}
    sizes = {**SHARED, "num_hidden_layers": LAYERS, "num_key_value_heads": draw.choice((1, 2, 4))}
    model = in_float64(random_model(random_config("llama", **sizes, rope_parameters=rotations), seed, torch.float64))
    for name, weight in model.model.layers[2:].named_parameters():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            weight.mul_(0.25)  # so that exits are right for some tokens
    end, exit_layer, most = draw.choice((-1, draw.randrange(VOCABULARY))), draw.randint(1, 4), draw.randint(1, 8)
    target = Target(model, TargetTokenizer(None, model.config, frozenset({end})))
    prompt = [draw.randrange(VOCABULARY) for _ in range(draw.randint(1, 30))]

    method = Ours(str(folder), exit_layer, most, confidence=draw.choice((0.0, 0.3, 0.6, 0.9)))
    method.drafts = {}
    module, generator = untrained(method, target, seed), torch.Generator().manual_seed(seed)
    for name, weight in module.named_parameters():
        if name in ("norm.weight", "gain"):
            weight.add_(0.3 * torch.randn(WIDTH, generator=generator))
    save_modules(folder, module, facts_of("kangaroo", method, target))
    method.prepare(target)
    ours = decode(method, target, DecodeRequest(prompt, NEW_TOKENS))
    if ours.token_ids == (end,):
        return Counter(prompts_not_compared=1)

    adapter = their_adapter(code, model, module.state_dict())
    drafts: Drafts = {}
    base = their_target(code, model, adapter._prepare_decoder_attention_mask, exit_layer, drafts)
    models = SimpleNamespace(base_model=base, adapter_model=adapter, head_model=base.lm_head)
    inputs, tokenizer = SimpleNamespace(input_ids=torch.tensor([prompt])), SimpleNamespace(eos_token_id=end)
    options = {"EARLY_STOP_LAYER": exit_layer, "SPECULATIVE_DECODING_STEPS": most, "threshold": method.confidence}
    (answer,), _, _, (_, *lengths) = code.kangaroo_forward(inputs, models, tokenizer, NEW_TOKENS, **options)

    whole = len(prompt) + NEW_TOKENS - 1 - most  # roots before it leave room for a whole draft
    roots = [root for root in method.drafts if root < whole]
    counts = Counter(answers=1, end_tokens=int(answer[-1] == end), committed_tokens=sum(lengths))
    counts["unequal"] += [*prompt, *ours.token_ids][: len(answer)] != answer or roots != list(drafts)
    for (root, draft), length, step in zip(drafts.items(), lengths, ours.steps, strict=False):
        counts.update(drafts=1, lengths=1, drafted_tokens=len(draft))
        counts["drafts_ended_by_confidence"] += len(draft) < most
        counts["drafts_accepted_whole"] += length == len(draft) + 1
        counts["unequal"] += (method.drafts.get(root) != draft) + (len(step.tokens) != length)
    return counts


@torch.no_grad()
def main(folder: str) -> int:
    sys.path.insert(0, folder)
    unused: Any = ModuleType("fastchat")  # for imports of their command line
    unused.str_to_torch_dtype = unused.run_eval = unused.reorg_answer_file = None
    sys.modules.update({"fastchat": unused, "fastchat.utils": unused, "evaluation.eval": unused})
    modules = [import_module(file.removesuffix(".py").replace("/", ".")) for file in FILES]
    code = SimpleNamespace(**{name: value for module in modules for name, value in vars(module).items()})
    counts = Counter[str]()
    with tempfile.TemporaryDirectory() as place:
        for seed in range(CASES):
            counts.update(compare(code, seed, Path(place) / str(seed)))
    return write_record("kangaroo", [Path(folder) / name for name in FILES], counts)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
