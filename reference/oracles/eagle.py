"""Compare drafts, logits and losses of `eagle` with those of the authors' code and of speculators, on random weights.

    python -m reference.oracles.eagle EAGLE FOLDER

EAGLE is a clone of SafeAILab/EAGLE (cb7e084 was used). FOLDER has speculators 0.9.0 in it: pip install --no-deps
--target FOLDER speculators==0.9.0, and what it imports that is missing. The counts are written to
results/reference/oracles-eagle.json with hashes of the authors' files; the exit code is 1 where anything was unequal.

Trees of cnets.py (version 3) and cnets1.py (version 1) must be equal at every step of a text, with their cache
carried along. Logits of speculators must be equal for each pass of its training-time test, and its loss too, for every
flag of its configuration.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import torch
import transformers
from torch import Tensor

from benchctl.conformance.method_under_test import untrained
from benchctl.conformance.random_models import Naive, random_config, random_model
from benchctl.decoding.draft import Draft
from benchctl.decoding.drafting.grow import Frontier, grow_likeliest
from benchctl.decoding.model.target import Target
from benchctl.decoding.modules.draft_vocabulary import DraftVocabulary
from benchctl.decoding.modules.trainable import TrainingBatch
from benchctl.methods.eagle import Eagle
from benchctl.methods.eagle.head import Drafter, EagleModule, LayerConfig, Sizes, Traits
from benchctl.methods.eagle.training import Unrolled, eagle_loss
from reference.oracles import write_record

VOCABULARY, WIDTH, HEADS, KV_HEADS, MLP, LAYERS = 40, 32, 4, 2, 48, 8
TAPS = (2, 4, 5)
EPS = 1e-5
TEXTS, STEPS, LOSSES = 60, 5, 10
Paths = frozenset[tuple[int, ...]]


@dataclass(frozen=True)
class Models:
    """A random target, in float32 like the other code, with its oracle."""

    target: Target
    naive: Naive

    @classmethod
    def random(cls, seed: int) -> Models:
        sizes = {"num_hidden_layers": LAYERS, "vocab_size": VOCABULARY, "head_dim": WIDTH // HEADS}
        model = random_model(random_config("llama", **sizes), seed, torch.float32).requires_grad_(False)
        return cls(Target(model, None), Naive(model))

    def features(self, text: list[int], kind: str) -> Tensor:
        """[tokens, width of all taps] for version 3; the normed last state for version 1."""
        states = self.naive.states(text)
        if kind == "1":
            final: Tensor = self.naive.model.model.norm(states[-1])
            return final
        return torch.cat([states[tap] for tap in TAPS], -1)


def count(counts: Counter[str], kind: str, equal: bool) -> None:
    counts[kind] += 1
    counts["unequal"] += not equal


def their_paths(answer: tuple[Tensor, ...]) -> Paths:
    """Of topK_genrate: tokens [1, nodes], root first, and a mask in which a row sees its ancestors and itself."""
    tokens, mask = answer[0][0].tolist(), answer[2][0, 0].bool()
    parents = [int(mask[row, :row].nonzero()[-1]) - 1 for row in range(1, len(tokens))]
    return frozenset(Draft(tuple(tokens[1:]), tuple(parents)).paths)


def authors_model(repository: Path, kind: str, module: EagleModule, ids: Tensor | None, **tree: int) -> Any:
    """cnets.Model or cnets1.Model with our weights."""
    sys.path.insert(0, str(repository))
    model_class = importlib.import_module("eagle.model." + ("cnets1" if kind == "1" else "cnets")).Model
    config = SimpleNamespace(
        hidden_size=WIDTH,
        intermediate_size=MLP,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        num_hidden_layers=1,
        vocab_size=VOCABULARY,
        draft_vocab_size=VOCABULARY if ids is None else len(ids),
        max_position_embeddings=128,
        rms_norm_eps=EPS,
        rope_scaling=None,
        rope_theta=10000.0,
        pretraining_tp=1,
        hidden_act="silu",
        pad_token_id=None,
    )
    model = model_class(config, load_emb=False, **tree)
    weights = dict(module.state_dict())
    if kind == "1":
        weights = {name.replace("midlayer.", "layers.0."): weight for name, weight in weights.items()}
    if ids is not None:
        weights["d2t"] = ids - torch.arange(len(ids))
    missing = model.load_state_dict(weights, strict=False)
    assert not missing.unexpected_keys and set(missing.missing_keys) <= {"embed_tokens.weight", "d2t", "t2d"}, missing
    return model.eval()


@torch.inference_mode()
def compare_trees(repository: Path, seed: int) -> Counter[str]:
    """One text in several steps: a prompt, then a few tokens more each time, as if so many had been accepted."""
    draw, models = Random(seed), Models.random(seed % 5)
    kind = draw.choice(("1", "3", "3"))
    ids = torch.tensor(sorted(draw.sample(range(VOCABULARY), 24))) if kind == "3" and draw.random() < 0.5 else None
    method = Eagle(version=kind)
    method.vocabulary = DraftVocabulary(ids)
    module = untrained(method, models.target, seed)
    assert isinstance(module, EagleModule)
    width, depth, nodes = draw.choice((1, 2, 4, 8)), draw.randint(1, 5), draw.choice((3, 7, 20))
    nodes = min(nodes, width + width * width * depth)
    theirs = authors_model(repository, kind, module, ids, total_tokens=nodes + 1, depth=depth, top_k=width)
    theirs.embed_tokens.weight.data = models.naive.model.model.embed_tokens.weight
    theirs.init_tree()
    theirs.reset_kv()
    layer = LayerConfig(WIDTH, HEADS, KV_HEADS, WIDTH // HEADS)
    taps = (LAYERS,) if kind == "1" else TAPS
    ours = Drafter(module, Traits(layer, taps, models.target.rotary), models.target, method.vocabulary)
    ours.start(128)
    counts = Counter[str]()
    text = [draw.randrange(VOCABULARY) for _ in range(draw.randint(2, 30))]
    for _ in range(STEPS):
        read, new = ours.length, models.features(text[:-1], kind)[ours.length :]
        answer = theirs.topK_genrate(new[None], torch.tensor([text]), models.naive.model.lm_head, None)
        states = models.naive.states(text[:-1])
        ours.read([states[tap][read:] for tap in taps], text[read + 1 :])

        def expand(frontier: Any) -> Tensor:
            log_probs: Tensor = ours(frontier).log_softmax(-1)
            return log_probs

        tree = grow_likeliest(expand, width, depth + 1, nodes, method.vocabulary)
        equal = frozenset(tree.paths) == their_paths(answer)
        count(counts, f"trees of version {kind}", equal)
        text += [draw.randrange(VOCABULARY) for _ in range(draw.randint(1, 4))]
    return counts


FLAGS: tuple[dict[str, bool], ...] = (
    {},
    {"fc_norm": True, "norm_output": True},
    {"fc_norm": True},
    {"norm_before_fc": True},
    {"norm_before_residual": True},
)


def batch_of(models: Models, text: list[int]) -> TrainingBatch:
    states = models.naive.states(text)[:, None].clone()
    n, model, rotary = len(text), models.naive.model, models.target.rotary
    return TrainingBatch(
        tokens=torch.tensor([text]),
        weights=torch.ones(1, n),
        documents=torch.zeros(1, n, dtype=torch.int64),
        positions=torch.arange(n)[None],
        states=tuple(states),
        final=model.model.norm(states[-1]),
        norm=model.model.norm,
        head=model.lm_head,
        layer=lambda index: models.target.blocks[index],
        rotary=lambda positions: rotary[positions],
    )


def _theirs(module: str, name: str) -> Any:
    return getattr(importlib.import_module(f"speculators.{module}"), name)


def compare_passes(seed: int, flags: dict[str, bool]) -> Counter[str]:
    """Three passes over a text: states, and the loss where our training has these flags."""
    draw, models = Random(seed), Models.random(seed % 5)
    kinds = {"tap_norms": "fc_norm" in flags, "input_norm": "norm_before_fc" in flags}
    torch.manual_seed(seed)
    module = EagleModule(Sizes(WIDTH, WIDTH, WIDTH // 2, MLP, len(TAPS), VOCABULARY, **kinds))
    layer = cast(Any, transformers.LlamaConfig)(
        hidden_size=WIDTH,
        intermediate_size=MLP,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=WIDTH // HEADS,
        num_hidden_layers=1,
        vocab_size=VOCABULARY,
        rms_norm_eps=EPS,
        max_position_embeddings=128,
        attn_implementation="eager",
    )
    proposal = _theirs("proposals.greedy", "GreedyTokenProposalConfig")(speculative_tokens=3)
    config = _theirs("models.eagle3", "Eagle3SpeculatorConfig")(
        transformer_layer_config=layer,
        draft_vocab_size=VOCABULARY,
        eagle_aux_hidden_state_layer_ids=list(TAPS),
        speculators_config=_theirs("config", "SpeculatorsConfig")(
            algorithm="eagle3",
            proposal_methods=[proposal],
            default_proposal_method="greedy",
            verifier=_theirs("config", "VerifierConfig")(name_or_path=None, architectures=["LlamaForCausalLM"]),
        ),
        **flags,
    )
    theirs = _theirs("models.eagle3.core", "Eagle3DraftModel")(config)
    weights = {name.replace("midlayer.", "layers.0."): weight for name, weight in module.state_dict().items()}
    model = models.naive.model
    weights["embed_tokens.weight"] = model.model.embed_tokens.weight
    weights |= {"verifier_norm.weight": model.model.norm.weight, "verifier_lm_head.weight": model.lm_head.weight}
    theirs.load_state_dict(weights)
    text = [draw.randrange(VOCABULARY) for _ in range(draw.randint(8, 40))]
    batch, n = batch_of(models, text), len(text)
    logits: list[Tensor] = []
    theirs.lm_head.register_forward_hook(lambda *call: logits.append(call[-1][0].detach()))
    # Their row t reads the feature of token t and, as its input, token t + 1: both are handed over shifted.
    features, last = models.features(text, "3")[:-1], batch.states[-1][:, 1:]
    mask = torch.ones(1, n - 1, dtype=torch.bool)
    mask[0, -1] = False  # no token stands there, which is why our loss leaves it out
    _, loss, _ = theirs(
        hidden_states=features[None].clone(),
        input_ids=torch.tensor([text[1:]]),
        document_ids=torch.zeros(1, n - 1, dtype=torch.int64),
        loss_mask=mask,
        loss_config=_theirs("losses", "resolve_loss_config")("kl_div", "eager"),
        verifier_last_hidden_states=last.clone(),
        ttt_steps=3,
        ttt_step_loss_decay=0.8,
    )
    counts = Counter[str]()
    if kinds["input_norm"] or "norm_before_residual" in flags or flags == {"fc_norm": True}:
        ours = decoded(models, module, flags, text)
        count(counts, "logits of flags that are only read", bool((ours - logits[0]).abs().max() < 1e-4))
        return counts
    with torch.no_grad():
        for number, states in enumerate(Unrolled(module, batch, TAPS).passes(3)):
            read = states if module.tap_norms or module.norm is None else module.norm(states)
            assert module.lm_head is not None
            apart = (module.lm_head(read)[0, : n - 1 - number] - logits[number][: n - 1 - number]).abs().max()
            count(counts, "logits of passes", bool(apart < 1e-4))
    # Theirs is a mean over the rows of each pass, ours a sum.
    sums = [eagle_loss(module, batch, TAPS, passes) for passes in (1, 2, 3)]
    ours_by_pass = [sums[0], sums[1] - sums[0], sums[2] - sums[1]]
    total = sum(part / (n - 2 - number) for number, part in enumerate(ours_by_pass))
    count(counts, "losses", bool(abs(float(total) - float(loss)) < 1e-4 * float(loss)))
    count(counts, "gradients", same_gradients(module, theirs, total, loss))
    return counts


def same_gradients(module: EagleModule, theirs: Any, total: Any, loss: Tensor) -> bool:
    """Of all weights that both train: the LM head of speculators stands still."""
    total.backward()
    loss.backward()  # type: ignore[no-untyped-call]
    other = dict(theirs.named_parameters())
    for name, weight in module.named_parameters():
        gradient = other[name.replace("midlayer.", "layers.0.")].grad
        if gradient is not None and not torch.allclose(weight.grad, gradient, rtol=1e-3, atol=1e-5):
            return False
    return True


@torch.inference_mode()
def decoded(models: Models, module: EagleModule, flags: dict[str, bool], text: list[int]) -> Tensor:
    """[tokens - 1, vocabulary] the logits of each row of a text, by the code that decodes."""
    layer = LayerConfig(WIDTH, HEADS, KV_HEADS, WIDTH // HEADS)
    settings = {"feeds_normed": "norm_output" in flags, "norms_residual": "norm_before_residual" in flags}
    drafter = Drafter(module, Traits(layer, TAPS, models.target.rotary, **settings), models.target, DraftVocabulary())
    drafter.start(len(text))
    states, rows = models.naive.states(text), list[Tensor]()
    for at in range(len(text) - 1):
        drafter.read([states[tap][at : at + 1] for tap in TAPS], text[at + 1 : at + 2])
        rows.append(drafter(Frontier()))
    return torch.cat(rows)


def main(repository: str, packages: str) -> int:
    warnings.simplefilter("ignore")
    sys.path.append(packages)
    counts = Counter[str]()
    for seed in range(TEXTS):
        counts += compare_trees(Path(repository), seed)
    for seed in range(LOSSES):
        for flags in FLAGS:
            counts += compare_passes(seed, flags)
    files = [Path(repository) / "eagle/model" / name for name in ("cnets.py", "cnets1.py")]
    return write_record("eagle", files, counts, packages=("speculators", "transformers", "torch"))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
