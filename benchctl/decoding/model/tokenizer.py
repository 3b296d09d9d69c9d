"""A target's tokenizer: text to ids and back, and what the configuration says of context and stop ids."""

from __future__ import annotations

import hashlib
import json
import os
import re
import socket
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from benchctl import gguf
from benchctl.decoding.model.families import check_family, context_tokens
from benchctl.decoding.model.forms import check_adapter, check_folder
from benchctl.errors import UserError, is_out_of_memory

# Of the date that chat templates get: Friday, 26 July 2024, at noon.
_DATE = {
    **{"%Y": "2024", "%y": "24", "%m": "07", "%-m": "7", "%d": "26", "%-d": "26", "%H": "12", "%M": "00", "%S": "00"},
    **{"%B": "July", "%b": "Jul", "%A": "Friday", "%a": "Fri"},
}
_BYTE = re.compile("<0x[0-9A-F]{2}>")  # a byte in SentencePiece's vocabularies
# Settings of a generation configuration that change greedy text, with the value that changes nothing; None: any does.
_CHANGES_TEXT = {
    **dict.fromkeys(("repetition_penalty", "encoder_repetition_penalty", "guidance_scale", "num_beams"), 1),
    **dict.fromkeys(("no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "min_length", "min_new_tokens"), 0),
    **dict.fromkeys(("forced_bos_token_id", "forced_eos_token_id", "exponential_decay_length_penalty")),
    **dict.fromkeys(("suppress_tokens", "begin_suppress_tokens", "bad_words_ids", "sequence_bias")),
    **dict.fromkeys(("stop_strings", "watermarking_config")),
}
# Tokens that end a turn or a text by their name, where a GGUF file does not say so; llama.cpp ends answers at them too.
_END_NAMES = (
    *("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<end_of_turn>", "<end_of_utterance>", "[EOT]", "<EOT>"),
    *("_<EOT>", "<|endoftext|>", "<|end_of_text|>", "</s>", "[EOS]", "<｜end▁of▁sentence｜>"),
)
Message = dict[str, str]  # "role" and "content", as chat templates take them


def _byte_letters() -> dict[str, int]:
    """Byte-level tokenizers write a byte that is a printable Latin-1 letter as itself, the others as U+0100 and on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + at): byte for at, byte in enumerate(others)}


_LETTERS = _byte_letters()


class UnreadableText(UserError):
    """A text that the files of a model make no ids of: its chat template, its tokenizer or its embeddings."""


def talk(turns: Sequence[str], answers: Sequence[str]) -> list[Message]:
    """The chat of a user's turns, each but the last followed by its answer.

    >>> talk(["Hi", "Why?"], ["Hello."])
    [{'role': 'user', 'content': 'Hi'}, {'role': 'assistant', 'content': 'Hello.'}, {'role': 'user', 'content': 'Why?'}]
    """
    chat: list[Message] = []
    for asked, answer in zip(turns[:-1], answers, strict=True):
        chat += [{"role": "user", "content": asked}, {"role": "assistant", "content": answer}]
    return [*chat, {"role": "user", "content": turns[-1]}]


def tokenizer_text(tokenizer: Any) -> str:
    """All that decides how a tokenizer of transformers turns text into ids."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    return str(backend.to_str()) if backend is not None else json.dumps(tokenizer.get_vocab(), sort_keys=True)


def token_texts(tokenizer: Any) -> dict[int, bytes]:
    """The text of each token as bytes, by its id, ascending; of an added token its name.

    Byte-level tokenizers write bytes as letters, SentencePiece a space as U+2581.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    byte_level = backend is not None and "ByteLevel" in repr(backend.decoder)
    added, texts = tokenizer.added_tokens_decoder, {}
    for token, index in sorted(tokenizer.get_vocab().items(), key=lambda entry: entry[1]):
        if index in added:
            texts[index] = str(added[index]).encode()
        elif byte_level:
            texts[index] = bytes(_LETTERS[letter] for letter in token if letter in _LETTERS)
        elif _BYTE.fullmatch(token):
            texts[index] = bytes.fromhex(token[3:5])
        else:
            texts[index] = token.replace("\u2581", " ").encode()
    return texts


class TargetTokenizer:
    """Text to ids and back, with the model's configuration and its stop ids; needs no weights.

    stop_sources      where each stop id comes from
    ignored_settings  of the generation configuration: transformers' generate applies them to greedy text
    wrapper           type of the model that contains this one and reads images too; empty for a model of its own
    """

    def __init__(
        self,
        tokenizer: Any,
        config: Any,
        stop_ids: frozenset[int],
        *,
        stop_sources: Mapping[int, str] | None = None,
        ignored_settings: Sequence[str] = (),
        wrapper: str = "",
    ) -> None:
        self._tokenizer, self.wrapper = tokenizer, wrapper
        self.stop_sources, self.ignored_settings = dict(stop_sources or {}), tuple(ignored_settings)
        self.config = config
        self.context_tokens = context_tokens(config)
        self.vocabulary = int(config.vocab_size)
        self.is_encoder_decoder = bool(config.is_encoder_decoder)
        self.stop_ids = stop_ids

    def check_layers(self) -> None:
        """Raises UserError unless benchctl's own layers run this model."""
        if self.wrapper:
            raise UserError(
                "unknown_family",
                f"models of type {self.wrapper!r} read images too, and benchctl's own layers run text models alone; "
                "`benchctl run` measures their text by --executor transformers",
            )
        check_family(self.config)

    @cached_property
    def sha256(self) -> str:
        """Hash of the vocabulary and of everything else that decides how text becomes ids."""
        return hashlib.sha256(tokenizer_text(self._tokenizer).encode()).hexdigest()

    @property
    def context_limit(self) -> str:
        """The context in words, for errors; with longrope, why it is shorter than the configuration says."""
        is_cut = (getattr(self.config, "rope_parameters", None) or {}).get("rope_type") == "longrope"
        why = ", not {}, since longrope's factors for longer texts are not supported"
        return f"{self.context_tokens} tokens{why.format(self.config.max_position_embeddings) if is_cut else ''}"

    @property
    def chat_template_sha256(self) -> str:
        template = self._tokenizer.chat_template
        return hashlib.sha256(undated(str(template)).encode()).hexdigest() if template else ""

    def drafts_alike(self, other: TargetTokenizer) -> bool:
        """Whether a model with the ``other`` tokenizer drafts in this target's ids."""
        return other.sha256 == self.sha256 or self.same_vocabulary(other)

    def same_vocabulary(self, other: TargetTokenizer) -> bool:
        """Whether every id that this target may read or write means the same in both, as drafting with ``other`` needs.

        Each id must be the same token, with one exception: an id that is a special token in both may have two names if
        this target does not use it. It uses the tokens in its chat template, its first token and its stop ids. So
        Llama-3.2-1B, which names some of the reserved tokens of Llama-3-8B, drafts for it. Answers never depend on this
        check, since every draft is verified. A text that spells out an unused name is only drafted worse.
        """
        ours, theirs = (reader._tokenizer.get_vocab() for reader in (self, other))
        tokens, their_tokens = ({index: token for token, index in names.items()} for names in (ours, theirs))
        differing = {
            index for index in tokens.keys() | their_tokens.keys() if tokens.get(index) != their_tokens.get(index)
        }
        template = str(self._tokenizer.chat_template)
        return all(
            index in self._special_ids & other._special_ids
            and index not in {self.first_id, *self.stop_ids}
            and tokens[index] not in template
            for index in differing
        )

    @cached_property
    def _special_ids(self) -> frozenset[int]:
        added = self._tokenizer.added_tokens_decoder
        return frozenset(index for index, token in added.items() if token.special)

    @cached_property
    def missing_stop(self) -> tuple[int, str] | None:
        """Id and name of the token with which the chat template ends an answer, if it is no stop id."""
        end = _end_of_turn(self._tokenizer)
        return None if end is None or end in self.stop_ids else (end, self._tokenizer.convert_ids_to_tokens(end))

    @property
    def first_id(self) -> int | None:
        """The id that texts begin with, where something writes it; None where the tokenizer has none."""
        first = self._tokenizer.bos_token_id
        return None if first is None else int(first)

    @cached_property
    def token_bytes(self) -> dict[int, bytes]:
        """The text of each token that the model has: tokenizers that write spaces differently compare by it."""
        return {index: text for index, text in token_texts(self._tokenizer).items() if index < self.vocabulary}

    def encode_text(self, text: str) -> list[int]:
        """Ids of a text as it is: no template, no tokens of the tokenizer's own. Raises UnreadableText."""
        return self._encode(text, add_special_tokens=False)

    def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        """Ids of a conversation that asks for the assistant's next answer.

        Without a chat template the contents are joined by blank lines. Special tokens are those that the template
        writes or, without one, those that the tokenizer adds. Raises UnreadableText.
        """
        if self._tokenizer.chat_template:
            text = chat_text(self._tokenizer, list(messages), ask=True)
            ids = self._encode(text, add_special_tokens=False)
        else:
            ids = self._encode("\n\n".join(message["content"] for message in messages), add_special_tokens=True)
        return ids

    def _encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        with _tokenizing("read a text", text):
            ids = [int(token) for token in self._tokenizer.encode(text, add_special_tokens=add_special_tokens)]
        if unknown := [token for token in ids if token >= self.vocabulary]:
            raise UnreadableText(
                "token_without_embedding",
                f"the text that begins with {text[:60]!r} has the token {self._tokenizer.decode(unknown[:1])!r}, id "
                f"{unknown[0]}. The model cannot read it: its embeddings end at id {self.vocabulary - 1}. Change the "
                "text, or use a model whose embeddings fit its tokenizer",
            )
        return ids

    def prompt_text(self, ids: Sequence[int]) -> str:
        """Text of a prompt with its special tokens, without a first token that the tokenizer adds to every text."""
        added = self._tokenizer.encode("")[:1]
        begins = 1 if added and list(ids[:1]) == added else 0
        return str(self._tokenizer.decode(list(ids[begins:]), clean_up_tokenization_spaces=False))

    def begin_with_digit(self) -> list[int]:
        """The ids that go on with a number where one stands before them: with a digit, and no space before it."""
        tokens = self._tokenizer.convert_ids_to_tokens(list(range(min(self.vocabulary, len(self._tokenizer)))))
        return [token_id for token_id, token in enumerate(tokens) if token and token[0].isdecimal()]

    def decode_text(self, ids: Sequence[int]) -> str:
        """Text of ``ids`` without special tokens. Raises UnreadableText."""
        with _tokenizing("write an answer", list(ids)):
            return str(self._tokenizer.decode(list(ids), skip_special_tokens=True))


@contextmanager
def _tokenizing(what: str, given: str | list[int]) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # a tokenizer may be any program
        raise UnreadableText(
            "tokenizer_failed",
            f"the model's tokenizer cannot {what}, which begins with {given[:60]!r} ({type(error).__name__}: {error}). "
            "Change the text, or get the model's tokenizer again",
        ) from error


def chat_text(tokenizer: Any, messages: list[Any], ask: bool) -> str:
    """A conversation by the chat template, with the request for an answer if ``ask``. Raises UnreadableText."""
    template = undated(tokenizer.get_chat_template())
    settings = {"tokenize": False, "add_generation_prompt": ask}
    try:
        return str(tokenizer.apply_chat_template(messages, chat_template=template, **settings))
    except Exception as error:  # a template raises whatever its author or its mistakes make it raise
        raise UnreadableText(
            "refused_by_chat_template",
            f"the model's chat template refuses the chat that begins with {messages[0]['role']}: "
            f"{messages[0]['content'][:60]!r} ({error}). Change or leave out this chat, or use a model with another "
            "template",
        ) from error


def undated(template: str) -> str:
    """A template that asks for today's date, as Llama 3.2's does, with a fixed one: else prompts change by the day."""
    if "strftime_now" not in template:
        return template
    date = "".join(f"|replace('{code}', '{text}')" for code, text in _DATE.items())
    return f"{{%- macro strftime_now(format) %}}{{{{ format{date} }}}}{{% endmacro %}}{template}"


@cache
def hub_reachable() -> bool:
    """Whether the hub's name can be looked up, or a proxy does that, and HF_HUB_OFFLINE does not forbid to ask.

    The hub's own client retries for half a minute.
    """
    from transformers.utils.hub import constants, is_offline_mode  # type: ignore[attr-defined]

    if is_offline_mode():
        return False
    if any(os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")):
        return True
    try:
        socket.getaddrinfo(constants.ENDPOINT.partition("//")[2].partition("/")[0].partition(":")[0], 443)
    except OSError:
        return False
    return True


def downloaded(hub_id: str) -> Path | None:
    """The folder in which the files of a hub id were cached."""
    from transformers.utils.hub import cached_file

    config = cached_file(hub_id, "config.json")
    return Path(config).parent if config else None


def downloaded_file(hub_id: str, name: str) -> Path | None:
    """A file of a hub id, downloaded where it is not cached; None where there is none, or no network."""
    from transformers.utils.hub import cached_file

    offline = not hub_reachable()
    try:
        file = cached_file(hub_id, name, local_files_only=offline, _raise_exceptions_for_missing_entries=False)
    except OSError:  # no such id, or not cached
        return None
    return Path(file) if file else None


def text_config(whole: Any) -> Any:
    """The configuration of the part that answers, where a model reads images too; else the configuration itself."""
    config = whole.get_text_config()
    if (quantised := getattr(whole, "quantization_config", None)) is not None:
        config.quantization_config = quantised
    return config


def load_tokenizer(path: str | Path) -> TargetTokenizer:
    """Tokenizer and configuration of a folder or hub id. Raises UserError where there is none."""
    import transformers

    if Path(path).is_dir():
        check_folder(Path(path))
    elif (adapter := downloaded_file(str(path), "adapter_config.json")) is not None:
        check_adapter(path, adapter)
    whole = from_pretrained(transformers.AutoConfig, path)
    config = text_config(whole)
    tokenizer = from_pretrained(transformers.AutoTokenizer, path)
    tokenizer.model_max_length = sys.maxsize  # lengths are checked against the context, by us and with a clear error
    generation = _generation_config(path)
    stops = _stop_ids(path, generation, config, tokenizer)
    ignored = [
        f"{name} {value}" if isinstance(value, int | float) else name
        for name, neutral in _CHANGES_TEXT.items()
        if (value := getattr(generation, name, None)) not in (None, neutral, [], {})
    ]
    return TargetTokenizer(
        *(tokenizer, config, frozenset(stops)),
        stop_sources=stops,
        ignored_settings=ignored,
        wrapper="" if whole is config else whole.model_type,
    )


def from_pretrained(kind: Any, path: str | Path, **options: Any) -> Any:
    """``kind.from_pretrained``; what goes wrong is a UserError. Without network only the hub's cache is read.

    Code in a model's folder is never run, and nobody is asked whether it may be.
    """
    local = Path(path).is_dir()
    options["trust_remote_code"] = False
    if not local:
        options["local_files_only"] = not hub_reachable()
    try:
        return kind.from_pretrained(str(path), **options)
    except Exception as error:  # a broken folder raises whatever the reader of the broken file happens to raise
        if is_out_of_memory(error):
            raise
        if options.get("local_files_only"):
            raise UserError(
                "unknown_model",
                f"cannot load {path}: it is no folder here, the model hub cannot be reached (or HF_HUB_OFFLINE is "
                "set), and its cache does not hold it. Connect to the network, or name a local folder or an embedded "
                "model (benchctl list models)",
            ) from error
        if "trust_remote_code" in str(error):
            raise UserError(
                "custom_code",
                f"{path} needs program code of its own (auto_map in its config.json), which benchctl does not run. "
                "Name a model that transformers runs itself, or use an engine (benchctl list engines).",
            ) from error
        if "does not recognize this architecture" in str(error):
            raise UserError(
                "model_not_loadable",
                f"cannot load {path}: the installed transformers does not know this type of model. Update it, or "
                "measure the model with an engine (benchctl list engines)",
            ) from error
        text = textwrap.shorten(str(error), 400, placeholder=" ...") or "no reason given"
        reason = text if isinstance(error, OSError | ValueError) else f"{type(error).__name__}: {text}"
        raise UserError("model_not_loadable", f"cannot load {path}: {reason}") from error


def _generation_config(path: str | Path) -> Any:
    """The generation configuration of a folder or hub id; None where it has none. Raises UserError for a broken one."""
    from transformers import GenerationConfig

    folder = Path(path)
    if (folder / "generation_config.json").is_file():
        return from_pretrained(GenerationConfig, folder)
    if folder.is_dir():
        return None
    try:
        return GenerationConfig.from_pretrained(str(path), local_files_only=not hub_reachable())
    except OSError as error:
        reason = error.__context__  # none if the repository has no such file
        is_damaged = isinstance(reason, json.JSONDecodeError | UnicodeDecodeError)
        if is_damaged or (reason and hub_reachable()):
            again = "Try again, or set HF_HUB_OFFLINE=1 to use only what was downloaded"
            raise UserError(
                "model_not_loadable",
                f"cannot load {path}: its generation_config.json cannot be read ({str(error).splitlines()[0]}). "
                f"{'Delete it, and load the model again' if is_damaged else again}",
            ) from error
        return None


def _stop_ids(path: str | Path, generation: Any, config: Any, tokenizer: Any) -> dict[int, str]:
    """Every id that ends an answer, with where it comes from.

    The generation configuration decides, as for transformers' generate; without one the configuration, and then the
    tokenizer. A GGUF file has no generation configuration: as for llama.cpp, tokens with the name of an end are added,
    except the unknown token; and so is the token with which the chat template ends an answer.
    """
    is_gguf = generation is None and gguf.is_converted(Path(path))
    named = {
        "generation_config.json": getattr(generation, "eos_token_id", None),
        "GGUF" if is_gguf else "config.json": config.eos_token_id,
        "tokenizer": tokenizer.eos_token_id,
    }
    source, ids = next(((source, ids) for source, ids in named.items() if ids is not None), ("", []))
    stops = dict.fromkeys(ids if isinstance(ids, list) else [ids], source)
    if is_gguf:
        vocabulary = tokenizer.get_vocab()
        names = (name for name in _END_NAMES if name != tokenizer.unk_token)
        more = dict.fromkeys(map(vocabulary.get, names), "token name") | {_end_of_turn(tokenizer): "chat template"}
        # transformers adds names that the file does not have, behind its vocabulary.
        known = {index: source for index, source in more.items() if index is not None and index < config.vocab_size}
        stops = known | stops
    return stops


def _end_of_turn(tokenizer: Any) -> int | None:
    """The token with which the chat template ends an answer; None without a template, or where it writes none."""
    if not tokenizer.chat_template:
        return None
    answer = "Yes."
    messages = [{"role": "user", "content": "Is it?"}, {"role": "assistant", "content": answer}]
    try:
        _, found, end = chat_text(tokenizer, messages, ask=False).rpartition(answer)
    except Exception:  # a template may raise anything: encode_chat says what, where a prompt is written
        return None
    added = tokenizer.added_tokens_decoder
    ids = tokenizer.encode(end, add_special_tokens=False) if found else []
    return next((int(index) for index in ids if index in added), None)
