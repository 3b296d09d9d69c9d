"""A model of one's own as judge, against what transformers' own model says to each reply and writes itself."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from refusals import refused
from tiny import tiny_folder
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from benchctl.decoding.model.target import Target
from benchctl.judges.local import Local
from benchctl.judging.judge import Message, Place

STOP = 2
CHAT = (Message("system", "You score."), Message("user", "Two numbers, please:"))
PLACE = Place(base_url="", key_env="", runs=())


def tokenizer_with(*tokens: str) -> Any:
    """A byte-level tokenizer of single bytes and of these tokens, made of bytes or of tokens before them."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    names = ["<pad>", "<s>", "</s>", *alphabet, *tokens]
    merges = [(token[:-1], token[-1]) for token in tokens]
    backend = Tokenizer(models.BPE(vocab={name: at for at, name in enumerate(names)}, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    ends = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
    return PreTrainedTokenizerFast(tokenizer_object=backend, **ends)  # type: ignore[no-untyped-call]


def judge_folder(path: Path, *tokens: str) -> Path:
    """A random model with this tokenizer."""
    tokenizer = tokenizer_with(*tokens)
    tiny_folder(path, max_position_embeddings=256, vocab_size=len(tokenizer))
    tokenizer.save_pretrained(path)
    return path


def plain_means(folder: Path, prompt: Sequence[int], count: int) -> list[float]:
    """The mean scores, each reply's chance taken from a text of its own."""
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder)
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(folder)
    goes_on = [token for token in range(3, len(tokenizer)) if tokenizer.decode([token])[:1].isdecimal()]
    sums, share = [0.0] * count, 0.0
    for scores in product(range(1, 11), repeat=count):
        reply = tokenizer.encode(" ".join(map(str, scores)), add_special_tokens=False)
        with torch.inference_mode():
            logits = model(torch.tensor([[*prompt, *reply]])).logits[0].double()
        probs = logits.softmax(-1)[len(prompt) - 1 :]
        chance = 1.0
        for at, token in enumerate(reply):
            chance *= float(probs[at, token])
        chance *= 1.0 - float(probs[len(reply), goes_on].sum())
        share += chance
        sums = [total + chance * score for total, score in zip(sums, scores, strict=True)]
    return [total / share for total in sums]


@pytest.mark.parametrize(("tokens", "ten"), [((), 2), (("10",), 1)], ids=["10 as 1 0", "10 as one token"])
@pytest.mark.parametrize(("protocol", "count"), [("single", 1), ("pairwise", 2)])
def test_local_gives_the_mean_over_all_replies_however_its_tokens_spell_them(
    tmp_path: Path, tokens: tuple[str, ...], ten: int, protocol: Any, count: int
) -> None:
    folder = judge_folder(tmp_path / "judge", *tokens)
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder)
    assert len(tokenizer.encode("10", add_special_tokens=False)) == ten
    judge = Local(model=str(folder), protocol=protocol, least_share=0.0)
    judge.prepare(PLACE)
    chat = [{"role": message.role, "content": message.content} for message in CHAT]
    asked = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    prompt = tokenizer.encode(asked, add_special_tokens=False)
    reply = judge.ask(CHAT, 0)
    means = plain_means(folder, prompt, count)
    assert judge.read(reply.text) == pytest.approx(tuple(means), abs=1e-4)
    assert not reply.problem
    assert reply.usage is not None and reply.usage.prompt_tokens == len(prompt)


def test_local_reads_nothing_from_a_model_that_does_not_do_what_it_is_asked(tmp_path: Path) -> None:
    judge = Local(model=str(judge_folder(tmp_path / "judge")), least_share=0.01)
    judge.prepare(PLACE)
    reply = judge.ask(CHAT, 0)
    assert (reply.text, judge.read(reply.text)) == ("", None)
    assert "of its probability is on replies of the form asked for" in reply.problem


def written(folder: Path, new_tokens: int) -> str:
    """What transformers' own generate writes, greedily."""
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder)
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(folder)
    chat = [{"role": message.role, "content": message.content} for message in CHAT]
    asked = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    ids = tokenizer.encode(asked, add_special_tokens=False, return_tensors="pt")
    said = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=new_tokens, do_sample=False)
    return str(tokenizer.decode(said[0, ids.shape[1] :], skip_special_tokens=True)).strip()


@pytest.mark.parametrize(("stop_id", "problem"), [(STOP, ""), (4, "cut off after 64 tokens")], ids=["ended", "cut"])
def test_local_writes_what_transformers_would_and_marks_cuts(tmp_path: Path, stop_id: int, problem: str) -> None:
    folder = tiny_folder(tmp_path / "judge", max_position_embeddings=256, stop_ids=(stop_id,))
    judge = Local(model=str(folder), way="generate")
    judge.prepare(PLACE)
    reply = judge.ask(CHAT, 0)
    assert reply.text == written(folder, judge.reply_limit) and reply.text
    assert (reply.problem, judge.ask(CHAT, 1).text) == (problem, reply.text)


def test_local_draws_another_reply_at_each_try_where_it_has_a_temperature(tmp_path: Path) -> None:
    judge = Local(model=str(judge_folder(tmp_path / "judge")), way="generate", temperature=1.0)
    judge.prepare(PLACE)
    assert len({judge.ask(CHAT, 0).text for _ in range(3)}) == 3


def test_local_loads_no_weights_before_it_is_to_be_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache is replayed, and an estimate made, without them."""
    folder = judge_folder(tmp_path / "judge")
    truth = Target.load(folder).weights_sha256
    monkeypatch.setattr(Target, "load", None)
    judge = Local(model=str(folder))
    judge.prepare(PLACE)
    assert judge.model_id == f"judge@{truth[:16]}" and judge.prompt_tokens(CHAT) > 0


def test_local_is_another_judge_where_its_folder_holds_another_model(tmp_path: Path) -> None:
    """Its replies are kept by this name, and must not be taken for those of other weights."""
    names = []
    for seed in (0, 0, 1):
        judge = Local(model=str(tiny_folder(tmp_path / "judge", seed=seed)))
        judge.prepare(PLACE)
        names.append(judge.model_id)
    assert names[0] == names[1] != names[2] and all(name.startswith("judge@") for name in names)


def test_local_is_named_by_its_gguf_file_without_its_folder(tmp_path: Path) -> None:
    judge = Local(model=str(tmp_path / "judge.gguf"))
    (tmp_path / "judge.gguf").touch()
    judge._sha256 = "ab" * 32  # as if prepared
    assert judge.model_id == f"judge.gguf@{'ab' * 8}"


def test_local_is_known_by_its_tensors_where_no_file_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    judge = Local(model=str(tiny_folder(tmp_path / "judge")))
    monkeypatch.setattr("benchctl.judges.local.files_sha256", lambda path: "")
    judge.prepare(PLACE)
    assert judge.model_id == f"judge@{Target.load(tmp_path / 'judge').weights_sha256[:16]}"


@pytest.mark.parametrize(
    ("model", "id", "facts"),
    [("", "no_judge_model", ("--model", "ref-dense")), ("nowhere", "unknown_model", ("'nowhere'",))],
)
def test_local_refuses_a_judge_that_is_not_there(model: str, id: str, facts: Sequence[str]) -> None:
    with refused(id, *facts):
        Local(model=model).prepare(PLACE)
