"""The target's own greedy answers: what a draft model learns from, and what its acceptance is measured on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

from benchctl.training.packing import Document
from benchctl.training.tokenizer import BOS, END, PAD, token_id


def own_documents(
    target: LlamaForCausalLM,
    tokenizer: Tokenizer,
    heads: Sequence[Sequence[int]],
    new_tokens: int,
    batch_rows: int = 128,
) -> list[Document]:
    """A document per prompt, its body written greedily by the target.

    `heads` are prompts as tokens without `<|bos|>`, ending where the answer begins.
    """
    documents: list[Document] = []
    for batch in _batches(heads, batch_rows):
        answers = greedy_answers(target, tokenizer, batch, new_tokens)
        documents += [
            Document("own", np.asarray(head, dtype=np.uint16), np.asarray(body, dtype=np.uint16))
            for head, body in zip(batch, answers, strict=True)
        ]
    return documents


def greedy_answers(
    target: LlamaForCausalLM, tokenizer: Tokenizer, heads: Sequence[Sequence[int]], new_tokens: int
) -> list[list[int]]:
    """The target's greedy continuation of each prompt, `<|end|>` included where it came; all in one batch."""
    bos, end, pad = (token_id(tokenizer, token) for token in (BOS, END, PAD))
    longest = max(len(head) for head in heads) + 1
    rows = [[pad] * (longest - 1 - len(head)) + [bos, *head] for head in heads]
    tokens = torch.tensor(rows)
    generator: Any = target
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        written = generator.generate(
            tokens,
            attention_mask=tokens.ne(pad).long(),
            max_new_tokens=new_tokens,
            do_sample=False,
            eos_token_id=end,
            pad_token_id=pad,
            use_cache=True,
        )
    return [_until(row[longest:].tolist(), end) for row in written]


def acceptance(draft: LlamaForCausalLM, tokenizer: Tokenizer, documents: Sequence[Document]) -> float:
    """Share of the target's greedy tokens that the draft model would have drafted, given the text before them."""
    bos = token_id(tokenizer, BOS)
    agreed, total = 0, 0
    with torch.no_grad():
        for document in documents:
            tokens = torch.tensor([[bos, *document.head.tolist(), *document.body.tolist()]])
            logits = draft(input_ids=tokens, use_cache=False).logits
            first = 1 + len(document.head)
            drafted = logits[0, first - 1 : -1].argmax(-1)
            agreed += int((drafted == tokens[0, first:]).sum())
            total += len(document.body)
    return agreed / max(total, 1)


def _batches(heads: Sequence[Sequence[int]], rows: int) -> Iterator[list[Sequence[int]]]:
    """Batches of prompts of similar length, in an order that mixes short and long ones."""
    by_length = sorted(heads, key=len)
    batches = [by_length[start : start + rows] for start in range(0, len(by_length), rows)]
    for index in np.random.default_rng(0).permutation(len(batches)):
        yield batches[index]


def _until(tokens: list[int], end: int) -> list[int]:
    return tokens[: tokens.index(end) + 1] if end in tokens else tokens
