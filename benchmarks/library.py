"""transformers' own generate on the same weights and prompts: what our loop is measured against."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch


@dataclass(frozen=True)
class Answer:
    """New token ids, and how many forward passes of the target they took (prefill included)."""

    token_ids: tuple[int, ...]
    passes: int


class Library:
    """Greedy decoding by transformers in its three ways, dynamic cache, batch 1, draft length constant.

    With ``halved`` the target's weight matrices are rounded to float16, as --weights float16 rounds them.
    """

    def __init__(self, target: Path, draft: Path | None, halved: bool = False) -> None:
        import transformers

        loader: Any = transformers.AutoModelForCausalLM
        self._model: Any = loader.from_pretrained(target, dtype=torch.float32).eval()
        for weight in self._model.parameters() if halved else ():
            if weight.dim() == 2:
                weight.data = weight.data.half().float()
        self._assistant: Any = draft and loader.from_pretrained(draft, dtype=torch.float32).eval()
        self._passes = 0
        self._model.model.layers[-1].register_forward_hook(self._count)

    def _count(self, *_: object) -> None:
        self._passes += 1

    def plain(self) -> Callable[[Sequence[int], int], Answer]:
        """generate() with the dynamic cache."""
        return self._decoder({})

    def assisted(self, draft_tokens: int) -> Callable[[Sequence[int], int], Answer]:
        """Assisted generation with a draft of constant length and no confidence stop."""
        settings = self._assistant.generation_config
        settings.num_assistant_tokens = draft_tokens
        settings.num_assistant_tokens_schedule = "constant"
        settings.assistant_confidence_threshold = 0.0
        return self._decoder({"assistant_model": self._assistant})

    def prompt_lookup(self, draft_tokens: int, max_ngram: int) -> Callable[[Sequence[int], int], Answer]:
        """Prompt lookup decoding."""
        return self._decoder({"prompt_lookup_num_tokens": draft_tokens, "max_matching_ngram_size": max_ngram})

    def _decoder(self, ways: dict[str, Any]) -> Callable[[Sequence[int], int], Answer]:
        @torch.inference_mode()
        def decode(prompt_ids: Sequence[int], max_new_tokens: int) -> Answer:
            ids = torch.tensor([list(prompt_ids)])
            self._passes = 0
            out = self._model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=max_new_tokens, do_sample=False, **ways
            )
            return Answer(tuple(out[0, len(prompt_ids) :].tolist()), self._passes)

        return decode
