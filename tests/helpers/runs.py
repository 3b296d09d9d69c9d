"""Pairs of a target and a draft model with their oracles, and one call that decodes a prompt with a label."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import count
from typing import Any

import pytest
import torch
from oracles import Drafter, Naive, Rounds, TreeDrafter, autoregressive, in_float64, noisy_copy, replay_tree
from tiny import tiny_model
from untrained import untrained_folder

from benchctl.decoding.counting import Step
from benchctl.decoding.loop import DecodeRequest, Generation, decode
from benchctl.decoding.method import Method, UsesDraftModel, labelled_parts
from benchctl.decoding.model.target import Target
from benchctl.decoding.model.tokenizer import TargetTokenizer
from benchctl.decoding.modules.trainable import Trainable
from benchctl.decoding.sampling import Sampling
from benchctl.registry import build, builtin_names, parse_label

VOCABULARY = 24  # small, so that texts repeat themselves and drafts are right now and then
CONTEXT_TOKENS = 64
NEW_TOKENS = 40
LAYERS = 4
PROMPTS = (1, 13, CONTEXT_TOKENS - 7)  # tokens
IDS = torch.tensor([0, 3, 4, 7, 8, 11, 12, 15, 16, 19, 20, 23])  # a draft vocabulary

MODELS = (("llama", 0), ("qwen3", 2), ("mistral_window", 4))  # families and seeds that oracles are asked about
FIRST_FAST = (MODELS[0], *(pytest.param(*model, marks=pytest.mark.slow) for model in MODELS[1:]))

# Labels whose answer must be the target's own, and labels whose answer need not be. A method that no label here names
# joins the list of what it claims with its defaults: see below.
EXACT: tuple[str, ...] = (
    "autoregressive",
    "two_model",
    "two_model[draft_tokens=1]",
    "two_model[draft_tokens=4,confidence=0.5]",
    "two_model[draft_tokens=5,confidence=0.3,stop=product]",
    "two_model[draft_tokens=5,stop=entropy,confidence=0.4]",
    "two_model[draft_tokens=3,stop=bandit,accept=block]",
    "two_model[draft_by=lookup]",
    "draft_tree",
    "draft_tree[tree=3x2x1]",
    "draft_tree[tree=best_first,nodes=6,depth=3,confidence=0]",
    "draft_tree[tree=optimal,draft_cost=0.02,row_cost=0.02]",
    "prompt_lookup",
    "prompt_lookup[draft_tokens=3,max_ngram=3,match=last]",
    "prompt_lookup[draft_tokens=2,max_ngram=1,allow_short=false]",
    "suffix",
    "suffix[tree=true,factor=3.0,min_prob=0.0,draft_tokens=12]",
    "suffix[rank=longest,draft_tokens=4,memory=run]",
    "token_recycling",
    "token_recycling[nodes=80,memory=run]",
    "combine[first=suffix[min_match=2],then=two_model[confidence=0.3]]",
    "combine[first=two_model[draft_tokens=2],then=token_recycling,when=union]",
    "combine[first=prompt_lookup[draft_tokens=2],then=medusa,when=longer]",
    "combine[first=prompt_lookup,then=m2r2[gates=2,features=last,confidence=0]]",
    "early_exit[mode=draft,exits=1,threshold=0]",
    "early_exit[mode=draft,exits=3,threshold=0,draft_tokens=6]",
    "early_exit[mode=draft,confidence=softmax_max,threshold=0.5]",
    "early_exit[mode=draft,confidence=state_cosine,threshold=0.9,min_exit=2]",
    "early_exit[mode=draft,threshold=2]",
    "early_exit[mode=draft,confidence=classifier,threshold=0.5,min_exit=1]",
    "early_exit[mode=draft,head=trained,confidence=softmax_max,threshold=0.3,decay=4]",
    "auto_exit",
    "auto_exit[stop=length,draft_tokens=5,decay=0.8]",
    "auto_exit[exits=1+3,memory=run]",
    "auto_exit[head=trained,draft_tokens=4]",
    "early_exit[threshold=2]",
    "early_exit[threshold=2,kv_policy=deferred_exact]",
    "deed[mode=draft,threshold=0.3]",
    "deed[mode=draft,threshold=0,exits=2,rank=5,draft_tokens=6]",
    "deed[threshold=2]",
    "skip_decode[adapters=none,min_layers=4]",
    "skip_layers",
    "skip_layers[skip=1+3a+4m,draft_tokens=3,confidence=0]",
    "skip_layers[skip=search,window=3,stop=adaptive]",
    "skip_layers[skip=nearest,share=1,confidence=0.2]",
    "specee[threshold=2]",
    "medusa",
    "medusa[tree=1x1x1]",
    "medusa[head=shared,heads=2]",
    "medusa[heads=2,tree=6x4]",
    "medusa[heads=4,tree=3x2x2x1]",
    "medusa[heads=1,nodes=30]",
    "eagle",
    "eagle[version=1,tree=chain,draft_tokens=6]",
    "eagle[version=1,width=6,nodes=20,confidence=0]",
    "eagle[version=3.1,tree=3x2x2]",
    "eagle[nodes=1]",
    "pseudo",
    "pseudo[kind=transfer,width=6,nodes=20,confidence=0]",
    "pseudo[kind=streaming,rank=4,layer=1]",
    "pseudo[rows=2,depth=0,tree=6x4]",
    "sequential",
    "sequential[kind=redrafter,width=6,nodes=20,confidence=0]",
    "sequential[kind=redrafter,tree=3x2x2]",
    "sequential[heads=2,blocks=2,tree=6x4]",
    "dflash",
    "dflash[layers=1,draft_tokens=3,confidence=0]",
    "dflash[markov=5,confidence=0.01,draft_tokens=12]",
    "kangaroo",
    "kangaroo[exit=2,confidence=0]",
    "kangaroo[stop=bandit,draft_tokens=3]",
    "sparse_cache",
    "sparse_cache[select=window,budget=9,sinks=2,confidence=0]",
    "sparse_cache[budget=12,chunk=4,confidence=0.3]",
    "lookahead",
    "lookahead[ngram=2,window=4,guesses=3,prompt_pool=true]",
    "lookahead[ngram=4,window=12,guesses=2,bonus=false]",
    "m2r2",
    "m2r2[gates=1+3,exit=3,draft_tokens=6]",
    "m2r2[gates=2,adapters=bottleneck,draft_tokens=1]",
    "m2r2[gates=2,adapters=hybrid,rank=5,alpha=9,confidence=0.2]",
    "m2r2[width=3]",
    "m2r2[features=last,gates=2,confidence=0]",
    "m2r2[source=exit,width=2,draft_tokens=3]",
    "m2r2[source=slow,gates=3]",
    "m2r2_dynamic[threshold=2]",
    "m2r2_dynamic[threshold=2,gates=2,router=softmax_gap,kv_fill=deferred_exact]",
)
# Exact too, but only a mixture of experts can run them.
OF_EXPERTS: tuple[str, ...] = (
    "expert_offload",
    "expert_offload[policy=on_demand,capacity=2,blocking=true]",
    "expert_offload[policy=lfu,prefetch=next_gate,capacity=3]",
    "expert_offload[policy=least_stale,prefetch=next_gate,capacity=5,spare=1]",
    "m2r2_prefetch",
    "m2r2_prefetch[gates=1+3,policy=lfu,capacity=2,spare=2]",
)
# Lossy too; tokens leave out layers below others that they run, so their caches are audited in tests of their own.
SKIPPING = (
    "skip_decode",
    "skip_decode[adapters=none,min_layers=1,max_layers=3,fall_tokens=9]",
    "skip_layers[mode=answer,share=1]",
    "skip_layers[mode=answer,skip=1+4]",
    "mixture_of_depths",
    "mixture_of_depths[threshold=0.7]",
)
LOSSY: tuple[str, ...] = (
    "early_exit[threshold=0.3]",
    "early_exit[threshold=0.3,kv_policy=deferred_exact]",
    "early_exit[confidence=state_cosine,threshold=0.8,exits=1+3]",
    "early_exit[confidence=classifier,threshold=0.5,min_exit=1]",
    "early_exit[head=trained,threshold=0.2,decay=4]",
    "early_exit[head=trained,confidence=classifier,threshold=0.5,kv_policy=deferred_exact]",
    "deed[threshold=0.3]",
    "specee",
    "specee[predictor=none,kv_policy=deferred_exact]",
    *SKIPPING,
    "medusa[accept=typical]",
    "m2r2_dynamic[threshold=0.5]",
    "m2r2_dynamic[threshold=0.5,router=linear,kv_fill=absent]",
    "m2r2_dynamic[threshold=0.2,router=softmax_gap,kv_fill=deferred_exact]",
)


def unnamed() -> list[str]:
    """The built-in methods that no list above names."""
    named = {parse_label(label).name for label in (*EXACT, *OF_EXPERTS, *LOSSY)}
    return [name for name in builtin_names() if name not in named]


@dataclass(frozen=True)
class Pair:
    """A target and a draft model, as transformers' models and as Targets, with an oracle for each."""

    model: Any
    draft_model: Any
    target: Target
    draft: Target
    naive: Naive
    naive_draft: Naive

    def with_stops(self, *stop_ids: int) -> Target:
        """The same target, ending answers at these ids."""
        twin = copy.copy(self.target)
        twin.tokenizer_or_none = TargetTokenizer(None, self.model.config, frozenset(stop_ids))
        return twin


def pair_of(model: Any, draft_model: Any) -> Pair:
    """A pair of these two transformers models."""
    return Pair(model, draft_model, Target(model, None), Target(draft_model, None), Naive(model), Naive(draft_model))


@cache
@torch.inference_mode(False)  # whoever asks first: what inference mode makes takes no part in training
def pair(family: str, seed: int = 0, context_tokens: int = CONTEXT_TOKENS) -> Pair:
    """A float64 pair of this family; the draft model is the target with noise on its weights."""
    sizes = {"vocab_size": VOCABULARY, "max_position_embeddings": context_tokens}
    model = in_float64(tiny_model(family, seed=seed, layers=LAYERS, dtype=torch.float64, **sizes))
    return pair_of(model, noisy_copy(model))


def with_head_of(model: Any, vocabulary: int) -> Any:
    """A copy of a transformers model for the first ``vocabulary`` ids only."""
    twin = copy.deepcopy(model)
    twin.config.vocab_size = vocabulary
    for module in (twin.model.embed_tokens, twin.lm_head):
        module.weight = torch.nn.Parameter(module.weight[:vocabulary].clone(), requires_grad=False)
    return twin


def prompt_of(tokens: int, seed: int = 0) -> list[int]:
    """Random ids; the second half of a longer prompt repeats part of the first, as texts do."""
    generator = torch.Generator().manual_seed(100 * tokens + seed)
    ids: list[int] = torch.randint(3, VOCABULARY, (tokens,), generator=generator).tolist()
    quarter = tokens // 4
    return [*ids[: tokens - quarter], *ids[:quarter]]


@cache
def answer(family: str, seed: int, prompt_tokens: int) -> list[int]:
    """What the target of this pair says to prompt_of: NEW_TOKENS tokens, or as many as the context takes."""
    limit = min(NEW_TOKENS, CONTEXT_TOKENS - prompt_tokens)
    return autoregressive(pair(family, seed).naive, prompt_of(prompt_tokens, seed), limit)


def prepared(label: str, target: Target, draft: Target | None = None) -> Method:
    """A fresh method, ready for the target: with a draft model if there is one, with untrained modules if need be."""
    method = build(label)
    for part_label, part in {label: method, **labelled_parts(method)}.items():
        if isinstance(part, Trainable) and part.needs_modules and not part.modules:
            part.modules = str(untrained_folder(part_label, part, target))
        if isinstance(part, UsesDraftModel):
            assert draft is not None, "this method needs a draft model"
            part.use_draft_model(draft)
    method.prepare(target)
    return method


def run(
    label: str,
    target: Target,
    prompt: Sequence[int],
    limit: int,
    *,
    draft: Target | None = None,
    sampling: Sampling | None = None,
    prompt_seed: int = 0,
) -> Generation:
    """Decode one prompt with a fresh method; the clock counts its own calls."""
    request = DecodeRequest(list(prompt), limit, sampling or Sampling(), clock=ticking(), seed=prompt_seed)
    return decode(prepared(label, target, draft), target, request)


def ticking() -> Callable[[], float]:
    """A clock that counts its own calls."""
    return map(float, count()).__next__


def generate(method: Method, models: Pair, prompt: Sequence[int], limit: int = NEW_TOKENS) -> Generation:
    """Decode one prompt with a prepared method."""
    return decode(method, models.target, DecodeRequest(prompt, limit))


def check_replayed(
    method: Method | str, family: str, seed: int, rounds: Callable[[list[int], list[int]], Rounds]
) -> list[Step]:
    """Answers to PROMPTS are the target's, and steps are the ``rounds`` of (prompt, answer); the steps of all of them.

    A label stands for a fresh method for each prompt.
    """
    models, steps = pair(family, seed), list[Step]()
    if not isinstance(method, str):
        method.prepare(models.target)
    for prompt_tokens in PROMPTS:
        prompt, text = prompt_of(prompt_tokens, seed), answer(family, seed, prompt_tokens)
        ready = prepared(method, models.target, models.draft) if isinstance(method, str) else method
        got = generate(ready, models, prompt)
        assert list(got.token_ids) == text
        assert rounds_of(got) == rounds(prompt, text)
        steps += got.steps
    return steps


def check_tree(method: Method | str, draft: TreeDrafter, family: str = "llama", seed: int = 0) -> list[Step]:
    """The same for the rounds of a plain drafter of trees."""
    return check_replayed(method, family, seed, lambda prompt, text: replay_tree(prompt, text, len(text), draft))


def check_chain(method: Method | str, draft: Drafter, family: str = "llama", seed: int = 0) -> list[Step]:
    """The same for those of a plain drafter of chains."""
    return check_tree(method, lambda text, budget: [draft(text, budget)], family, seed)


def rounds_of(generation: Generation) -> Rounds:
    """Drafted and accepted, step by step."""
    return [(step.drafted, step.accepted) for step in generation.steps]


for _name in unnamed():
    if build(_name).exactness == "lossy":
        LOSSY += (_name,)
    elif build(_name).unsupported(pair("llama").target.info) is None:
        EXACT += (_name,)
    else:
        OF_EXPERTS += (_name,)
