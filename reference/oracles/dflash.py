"""Compare drafts of `dflash` with those of the authors' code, on random weights in their format.

    python -m reference.oracles.dflash DFLASH

DFLASH is a clone of z-lab/dflash (44947fb was used). Their model writes a folder, `dflash` reads it, and both decode
the same prompts greedily behind the same random target. At each position where `dflash` drafts, their code must have
drafted too, and the same tokens; ours are cut where the answer ends. The counts are written to
results/reference/oracles-dflash.json with the hash of the authors' file; the exit code is 1 where anything was unequal.
"""

from __future__ import annotations

import importlib
import sys
import tempfile
import warnings
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any, cast

import torch
import transformers

from benchctl.conformance.random_models import random_config, random_model
from benchctl.decoding.draft import Draft
from benchctl.decoding.loop import DecodeRequest, decode
from benchctl.decoding.method import Context
from benchctl.decoding.model.target import Target
from benchctl.methods.dflash import Dflash
from reference.oracles import write_record

VOCABULARY, WIDTH, LAYERS, NEW_TOKENS, CASES = 12, 32, 8, 40, 60
Drafts = dict[int, tuple[int, ...]]  # by the position of the root


class _Cache(transformers.DynamicCache):
    """Their code was written for a transformers whose `crop` takes the length to keep, as this one does."""

    def crop(self, tokens_to_remove: int) -> None:
        super().crop(tokens_to_remove - self.get_seq_length())


def their_model(draw: Random, classes: Any) -> Any:
    """A DFlashDraftModel with random weights, and now and then with options of its configuration."""
    layers = draw.randint(1, 3)
    more: dict[str, Any] = {"mask_token_id": draw.randrange(VOCABULARY)}
    if draw.random() < 0.5:
        more["target_layer_ids"] = draw.sample(range(LAYERS - 1), draw.randint(1, 4))
    config = cast(Any, transformers.Qwen3Config)(
        hidden_size=WIDTH,
        intermediate_size=48,
        num_attention_heads=4,
        num_key_value_heads=draw.choice((1, 2, 4)),
        head_dim=draw.choice((8, 16)),
        num_hidden_layers=layers,
        vocab_size=VOCABULARY,
        rms_norm_eps=1e-6,
        attention_bias=draw.random() < 0.3,
        max_position_embeddings=128,
        rope_parameters={"rope_type": "default", "rope_theta": draw.choice((300.0, 10000.0))},
        num_target_layers=LAYERS,
        block_size=draw.choice((2, 4, 8, 16)),
        dflash_config=more,
        attn_implementation="eager",
    )
    model = classes.DFlashDraftModel(config).eval()
    for weight in model.parameters():
        noise = torch.randn_like(weight)
        weight.data = noise / weight.shape[-1] ** 0.5 if weight.ndim == 2 else 1 + 0.2 * noise
    return model


@torch.inference_mode()
def compare(classes: Any, seed: int, folder: Path) -> Counter[str]:
    draw = Random(seed)
    torch.manual_seed(seed)
    sizes = {"num_hidden_layers": LAYERS, "vocab_size": VOCABULARY, "head_dim": 8}
    model = random_model(random_config(draw.choice(("llama", "qwen3")), **sizes), seed, torch.float32)
    theirs = their_model(draw, classes)
    theirs.save_pretrained(folder)
    prompt = [draw.randrange(VOCABULARY) for _ in range(draw.randint(1, 30))]

    their_drafts: Drafts = {}

    def record(_: Any, arguments: tuple[torch.Tensor], options: dict[str, Any]) -> None:
        if (start := int(options["position_ids"][0, 0])) > 0:
            their_drafts[start] = tuple(arguments[0][0, 1:].tolist())

    hook = model.register_forward_pre_hook(record, with_kwargs=True)
    answer = classes.dflash_generate(theirs, model, torch.tensor([prompt]), NEW_TOKENS, None, 0.0)[0].tolist()
    hook.remove()

    method = Dflash(modules=str(folder), draft_tokens=theirs.block_size - 1, confidence=0.0)
    our_drafts: Drafts = {}

    class Recorded(Dflash):  # type: ignore[misc]  # see pyproject.toml: methods have no types here
        def draft(self, context: Context, budget: int) -> Draft:
            draft: Draft = super().draft(context, budget)
            our_drafts[len(context.tokens) - 1] = draft.tokens
            return draft

    method.__class__ = Recorded
    target = Target(model, None)
    method.prepare(target)
    ours = decode(method, target, DecodeRequest(prompt, NEW_TOKENS))
    counts = Counter[str]()
    equal = [*prompt, *ours.token_ids] == answer
    counts["answers"] += 1
    counts["unequal"] += not equal
    for position, tokens in our_drafts.items():
        counts["drafts"] += 1
        counts["unequal"] += their_drafts.get(position, ())[: len(tokens)] != tokens
    counts["accepted tokens"] += sum(step.accepted for step in ours.steps)
    return counts


def main(repository: str) -> int:
    warnings.simplefilter("ignore")
    sys.path.insert(0, repository)
    classes = importlib.import_module("dflash.model")
    vars(classes)["DynamicCache"] = _Cache
    counts = Counter[str]()
    with tempfile.TemporaryDirectory() as place:
        for seed in range(CASES):
            counts += compare(classes, seed, Path(place) / str(seed))
    return write_record("dflash", [Path(repository) / "dflash/model.py"], counts)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
