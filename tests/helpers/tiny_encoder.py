"""Small T5 folders: a random one whose tokenizer reads any text, and one that has learnt to turn letters round."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from plain_t5 import tiny_t5
from tiny import tiny_tokenizer
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import Tensor
from transformers import PreTrainedTokenizerFast, T5Config, T5ForConditionalGeneration

LETTERS = "abcdefghij"
VOCABULARY = {token: number for number, token in enumerate(["<pad>", "</s>", "<unk>", "<start>", *LETTERS])}
END, START, FIRST = VOCABULARY["</s>"], VOCABULARY["<start>"], VOCABULARY["a"]
LONGEST = 7
SIZES = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_heads": 4, "num_layers": 2, "num_decoder_layers": 4}
BUCKETS = {"relative_attention_num_buckets": 16, "relative_attention_max_distance": 20}
STEPS = 280


def random_folder(path: Path, *, chat: bool = False, **settings: Any) -> Path:
    """A random T5 with the tokenizer of tiny.py, with its chat template or without one; </s> is 2."""
    tiny_t5(vocabulary=320, eos_token_id=2, **settings).float().save_pretrained(path)
    tiny_tokenizer(chat=chat).save_pretrained(path)
    return path


def letters(count: int, seed: int) -> list[list[int]]:
    """So many ids of 3 to 7 different letters."""
    random = torch.Generator().manual_seed(seed)
    sizes = torch.randint(3, LONGEST + 1, (count,), generator=random).tolist()
    return [(torch.randperm(len(LETTERS), generator=random)[:size] + FIRST).tolist() for size in sizes]


def reversing_folder(path: Path) -> Path:
    """A T5 trained in plain PyTorch: "c a d" to "d a c"; its text begins with a token of its own, which is not 0."""
    ids = {"pad_token_id": 0, "eos_token_id": END, "decoder_start_token_id": START}
    sizes: dict[str, Any] = {"vocab_size": len(VOCABULARY), "dropout_rate": 0.0, **SIZES, **BUCKETS, **ids}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model: Any = T5ForConditionalGeneration(T5Config(**sizes))
    _learn(model)
    model.eval().save_pretrained(path)
    tokenizer = Tokenizer(models.WordLevel(VOCABULARY, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing("$A </s>", special_tokens=[("</s>", END)])
    names = {"eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>", "additional_special_tokens": ["<start>"]}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names).save_pretrained(path)  # type: ignore[no-untyped-call]
    return path


def _learn(model: T5ForConditionalGeneration) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 30) * (1 - step / STEPS))
    for step in range(STEPS):
        texts = letters(32, seed=1000 + step)
        given = _padded([[*text, END] for text in texts], 0)
        wanted = _padded([[*reversed(text), END] for text in texts], -100)
        model(input_ids=given, attention_mask=(given > 0).long(), labels=wanted).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()


def _padded(lines: list[list[int]], padding: int) -> Tensor:
    return torch.tensor([[*line, *[padding] * (LONGEST + 1 - len(line))] for line in lines])


def write_reversals(folder: Path, train: int, held_out: int) -> Path:
    """A folder of so many records to train on and to hold out."""
    folder.mkdir(parents=True, exist_ok=True)
    names = {number: token for token, number in VOCABULARY.items()}
    for name, count, seed in (("train", train, 1), ("val", held_out, 2)):
        texts = [[names[number] for number in text] for text in letters(count, seed)]
        lines = [{"instruction": " ".join(text), "output": " ".join(reversed(text))} for text in texts]
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return folder
