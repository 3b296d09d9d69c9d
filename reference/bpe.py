"""The byte-level BPE tokenizer of the embedded models and its chat template, and where the turns of a chat meet.

Encoding adds no special token by itself: `<|bos|>` comes from the chat template, and a plain text document is
`<|bos|>text<|end|>` because chat.py puts them there.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from benchctl.errors import UserError
from benchctl.training.data.chats import ChatFormat, Message
from benchctl.training.data.packing import Tokens

BOS, PAD, USER, ASSISTANT, SYSTEM, END = SPECIALS = (
    "<|bos|>",
    "<|pad|>",
    "<|user|>",
    "<|assistant|>",
    "<|system|>",
    "<|end|>",
)

CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{% if message['role'] not in ['system', 'user', 'assistant'] %}"
    "{{ raise_exception('unknown role ' + message['role'] + '; use system, user or assistant') }}"
    "{% endif %}"
    "{{ '<|' + message['role'] + '|>\\n' + message['content'] | trim + '<|end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}"
)


def train_tokenizer(texts: Iterable[str], vocabulary: int = 4096) -> Tokenizer:
    """A byte-level BPE with `vocabulary` tokens at most; digits stay single so that numbers have one spelling."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(SPECIALS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def token_id(tokenizer: Tokenizer, token: str) -> int:
    """The id of a special token. Raises UserError when the tokenizer is not one of ours."""
    found = tokenizer.token_to_id(token)
    if found is None:
        raise UserError(
            "other_tokenizer", f"this tokenizer has no token {token}; use one that `python -m reference target` made"
        )
    return int(found)


def save_tokenizer(tokenizer: Tokenizer, folder: Path, positions: int) -> None:
    """Writes tokenizer.json, tokenizer_config.json, special_tokens_map.json and chat_template.jinja."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"bos_token": BOS, "eos_token": END, "pad_token": PAD}
    settings = {
        **names,
        "tokenizer_class": "PreTrainedTokenizerFast",
        "additional_special_tokens": [USER, ASSISTANT, SYSTEM],
        "clean_up_tokenization_spaces": False,
        "model_max_length": positions,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")
    (folder / "special_tokens_map.json").write_text(json.dumps(names, indent=2) + "\n")
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)


def read_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer of a model folder. Raises UserError when tokenizer.json is missing."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise UserError("no_tokenizer", f"{path}: no tokenizer here; train the target first or point to its folder")
    return Tokenizer.from_file(str(path))


def token_ids(tokenizer: Tokenizer) -> dict[str, int]:
    """As a model's configuration has them."""
    special = {"bos_token_id": BOS, "eos_token_id": END, "pad_token_id": PAD}
    return {
        "vocab_size": tokenizer.get_vocab_size(),
        **{name: token_id(tokenizer, token) for name, token in special.items()},
    }


def chat_format(tokenizer: Tokenizer, chat_template: str = CHAT_TEMPLATE) -> ChatFormat:
    """The format of a tokenizer in memory, the same as ChatFormat.load gives for the folder it is saved to."""
    wrapped = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        bos_token=BOS,
        eos_token=END,
        pad_token=PAD,
        clean_up_tokenization_spaces=False,
    )
    wrapped.chat_template = chat_template
    return ChatFormat(wrapped)


@dataclass(frozen=True)
class Joints:
    """Where the turns of a chat meet, for templates that put them one after the other.

    `opening` stands before the first turn, `opening_with_system` is the opening with a system prompt, `after` follows
    the stop token of an answer.
    """

    opening: Tokens
    opening_with_system: Tokens
    after: Tokens


def joints_of(chat: ChatFormat, system_prompt: str) -> Joints:
    """Raises UserError when the turns of this chat template do not stand one after the other."""
    user, answer = Message("user", "a"), Message("assistant", "b")
    first, whole = chat.render([user], ask=True), chat.render([user, answer], ask=False)
    second = chat.render([user, answer, user], ask=True)
    with_system = chat.render([Message("system", system_prompt), user], ask=True)
    later = second.removeprefix(whole)
    if not (
        second.startswith(whole) and first.endswith(later) and with_system.endswith(later) and whole.startswith(first)
    ):
        raise UserError(
            "unusable_chat_template",
            "the turns of this tokenizer's chat template do not stand one after the other, as the recipe of the "
            "reference models needs; train with a tokenizer that `python -m reference target` made",
        )
    answered = whole.removeprefix(first)
    opening, with_system = first.removesuffix(later), with_system.removesuffix(later)
    return Joints(*chat.encode([opening, with_system, answered.removeprefix(chat.through_stop(answered))]))
