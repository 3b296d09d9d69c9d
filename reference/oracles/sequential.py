"""Compare scores and drafts of `sequential` with those of the authors' code, with equal random weights in float64.

    python -m reference.oracles.sequential Hydra ml-recurrent-drafter

The paths are clones of zankner/Hydra (3f39fbd) and apple/ml-recurrent-drafter (bd8586b). The counts are written to
results/reference/oracles-sequential.json with hashes of the authors' files; the exit code is 1 where anything was
unequal.

Hydra: scores of all heads at all tokens of a text, and trees of given widths. ReDrafter: the beams of every length are
the frontiers of a dynamic tree, and the scores behind their nodes are equal. The vocabulary has no more than 50 tokens:
behind the 50 likeliest ReDrafter's code scores none. The LM heads of both are the target's, as ours is.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import torch
from torch import Tensor, nn

from benchctl.conformance.method_under_test import untrained
from benchctl.conformance.random_models import RandomModels, random_models
from benchctl.decoding.drafting.grow import Expand, Frontier
from benchctl.decoding.method import Context
from benchctl.decoding.sampling import Sampling
from benchctl.methods.sequential import Sequential
from benchctl.methods.sequential.heads import Heads
from reference.oracles import write_record

HYDRA = "hydra/model/hydra_heads/mlp_head.py"
REDRAFTER = ("recurrent_drafting/configuration_drafter.py", "recurrent_drafting/modeling_drafter.py")
TEXTS = 25
WIDTHS = ((1, 1, 1, 1), (3, 2, 2, 1), (4, 3, 1))
CLOSE = 1e-9


def module_at(file: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None, file
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def random_method(models: RandomModels, seed: int, **options: Any) -> Sequential:
    """With weights of its own in every step, as loud as the target's states."""
    method = Sequential(**options)
    module: Heads = untrained(method, models.target, seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in module.parameters():
            weight += 0.2 * torch.randn(weight.shape, generator=generator)
    method._module, method._lm_head = module.double().requires_grad_(False), models.target.lm_head
    return method


def context_of(models: RandomModels, method: Sequential, text: Sequence[int]) -> Context:
    """The state behind all of ``text`` but its last token, the root."""
    method._normed = models.naive.model.model.norm(models.naive.last_states(text[:-1])[-1:])
    return cast(Context, SimpleNamespace(target=models.target, tokens=list(text), sampling=Sampling(), generator=None))


def their_weights(theirs: nn.Module, ours: Heads, lm_heads: Sequence[str], models: RandomModels) -> None:
    weights = dict(ours.state_dict())
    for name in lm_heads:
        weights[f"{name}.weight"] = models.naive.model.lm_head.weight
    missing = theirs.double().load_state_dict(weights, strict=False)
    assert not missing.unexpected_keys, missing
    for name in missing.missing_keys:  # biases of Hydra's LM heads
        assert name.startswith("hydra_lm_head") and name.endswith("bias"), name
        theirs.get_parameter(name).detach().zero_()


def compare_hydra(folder: Path, models: RandomModels, counts: Counter[str]) -> None:
    code = module_at(folder / HYDRA, "hydra_mlp_head")
    embed, vocabulary = models.naive.model.model.embed_tokens, models.target.vocabulary
    for seed in range(TEXTS):
        method = random_method(models, seed, heads=4)
        config = SimpleNamespace(hidden_size=models.target.info.hidden_size, vocab_size=vocabulary)
        theirs = code.HydraMLP(1, 4, True, embed.forward, config)
        their_weights(theirs, method._module, [f"hydra_lm_head.{head}" for head in range(4)], models)
        text = torch.randint(vocabulary, (12,), generator=torch.Generator().manual_seed(seed))
        final = models.naive.model.model.norm(models.naive.states(text.tolist())[-1])
        scores, _ = theirs(final[None], text[None])
        memory = method._module.start(final)
        for number in range(4):
            memory, read = method._module.step(number, memory, embed(text).roll(-1 - number, 0))
            close = (method._lm_head(read) - scores[number][0]).abs().max() < CLOSE
            counts["hydra scores"] += 1
            counts["unequal"] += not close
        for widths in WIDTHS:
            ours = as_tree(method, "x".join(map(str, widths)), len(widths))
            root = int(theirs_root := text[-1])
            draft = ours.draft(context_of(models, ours, [*text[:-1].tolist(), root]), len(widths))
            level, children, expanded = 1, list[list[int]](), list[list[int]]()
            for depth, width in enumerate(widths, 1):
                children.append([width] * level)
                expanded.append([width if depth < len(widths) else 0] * level)
                level *= width
            buffers = {
                "children_per_head": children,
                "children_to_expand_per_head": expanded,
                "retrieve_indices": torch.zeros(1, 1, dtype=torch.long),
            }
            logits = nn.functional.one_hot(theirs_root, vocabulary)[None, None].double()
            _, tokens = theirs.proposal(logits, ours._normed[None], buffers)
            counts["hydra trees"] += 1
            counts["unequal"] += tokens[0].tolist() != [root, *draft.tokens]


def as_tree(method: Sequential, tree: str, heads: int) -> Sequential:
    twin = Sequential(kind=method.kind, tree=tree, heads=heads)
    twin._module, twin._lm_head = method._module, method._lm_head
    return twin


def levels_of(method: Sequential, context: Context, depth: int) -> list[dict[tuple[int, ...], Tensor]]:
    """For each frontier of a tree so deep its paths, and the scores behind them."""
    levels, paths = list[dict[tuple[int, ...], Tensor]](), list[tuple[int, ...]]()
    original: Expand = partial(method._log_probs, context)

    def watched(_context: Context, frontier: Frontier) -> Tensor:
        log_probs = original(frontier)
        parents = zip(frontier.tokens, frontier.parents, strict=True)
        found = [(*paths[parent], token) for token, parent in parents] or [()]
        paths.extend(found)
        levels.append(dict(zip(found, log_probs, strict=True)))
        return log_probs

    object.__setattr__(method, "_log_probs", watched)
    method.draft(context, depth)
    return levels


def compare_redrafter(folder: Path, models: RandomModels, counts: Counter[str]) -> None:
    package = sys.modules["recurrent_drafting"] = ModuleType("recurrent_drafting")
    package.__path__ = [str(folder / "recurrent_drafting")]
    code = importlib.import_module("recurrent_drafting.modeling_drafter")
    settings = importlib.import_module("recurrent_drafting.configuration_drafter")
    embed, vocabulary, size = models.naive.model.model.embed_tokens, models.target.vocabulary, 6
    for seed in range(TEXTS):
        blocks = 1 + seed % 2
        method = random_method(
            models, seed, kind="redrafter", heads=4, blocks=blocks, width=size, nodes=1000, confidence=0.0
        )
        width = models.target.info.hidden_size
        sizes = {"vocab_size": vocabulary, "hidden_size": width, "exit_dim": width, "num_draft_layers": blocks}
        theirs = code.Drafter(settings.DrafterConfig(rnn=True, **sizes))
        their_weights(theirs, method._module, [f"lm_head.{blocks}"], models)
        text = torch.randint(vocabulary, (9,), generator=torch.Generator().manual_seed(seed))
        levels = levels_of(method, context_of(models, method, text.tolist()), 4)
        for length in range(2, 5):
            beams, scores = theirs.beam_search_candidates(
                method._normed, text[-1:], embed, code.BeamShape(size, length)
            )
            found = {tuple(beam[1:]): scores[0, place] for place, beam in enumerate(beams[0].tolist())}
            counts["redrafter beams"] += 1
            counts["unequal"] += found.keys() != levels[length - 1].keys()
            for path, rows in found.items():
                for depth in range(length - 1):
                    counts["redrafter scores"] += 1
                    counts["unequal"] += not bool((rows[depth] - levels[depth][path[:depth]]).abs().max() < CLOSE)


def main(hydra: Path, redrafter: Path) -> int:
    torch.set_grad_enabled(False)
    torch.set_default_dtype(torch.float64)
    models, counts = random_models("llama"), Counter[str](unequal=0)
    compare_hydra(hydra, models, counts)
    compare_redrafter(redrafter, models, counts)
    files = [hydra / HYDRA, *(redrafter / name for name in REDRAFTER)]
    return write_record("sequential", files, counts)


if __name__ == "__main__":
    sys.exit(main(*map(Path, sys.argv[1:3])))
