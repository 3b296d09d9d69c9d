"""What every method refuses: options that cannot be, targets that do not fit, modules made for something else."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from itertools import product

import pytest
import torch
from refusals import refused
from runs import LAYERS, pair, prepared, prompt_of
from tiny import tiny_model, tiny_target
from untrained import untrained_folder

from benchctl.decoding.loop import DecodeRequest, decode
from benchctl.decoding.model.target import Target
from benchctl.decoding.modules.folders import check_fit
from benchctl.decoding.modules.trainable import Trainable
from benchctl.decoding.sampling import Sampling
from benchctl.errors import UserError
from benchctl.registry import build, parse_label, with_trained
from benchctl.training.modules.job import trainable_names

HALF = (
    "early_exit[head=trained,threshold=0.3]",
    "early_exit[head=trained,confidence=state_cosine,mode=draft]",
    "early_exit[head=trained,confidence=classifier,threshold=0.5,decay=4]",
    "auto_exit[head=trained]",
    "deed[threshold=0.3]",
    "deed[mode=draft,threshold=0.3]",
    "m2r2[width=3,confidence=0.1]",
    "m2r2[source=exit]",
    "m2r2[adapters=bottleneck]",
    "m2r2_dynamic[threshold=0.5,kv_fill=rate_map]",
    "m2r2_dynamic[threshold=0.5,kv_fill=absent]",
    "m2r2_dynamic[threshold=0.5,router=state_cosine,kv_fill=deferred_exact]",
)


@pytest.mark.parametrize(
    ("label", "fact"),
    [
        ("auto_exit[decay=1.1]", "decay is 1.1"),
        ("auto_exit[draft_tokens=0]", "draft_tokens is 0"),
        ("auto_exit[exits=auto]", "exits is 'auto'"),
        ("auto_exit[rank=8]", "rank"),
        ("auto_exit[alpha=2]", "alpha"),
        ("auto_exit[modules=folder]", "modules"),
        ("auto_exit[draft_vocabulary=whole]", "draft_vocabulary"),
        ("auto_exit[head=trained,rank=0]", "rank is 0"),
        ("auto_exit[memory=prompts]", "prompts"),
        ("deed[threshold=-0.1]", "threshold is -0.1"),
        ("deed[threshold=nan]", "threshold"),
        ("deed[rank=0]", "rank is 0"),
        ("deed[alpha=0]", "alpha is 0"),
        ("deed[exits=2+x]", "exits is '2+x'"),
        ("deed[exits=0]", "exits is '0'"),
        ("deed[draft_tokens=0]", "draft_tokens is 0"),
        ("deed[mode=drafts]", "drafts"),
        ("deed[draft_vocabulary=whole]", "draft_vocabulary"),
        ("deed[draft_tokens=2]", "draft_tokens"),
        ("draft_tree[tree=best]", "best_first or optimal"),
        ("draft_tree[tree=optimal,ranks=0.2+0.6]", "ranks is '0.2+0.6'"),
        ("draft_tree[tree=optimal,ranks=0.7+0.6]", "ranks"),
        ("draft_tree[tree=optimal,ranks=nan]", "ranks"),
        ("draft_tree[tree=optimal,ranks=0]", "ranks"),
        ("draft_tree[tree=optimal,width=4]", "width"),
        ("draft_tree[tree=3x2x1,nodes=6]", "nodes"),
        ("draft_tree[tree=best_first,ranks=0.5]", "ranks"),
        ("draft_tree[draft_cost=0.5]", "draft_cost"),
        ("two_model[token_cost=0.5]", "token_cost"),
        ("two_model[draft_exits=1+x]", "'1+x'"),
        ("two_model[draft_exits=1,draft_by=lookup]", "draft_by"),
        ("two_model[exit_confidence=0.5]", "exit_confidence"),
        ("two_model[draft_exits=1,exit_confidence=1.5]", "exit_confidence is 1.5"),
        ("two_model[stop=bandit,confidence=0.9]", "confidence"),
        ("draft_tree[tree=optimal,ranks=a]", "ranks is 'a'"),
        ("draft_tree[nodes=0]", "nodes is 0"),
        ("draft_tree[confidence=2]", "confidence is 2"),
        ("draft_tree[row_cost=-1]", "row_cost is -1"),
        ("draft_tree[tree=best_first,replacement=true]", "replacement"),
        ("early_exit[decay=-1]", "decay is -1"),
        ("early_exit[decay=inf]", "decay"),
        ("early_exit[decay=4,threshold=1.5]", "threshold of at most 1"),
        ("early_exit[exits=2,min_exit=4]", "min_exit 4"),
        ("early_exit[rank=8]", "head=trained"),
        ("early_exit[head=trained,rank=0]", "rank is 0"),
        ("early_exit[head=trained,alpha=-1]", "alpha is -1"),
        ("early_exit[alpha=8]", "head=trained"),
        ("early_exit[modules=x]", "add head=trained"),
        ("early_exit[mode=draft,draft_vocabulary=whole]", "draft_vocabulary"),
        ("early_exit[draft_tokens=2]", "draft_tokens"),
        ("early_exit[mode=draft,kv_policy=deferred_exact]", "kv_policy"),
        ("expert_offload[capacity=-1]", "capacity is -1"),
        ("expert_offload[bandwidth_mb_s=-5]", "bandwidth_mb_s is -5"),
        ("expert_offload[spare=-1,prefetch=next_gate]", "spare is -1"),
        ("expert_offload[spare=2]", "prefetch=none"),
        ("expert_offload[blocking=true,prefetch=next_gate]", "prefetch=next_gate"),
        ("expert_offload[policy=oracle]", "oracle"),
        ("lookahead[ngram=1]", "ngram is 1"),
        ("lookahead[window=0]", "window is 0"),
        ("lookahead[guesses=-1]", "guesses is -1"),
        ("m2r2[gates=4+2]", "4+2"),
        ("m2r2[gates=2+2]", "2+2"),
        ("m2r2[gates=0+2]", "0+2"),
        ("m2r2[gates=a]", "'a'"),
        ("m2r2[gates=2+4,exit=3]", "exit 3"),
        ("m2r2[rank=0]", "rank is 0"),
        ("m2r2[width=0]", "width is 0"),
        ("m2r2[draft_tokens=0]", "draft_tokens is 0"),
        ("m2r2[rate=0.5]", "rate is 0.5"),
        ("m2r2[confidence=2]", "confidence is 2"),
        ("m2r2[adapters=none]", "lora"),
        ("m2r2[source=head]", "accelerated"),
        ("m2r2_dynamic[threshold=-0.1]", "threshold is -0.1"),
        ("m2r2_dynamic[router=oracle]", "arla"),
        ("m2r2_dynamic[kv_fill=copy]", "rate_map"),
        ("m2r2_prefetch[spare=-1]", "spare is -1"),
        ("medusa[tree=2x]", "'2x'"),
        ("medusa[tree=0x2]", "'0x2'"),
        ("medusa[tree=2x2x2x2]", "up to 3"),
        ("medusa[heads=2,tree=2x2x2]", "up to 2"),
        ("medusa[nodes=257]", "256"),
        ("medusa[heads=0]", "heads is 0"),
        ("medusa[epsilon=0]", "epsilon is 0"),
        ("medusa[accept=typical,delta=1.5]", "delta is 1.5"),
        ("medusa[epsilon=0.2]", "epsilon"),
        ("medusa[delta=0.2]", "delta"),
        ("medusa[tree=2x2,nodes=6]", "nodes"),
        ("mixture_of_depths[capacity=0]", "capacity is 0.0"),
        ("mixture_of_depths[capacity=1.5]", "capacity is 1.5"),
        ("mixture_of_depths[threshold=1.1]", "threshold is 1.1"),
        ("mixture_of_depths[alpha=0]", "alpha is 0.0"),
        ("skip_decode[min_layers=-1]", "min_layers is -1"),
        ("skip_decode[fall_tokens=0]", "fall_tokens is 0"),
        ("skip_decode[min_layers=5,max_layers=4]", "min_layers 5"),
        ("skip_decode[min_layers=2,warmup_layers=3]", "warmup_layers 3"),
        ("skip_decode[max_layers=2,warmup_layers=3]", "warmup_layers 3"),
        ("skip_decode[rank=0]", "rank is 0"),
        ("skip_decode[adapters=none,modules=x]", "adapters=none"),
        ("skip_decode[adapters=none,rank=8]", "rank"),
        ("skip_decode[adapters=none,alpha=8]", "alpha"),
        ("dflash[layers=0]", "layers is 0"),
        ("dflash[draft_tokens=0]", "draft_tokens is 0"),
        ("dflash[draft_tokens=64]", "draft_tokens is 64"),
        ("dflash[confidence=1.5]", "confidence is 1.5"),
        ("dflash[confidence=-0.1]", "confidence is -0.1"),
        ("dflash[markov=-1]", "markov is -1"),
        ("dflash[gamma=0]", "gamma is 0"),
        ("eagle[draft_tokens=0]", "draft_tokens is 0"),
        ("eagle[width=0]", "width is 0"),
        ("eagle[nodes=0]", "nodes is 0"),
        ("eagle[passes=0]", "passes is 0"),
        ("eagle[confidence=1.5]", "confidence is 1.5"),
        ("eagle[tree=4x0]", "'4x0'"),
        ("eagle[tree=sparse]", "'sparse'"),
        ("eagle[objective=hass]", "objective"),
        ("eagle[draft_vocabulary=whole]", "draft_vocabulary"),
        ("eagle[tree=chain,nodes=3]", "nodes"),
        ("eagle[tree=chain,width=3]", "width"),
        ("eagle[tree=chain,confidence=0.5]", "confidence"),
        ("eagle[tree=4x2,draft_tokens=5]", "draft_tokens"),
        ("eagle[tree=4x2,nodes=3]", "nodes"),
        ("eagle[version=1,passes=5]", "passes"),
        ("eagle[version=1,head=target]", "head"),
        ("eagle[version=2]", "version"),
        ("eagle[nodes=1000000]", "nodes is 1000000"),
        ("eagle[width=1000000]", "width is 1000000"),
        ("eagle[draft_tokens=1000000]", "draft_tokens is 1000000"),
        ("kangaroo[draft_tokens=0]", "draft_tokens is 0"),
        ("kangaroo[exit=-1]", "exit is -1"),
        ("kangaroo[confidence=1.5]", "confidence is 1.5"),
        ("kangaroo[token_cost=0.2]", "token_cost"),
        ("kangaroo[stop=bandit,token_cost=-1]", "token_cost is -1"),
        ("kangaroo[stop=bandit,confidence=0.5]", "confidence"),
        ("pseudo[rows=0]", "rows is 0"),
        ("pseudo[depth=-1]", "depth is -1"),
        ("pseudo[depth=9]", "deeper than the 3 rows"),
        ("pseudo[width=0]", "width is 0"),
        ("pseudo[nodes=1000000]", "nodes is 1000000"),
        ("pseudo[confidence=1.5]", "confidence is 1.5"),
        ("pseudo[share=2]", "share is 2"),
        ("pseudo[layer=2]", "layer"),
        ("pseudo[rank=8]", "rank"),
        ("pseudo[kind=transfer,rank=8]", "rank"),
        ("pseudo[tree=4x0]", "'4x0'"),
        ("pseudo[tree=1x1x1x1]", "'1x1x1x1'"),
        ("pseudo[tree=4x2,nodes=3]", "nodes"),
        ("pseudo[tree=4x2,width=3]", "width"),
        ("pseudo[tree=4x2,confidence=0.5]", "confidence"),
        ("sequential[heads=0]", "heads is 0"),
        ("sequential[blocks=0]", "blocks is 0"),
        ("sequential[width=0]", "width is 0"),
        ("sequential[nodes=1000000]", "nodes is 1000000"),
        ("sequential[confidence=1.5]", "confidence is 1.5"),
        ("sequential[tree=4x0]", "'4x0'"),
        ("sequential[tree=1x1x1x1x1]", "'1x1x1x1x1'"),
        ("sequential[tree=4x2,nodes=3]", "nodes"),
        ("sequential[tree=4x2,width=3]", "width"),
        ("sequential[tree=4x2,confidence=0.5]", "confidence"),
        ("skip_layers[skip=most]", "'most'"),
        ("skip_layers[skip=0]", "'0'"),
        ("skip_layers[skip=2b]", "'2b'"),
        ("skip_layers[skip=2,share=0.3]", "share"),
        ("skip_layers[share=1.2]", "share is 1.2"),
        ("skip_layers[window=8]", "window"),
        ("skip_layers[skip=search,window=0]", "window is 0"),
        ("skip_layers[draft_tokens=0]", "draft_tokens is 0"),
        ("skip_layers[token_cost=0.2]", "token_cost"),
        ("skip_layers[stop=bandit,confidence=0.1]", "confidence"),
        ("skip_layers[mode=answer,skip=search]", "skip is search"),
        ("skip_layers[mode=answer,skip=2+3a]", "skip is 2+3a"),
        ("skip_layers[mode=answer,draft_tokens=2]", "draft_tokens"),
        ("skip_layers[mode=answer,stop=bandit]", "stop"),
        ("sparse_cache[budget=0]", "budget is 0"),
        ("sparse_cache[select=window,budget=4,sinks=4]", "sinks is 4"),
        ("sparse_cache[select=window,sinks=-1]", "sinks is -1"),
        ("sparse_cache[draft_tokens=0]", "draft_tokens is 0"),
        ("sparse_cache[confidence=1.1]", "confidence is 1.1"),
        ("sparse_cache[select=window,chunk=4]", "chunk"),
        ("sparse_cache[sinks=2]", "sinks"),
        ("sparse_cache[chunk=0]", "chunk is 0"),
        ("sparse_cache[chunk=100]", "chunk=100"),
        ("specee[threshold=-1]", "threshold is -1"),
        ("specee[guide=-1]", "guide is -1"),
        ("specee[exits=x]", "'x'"),
        ("specee[predictor=none,threshold=0.3]", "threshold"),
        ("suffix[draft_tokens=0]", "draft_tokens is 0"),
        ("suffix[depth=1]", "depth is 1"),
        ("suffix[factor=-1]", "factor is -1"),
        ("suffix[min_prob=1.5]", "min_prob is 1.5"),
        ("suffix[min_match=0]", "min_match is 0"),
        ("suffix[min_match=24]", "depth is"),
        ("suffix[rank=longest,tree=true]", "tree"),
        ("suffix[rank=longest,factor=2]", "factor"),
        ("suffix[rank=longest,offset=1]", "offset"),
        ("suffix[rank=longest,min_prob=0.2]", "min_prob"),
        ("token_recycling[nodes=0]", "nodes is 0"),
        ("token_recycling[nodes=81]", "nodes is 81"),
    ],
)
def test_options_that_cannot_be_are_refused(label: str, fact: str) -> None:
    """Before any model is loaded, and for the reason given."""
    with pytest.raises(UserError) as caught:
        build(label)
    assert caught.value.id == "bad_option_value" and fact in caught.value.message.removeprefix(f"{label}: ")


@pytest.mark.parametrize("label", ["m2r2[threshold=0.1]", "m2r2_dynamic[width=3]"])
def test_options_of_a_method_with_the_same_modules_are_unknown(label: str) -> None:
    with refused("unknown_option"):
        build(label)


@pytest.mark.parametrize(
    ("label", "family", "fact"),
    [
        ("pseudo[kind=transfer,layer=4]", "llama", "4 layers"),
        ("auto_exit[exits=1+4]", "llama", "exit 4 is not below the target's 4 layers"),
        ("deed[exits=1+4]", "llama", "exit 4 is not below the target's 4 layers"),
        ("early_exit[head=trained,exits=9]", "llama", "exit 9 is not below the target's 4 layers"),
        ("early_exit[head=trained,min_exit=4]", "llama", "min_exit 4 is not below the target's 4 layers"),
        ("m2r2[gates=4]", "llama", "gate 4"),
        ("m2r2[gates=1+9]", "llama", "gate 9"),
        ("m2r2[exit=7]", "llama", "7"),
        ("m2r2_prefetch", "llama", "dense"),
        ("m2r2_prefetch[capacity=1]", "mixtral", "capacity 1"),
        ("skip_decode[min_layers=5]", "llama", "min_layers 5 is more than the target's 4 layers"),
        ("skip_decode[max_layers=5]", "llama", "max_layers 5 is more than the target's 4 layers"),
        ("skip_decode[warmup_layers=5]", "llama", "warmup_layers 5 is more than the target's 4 layers"),
    ],
)
def test_a_target_that_does_not_fit_is_told(label: str, family: str, fact: str) -> None:
    assert fact in str(build(label).unsupported(pair(family).target.info))


def test_a_target_of_one_layer_has_no_exit_gate_or_routed_block() -> None:
    target = tiny_target("llama", layers=1)
    for label in ("auto_exit", "deed", "early_exit[head=trained]", "m2r2", "mixture_of_depths"):
        assert build(label).unsupported(target.info)


@pytest.mark.parametrize(
    ("trained", "asked", "id", "fact"),
    [
        ("early_exit[head=trained,exits=1+3]", "auto_exit[head=trained,exits=2+3]", "exits_not_trained", "1+3"),
        ("early_exit[head=trained]", "auto_exit[head=trained,alpha=9]", "trained_with_other_option", "alpha=256.0"),
        ("auto_exit[head=trained,rank=8]", "early_exit[head=trained]", "shapes_do_not_fit", "rank=8"),
        ("deed[exits=1+3]", "deed[exits=2+3]", "exits_not_trained", "1+3"),
        ("deed[exits=1+3]", "deed[rank=4]", "shapes_do_not_fit", "rank=64"),
        ("deed[exits=1+3]", "deed[alpha=64]", "trained_with_other_option", "alpha=256.0"),
        ("early_exit[head=trained,exits=1+3]", "early_exit[head=trained,exits=2+3]", "exits_not_trained", "1+3"),
        ("early_exit[head=trained]", "early_exit[head=trained,rank=4]", "shapes_do_not_fit", "rank=64"),
        ("early_exit[head=trained]", "early_exit[head=trained,alpha=9]", "trained_with_other_option", "alpha=256.0"),
        ("early_exit[head=trained,exits=1+2]", "early_exit[head=trained,min_exit=3]", "exits_not_trained", "1+2"),
        ("early_exit[head=trained]", "early_exit[head=trained,min_exit=4]", "exits_not_trained", "1+2+3"),
        ("m2r2[gates=1+3]", "m2r2[gates=2]", "shapes_do_not_fit", "gates=1+3"),
        ("m2r2[gates=1+3]", "m2r2[gates=1+3,rate=2.0]", "trained_with_other_option", "rate="),
        ("m2r2[gates=1+3]", "m2r2[gates=1+3,alpha=9.0]", "trained_with_other_option", "alpha="),
        ("m2r2[gates=1+3]", "m2r2_dynamic[gates=1+3]", "modules_missing", "m2r2_dynamic[router=arla,modules="),
        ("m2r2[gates=1+3]", "m2r2_dynamic[router=linear,gates=1+3]", "modules_missing", "router=linear,modules="),
        ("m2r2_dynamic[gates=1+3]", "m2r2_dynamic[router=linear,gates=1+3]", "shapes_do_not_fit", "router=arla"),
        ("mixture_of_depths", "mixture_of_depths[capacity=0.5]", "trained_with_other_option", "capacity=0.125"),
        ("skip_decode", "skip_decode[warmup_layers=3]", "trained_with_other_option", "warmup_layers=1"),
        ("skip_decode[fall_tokens=9]", "skip_decode[min_layers=1]", "depths_not_trained", "min_layers=2"),
        ("skip_decode[min_layers=2]", "skip_decode[max_layers=1]", "depths_not_trained", "min_layers=2"),
        ("skip_decode[max_layers=2]", "skip_decode[min_layers=1]", "depths_not_trained", "min_layers=2"),
        ("dflash", "dflash[layers=3]", "shapes_do_not_fit", "layers=2"),
        ("dflash", "dflash[markov=4]", "shapes_do_not_fit", "markov=0"),
        ("dflash", "dflash[draft_tokens=20]", "trained_for_fewer", "draft_tokens="),
        ("eagle[version=1]", "eagle", "trained_with_other_option", "version=1"),
        ("eagle", "eagle[head=target]", "trained_with_other_option", "head=trained"),
        ("kangaroo[exit=2]", "kangaroo", "trained_with_other_option", "exit=2"),
        ("pseudo", "pseudo[kind=transfer]", "trained_with_other_option", "kind=prompt"),
        ("pseudo", "pseudo[rows=4]", "trained_for_fewer", "rows=4"),
        ("sequential", "sequential[kind=redrafter]", "trained_with_other_option", "kind=hydra"),
        ("sequential", "sequential[heads=5]", "trained_for_fewer", "heads=5"),
        ("sequential", "sequential[blocks=2]", "shapes_do_not_fit", "blocks="),
        ("specee[exits=3]", "specee[exits=2]", "exits_not_trained", "3"),
        ("specee[exits=3]", "specee[guide=1]", "trained_with_other_option", "guide=0"),
        ("specee[predictor=none]", "specee", "modules_missing", "predictor"),
        ("m2r2[gates=1+2,features=last]", "m2r2[gates=1+2]", "trained_with_other_option", "features=last"),
        ("m2r2[gates=1,features=last]", "m2r2_dynamic[gates=1]", "trained_with_other_option", "features=last"),
        (
            "m2r2[gates=1,adapters=bottleneck]",
            "m2r2[gates=1,adapters=hybrid]",
            "trained_with_other_option",
            "adapters=bottleneck",
        ),
        ("medusa", "medusa[heads=4]", "trained_for_fewer", "heads=4"),
        ("medusa", "medusa[head=shared]", "trained_with_other_option", "head=own"),
        ("medusa[head=shared]", "medusa", "trained_with_other_option", "head=shared"),
        ("early_exit[head=trained,exits=1]", "early_exit[head=trained,exits=2]", "exits_not_trained", "1"),
        ("early_exit[head=trained,min_exit=2]", "auto_exit[head=trained]", "trained_with_other_option", "min_exit=2"),
    ],
)
def test_modules_of_other_options_are_refused_and_theirs_named(trained: str, asked: str, id: str, fact: str) -> None:
    """Also where no shape differs, and they would serve worse than they can without a word."""
    target, method = pair("llama").target, build(asked)
    assert isinstance(method, Trainable)
    method.modules = str(untrained_folder(trained, build(trained), target))
    with refused(id, fact):
        method.prepare(target)
    # And before weights are read, where the label is not refused as one that the target does not support.
    with nullcontext() if build(asked).unsupported(target.info) else refused(id, fact):
        check_fit(method, parse_label(asked).name, method.modules, target.info)


@pytest.mark.parametrize("name", trainable_names())
def test_modules_are_built_without_numbers(name: str) -> None:
    """Else their shapes could not be checked before weights are read."""
    info, method = pair("olmoe" if name == "m2r2_prefetch" else "llama").target.info, build(name)
    assert isinstance(method, Trainable)
    module = method.build(info, torch.empty(info.vocabulary, info.hidden_size, device="meta"))
    assert all(tensor.is_meta for tensor in module.state_dict().values())


@pytest.mark.parametrize("name", ["dflash", "eagle", "kangaroo", "pseudo", "sequential"])
def test_a_label_without_modules_says_how_to_train_some(name: str) -> None:
    with refused("modules_missing", f"benchctl train {name}"):
        build(name).prepare(pair("llama").target)


@pytest.mark.parametrize(
    ("trained", "asked"),
    [
        ("m2r2[gates=1+3]", "m2r2_dynamic[router=softmax_gap,gates=1+3]"),
        ("early_exit[head=trained,exits=1+3,confidence=classifier]", "auto_exit[head=trained,exits=3]"),
        ("auto_exit[head=trained,exits=1+3]", "early_exit[head=trained,exits=3]"),
        ("m2r2[gates=1+3]", "m2r2_dynamic[router=state_cosine,gates=1+3]"),
        ("m2r2_dynamic[gates=1+3]", "m2r2[gates=1+3]"),
        ("m2r2_dynamic[gates=1+3]", "m2r2_dynamic[router=softmax_max,gates=1+3]"),
        ("mixture_of_depths", "mixture_of_depths[threshold=0.8]"),
        ("skip_decode", "skip_decode[min_layers=3,fall_tokens=9]"),
        ("skip_decode[min_layers=1]", "skip_decode[max_layers=1]"),
        ("medusa", "medusa[heads=1]"),
        ("medusa[head=shared]", "medusa[head=shared,heads=1]"),
        ("pseudo[rows=3]", "pseudo[rows=1]"),
        ("sequential", "sequential[heads=1]"),
        ("specee", "specee[threshold=0.8]"),
        ("eagle", "eagle[draft_tokens=2]"),
        ("dflash", "dflash[confidence=0.2]"),
        ("kangaroo", "kangaroo[draft_tokens=1]"),
    ],
)
def test_modules_serve_other_options_that_make_no_others(trained: str, asked: str) -> None:
    target, method = pair("llama").target, build(asked)
    assert isinstance(method, Trainable)
    method.modules = str(untrained_folder(trained, build(trained), target))
    check_fit(method, parse_label(asked).name, method.modules, target.info)
    method.prepare(target)


@pytest.mark.parametrize(
    ("trained", "asked", "fits"),
    [
        ("m2r2_prefetch", "m2r2_prefetch[gates=2]", True),
        ("m2r2_prefetch[gates=2]", "m2r2_prefetch", True),
        ("m2r2_prefetch", "m2r2_prefetch[gates=1+2]", False),
        ("m2r2_prefetch[gates=1+2]", "m2r2_prefetch", False),
    ],
)
def test_modules_that_prefetch_serve_the_gates_of_their_training_alone(trained: str, asked: str, fits: bool) -> None:
    """Those of gate 2, the default here, have the shapes of those of gates 1 and 2, and were taken for them."""
    target, method = pair("olmoe").target, build(asked)
    assert isinstance(method, Trainable)
    method.modules = str(untrained_folder(trained, build(trained), target))
    with nullcontext() if fits else refused("trained_with_other_option", "1+2"):
        check_fit(method, "m2r2_prefetch", method.modules, target.info)
    with nullcontext() if fits else refused("trained_with_other_option", "1+2"):
        method.prepare(target)


@pytest.mark.parametrize(
    ("asked", "trained", "label"),
    [
        ("deed", {"draft_tokens": "2", "exits": "1+3"}, "deed[exits=1+3]"),
        ("deed[mode=draft]", {"draft_tokens": "2", "exits": "1+3"}, "deed[draft_tokens=2,exits=1+3,mode=draft]"),
        ("early_exit[kv_policy=deferred_exact]", {"mode": "draft"}, "early_exit[kv_policy=deferred_exact]"),
        ("medusa[tree=2x2]", {"heads": "2", "nodes": "6"}, "medusa[heads=2,tree=2x2]"),
    ],
)
def test_options_of_training_that_would_have_no_effect_are_left_out(
    asked: str, trained: dict[str, str], label: str
) -> None:
    """Modules of earlier versions may name them; they serve as before."""
    assert with_trained(parse_label(asked), trained).text == label


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize(("label", "family"), [*product(HALF, ["olmoe", "gemma"]), ("m2r2_prefetch", "olmoe")])
def test_methods_with_modules_decode_in_the_precision_of_a_gpu(label: str, family: str, device: str) -> None:
    """Gemma keeps gains in float32 and scales its embedding, OLMoE norms queries; both meet the modules' bfloat16."""
    target = Target(tiny_model(family, layers=LAYERS, dtype=torch.bfloat16).to(device), None)
    for sampling in (Sampling(), Sampling(temperature=0.8, top_p=0.9)):
        request = DecodeRequest(prompt_of(9), 12, sampling)
        assert len(decode(prepared(label, target), target, request).token_ids) == 12


CHANGES_LAYERS = ("m2r2", "m2r2_dynamic", "pseudo", "mixture_of_depths", "skip_decode")


@pytest.mark.parametrize("label", CHANGES_LAYERS)
def test_a_method_that_changes_parts_of_layers_refuses_layers_that_differ_from_those_of_llama(label: str) -> None:
    """Adapters inside layers know nothing of norms behind sub-layers, soft caps or parallel MLPs."""
    info = pair("llama").target.info
    assert build(label).unsupported(info) is None
    assert "'llama'" in str(build(label).unsupported(replace(info, plain_layers=False)))


def test_skip_decode_without_adapters_runs_any_layers() -> None:
    info = replace(pair("llama").target.info, plain_layers=False)
    assert build("skip_decode[adapters=none]").unsupported(info) is None
