"""What a run holds in memory, by formula, before any weights are read; and what to do where that is not there."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from benchctl import bundled
from benchctl.decoding.experts.offload import OffloadsExperts, capacity_of, mixtures_of
from benchctl.decoding.model.footprint import footprint, forms, products
from benchctl.decoding.model.layerwise import reads_layerwise
from benchctl.decoding.model.opaque import outline_whole
from benchctl.decoding.model.target import Target, outline
from benchctl.decoding.model.tokenizer import load_tokenizer
from benchctl.decoding.modules.adapters import Adapters
from benchctl.decoding.modules.draft_vocabulary import UsesDraftVocabulary, read_draft_vocabulary
from benchctl.decoding.modules.trainable import Trainable
from benchctl.errors import OUT_OF_MEMORY, UserError, is_out_of_memory
from benchctl.measuring.check import WHOLE, CheckedRun, Choice
from benchctl.measuring.machine import host
from benchctl.measuring.prompts.fit import unanswered_ids

# What torch and transformers allocate for themselves while a model is loaded and runs: 60 to 200 MB on x86.
_LIBRARIES_BYTES = 80_000_000
_LOGIT_ROWS, _LOGIT_BYTES = 64, 24  # rows of logits that a check holds at a time, and three copies in float64

NO_ROOM = "there is not enough memory for it"  # why a label is recorded as unsupported


@dataclass(frozen=True)
class Need:
    """Bytes needed on a device by what holds them, and those that are free there; None where that is unknown.

    Of ``parts``, "loading" is freed when all models are loaded.
    """

    device: str
    parts: Mapping[str, int]
    free_bytes: int | None

    @property
    def bytes(self) -> int:
        return sum(self.parts.values())

    @property
    def is_met(self) -> bool:
        return self.free_bytes is None or self.bytes <= self.free_bytes

    def __str__(self) -> str:
        free = "an unknown amount is" if self.free_bytes is None else f"{self.free_bytes / 1e9:.1f} GB are"
        return f"about {self.bytes / 1e9:.1f} GB on the {self.device} by formula, and {free} free"


def memory_needs(checked: CheckedRun) -> tuple[Need, ...]:
    """What the run holds at most: on a CPU one need, with a GPU that of the GPU and that of the host.

    Parts that every method has once count once; modules count for each label. What a method
    holds otherwise is unknown, and so is what engines hold.
    """
    settings, dtype, device = checked.settings, checked.dtype, checked.device
    free, present = host.free_memory_bytes("cpu"), host.resident_bytes()
    free = None if free is None else free + present  # the sum, too, contains what this process has already
    program = {"program": present + _LIBRARIES_BYTES}
    if not checked.has_target:
        return (Need("cpu", program, free),)
    weights = settings.models.weights
    names = [checked.models.target]
    drafts = (choice.draft_model(checked.models.draft) for choice in checked.choices if not choice.unsupported)
    names += list(dict.fromkeys(filter(None, drafts)))
    is_whole, paths = checked.executor == WHOLE, [bundled.resolve(name) for name in names]
    configs = [load_tokenizer(path).config for path in paths]
    outlines = [(outline_whole if is_whole else outline)(config, dtype) for config in configs]
    by_layer = [not is_whole and reads_layerwise(*each) for each in zip(paths, configs, strict=True)]
    sizes = [footprint(each, device, weights, layers) for each, layers in zip(outlines, by_layer, strict=True)]
    target = outlines[0]
    longest = max(prompt_tokens(checked))
    text = min(longest + settings.answers.max_new_tokens, target.context_tokens)
    texts = text * settings.batch_size
    cached = sum(2 * model.layers * model.info.kv_size * texts for model in outlines) * target.dtype.itemsize
    info, logits = target.info, _LOGIT_ROWS * _LOGIT_BYTES * target.vocabulary
    row = 4 * info.hidden_size + info.query_size + 2 * info.kv_size + 3 * info.mlp_size
    held = {"target": sizes[0].held, "draft model": sum(size.held for size in sizes[1:])}
    parts = [part for choice in checked.choices for part in choice.whole]
    held["modules"] = sum(_modules_bytes(part, target, forms(target, device, weights)) for part in parts)
    held["experts"] = sum(_fast_tier_bytes(choice, target) for choice in checked.choices)
    held |= {"cache": cached, "work": logits + longest * settings.batch_size * row * target.dtype.itemsize}
    held = {name: size for name, size in held.items() if size}
    before = [sum(size.held for size in sizes[:index]) for index in range(len(sizes))]
    extra = max(done + size.device_peak for done, size in zip(before, sizes, strict=True)) - sum(held.values())
    on_device = held | {"loading": max(0, extra)}
    if device == "cpu":
        return (Need(device, program | on_device, free),)
    on_host = program | {"loading": max(size.host_peak for size in sizes)}
    return Need(device, on_device, host.free_memory_bytes(device)), Need("cpu", on_host, free)


def describe(needs: Sequence[Need]) -> str:
    """What is needed, what is free, and what to change, for the end of a sentence."""
    change = "use a smaller model, another --dtype, fewer labels at once, or fewer --max-new-tokens"
    return f"{' and '.join(map(str, needs))}; {change}"


@contextmanager
def explained(what: str, needs: Sequence[Need]) -> Iterator[None]:
    """Turns running out of memory into a UserError with what the run needs. What it held by then is freed."""
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        traceback.clear_frames(error.__traceback__)
        raise UserError(OUT_OF_MEMORY, f"{what} ran out of memory. The run needs {describe(needs)}.") from None


def prompt_tokens(checked: CheckedRun) -> list[int]:
    """Tokens of each turn of each prompt with all before it; answers, which are unknown, have their full length."""
    tokenizer, new_tokens = checked.tokenizer, checked.settings.answers.max_new_tokens
    return [
        min(
            len(unanswered_ids(tokenizer, prompt.turns[: turn + 1])) + turn * new_tokens + len(checked.filler.ids),
            tokenizer.context_tokens,
        )
        for suite in checked.suites
        for prompt in suite.prompts
        for turn in range(len(prompt.turns))
    ]


def _modules_bytes(choice: Choice, target: Target, product_forms: float) -> int:
    """Of a label's trained modules, the merged layers that adapters are decoded with, and its rows of the LM head."""
    method = choice.method
    if choice.unsupported or not isinstance(method, Trainable) or choice.modules is None:
        return 0
    try:
        module = method.build(target.info, target.lm_head.weight)
    except (NotImplementedError, RuntimeError):  # it reads numbers, and an outline has none
        return 0
    values, merged = sum(tensor.numel() for tensor in module.state_dict().values()), 0
    if any(isinstance(part, Adapters) for part in module.modules()):
        merged = sum(product.weight.numel() for block in target.blocks for product in products(block))
    if isinstance(method, UsesDraftVocabulary) and method.draft_vocabulary == "stored":
        ids = read_draft_vocabulary(choice.modules)
        merged += 0 if ids is None else len(ids) * target.info.hidden_size
    # Some methods keep the modules as they were trained.
    return int(max(1, product_forms) * values + product_forms * merged) * target.dtype.itemsize


def _fast_tier_bytes(choice: Choice, target: Target) -> int:
    """Of the slots that a label which offloads experts loads them into."""
    if choice.unsupported or not isinstance(choice.method, OffloadsExperts):
        return 0
    mixtures = mixtures_of(target)
    first = next(iter(mixtures.values()))
    expert_bytes = (first.gate_up.nbytes + first.down.nbytes) // len(first.gate_up)
    return capacity_of(mixtures, int(getattr(choice.method, "capacity", 0))) * expert_bytes
