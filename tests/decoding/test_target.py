"""Loading a target from a folder: its facts, its text, where its answers end; and what is said when that fails."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from refusals import refused
from safetensors.torch import load_file
from tiny import VARIANTS, tiny_folder, tiny_target, tiny_tokenizer
from tokenizers.processors import TemplateProcessing
from transformers import AddedToken, GenerationConfig

from benchctl.decoding.model import tokenizer
from benchctl.decoding.model.loading import files_sha256
from benchctl.decoding.model.target import Target
from benchctl.decoding.model.tokenizer import TargetTokenizer, load_tokenizer

MESSAGES = [{"role": "user", "content": "Once upon"}, {"role": "assistant", "content": "a time"}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("models") / "chat")


def test_a_folder_becomes_a_target_with_its_facts(folder: Path) -> None:
    target = Target.load(folder)
    info = target.info
    assert (info.family, info.layers, info.hidden_size, info.context_tokens) == ("llama", 3, 32, 128)
    assert info.vocabulary == target.vocabulary == target.tokenizer.vocabulary == 320
    assert target.parameters == 52960
    assert target.dtype == torch.float32


def test_a_conversation_is_written_by_the_chat_template_once_and_asks_for_an_answer(folder: Path) -> None:
    tokenizer = load_tokenizer(folder)
    ids = tokenizer.encode_chat(MESSAGES)
    assert ids[0] == 1
    assert ids.count(1) == 1
    whole = tiny_tokenizer().decode(ids)
    assert whole == "<s><|user|>Once upon\n<|assistant|>a time\n<|assistant|>"
    assert tokenizer.decode_text(ids) == "Once upon\na time\n"


def test_a_chat_template_that_asks_for_the_date_gets_the_same_every_day(folder: Path) -> None:
    """Else a run that is resumed the next day holds answers to other prompts against its baseline."""
    tokenizer = load_tokenizer(folder)
    for form, date in (("%d %b %Y", "26 Jul 2024"), ("%Y-%m-%d", "2024-07-26"), ("%A, %B %d", "Friday, July 26")):
        tokenizer._tokenizer.chat_template = template = (
            f"{{% set date = strftime_now(format='{form}') %}}{{{{ date }}}}"
        )
        assert tokenizer.encode_chat(MESSAGES) == tokenizer.encode_text(date)
        # Runs of versions that wrote today's date had other prompts.
        assert tokenizer.chat_template_sha256 != hashlib.sha256(template.encode()).hexdigest()


@pytest.mark.parametrize("chat", [True, False])
@pytest.mark.parametrize("adds", [True, False])
def test_the_first_token_is_written_by_the_template_or_else_by_the_tokenizer(
    tmp_path: Path, chat: bool, adds: bool
) -> None:
    """Base models whose tokenizer names a first token but does not add it, as OLMo's, read it before each prompt.
    Their answers differed from those of transformers' generate(**tokenizer(prompt))."""
    theirs = tiny_tokenizer(chat=chat)
    if adds:
        first = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
        theirs.backend_tokenizer.post_processor = first
    theirs.save_pretrained(tiny_folder(tmp_path, chat=chat))
    tokenizer = load_tokenizer(tmp_path)
    ids = tokenizer.encode_chat(MESSAGES)
    if chat:
        assert ids == theirs.apply_chat_template(MESSAGES, add_generation_prompt=True, return_dict=False)
    else:
        assert ids == theirs("Once upon\n\na time")["input_ids"]
    assert (ids[0] == 1, ids.count(1)) == ((True, 1) if chat or adds else (False, 0))
    assert (tokenizer.chat_template_sha256 == "") is not chat


@pytest.mark.parametrize("text", ["two  spaces", "é ∑ 🦉", "</s> is no token of the text", "tab\tand\nline"])
def test_any_text_comes_back_as_it_was(folder: Path, text: str) -> None:
    tokenizer = load_tokenizer(folder)
    ids = tokenizer.encode_chat([{"role": "user", "content": text}])
    assert tokenizer.decode_text(ids).replace("</s>", "") == text.replace("</s>", "") + "\n"


def test_stop_ids_come_from_the_generation_configuration_first(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "model", stop_ids=(2, 5))
    assert load_tokenizer(folder).stop_ids == {2, 5}
    assert Target.load(folder).stop_ids == {2, 5}


def test_stop_ids_fall_back_to_the_model_s_configuration_and_then_to_the_tokenizer(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "model", eos_token_id=4)
    (folder / "generation_config.json").unlink()
    assert load_tokenizer(folder).stop_ids == {4}
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "eos_token_id": None}))
    assert load_tokenizer(folder).stop_ids == {2}


def ends_turns_with(folder: Path, end: str) -> Path:
    """The folder with a chat template that ends an answer so."""
    template = f"{{% for message in messages %}}{{{{ message['content'] }}}}{end}{{% endfor %}}"
    (folder / "chat_template.jinja").write_text(template)
    return folder


def test_stop_ids_of_a_folder_are_those_of_generate_also_where_the_template_ends_turns_with_another(
    tmp_path: Path,
) -> None:
    """Fine-tunes often keep the generation configuration of their base model, so that answers run past the turn's end.
    So they do in transformers; nothing said so."""
    folder = tiny_folder(tmp_path, stop_ids=(4,))
    for end, missing in (
        ("</s>", (2, "</s>")),
        (" </s>\n<pad>", (2, "</s>")),
        ("<|user|>", None),
        ("\n", None),
        ("{{ raise_exception('no') }}", None),
    ):
        tokenizer = load_tokenizer(ends_turns_with(folder, end))
        assert tokenizer.stop_sources == {4: "generation_config.json"}
        assert tokenizer.missing_stop == missing
    (folder / "generation_config.json").unlink()
    assert load_tokenizer(folder).stop_sources == {2: "config.json"}


def test_settings_that_change_greedy_text_are_known(tmp_path: Path) -> None:
    """Qwen2.5 is published with a repetition penalty of 1.1, which generate applies to greedy text too.
    Its answers differed from those of generate, and nothing said why."""
    folder = tiny_folder(tmp_path)
    assert load_tokenizer(folder).ignored_settings == ()
    neutral = {"repetition_penalty": 1.0, "no_repeat_ngram_size": 0, "num_beams": 1, "suppress_tokens": []}
    sampled = {"do_sample": True, "temperature": 0.7, "top_p": 0.8, "top_k": 20}
    for settings, expected in (
        ({**neutral, **sampled}, ()),
        ({"repetition_penalty": 1.1, **sampled}, ("repetition_penalty 1.1",)),
        ({"min_new_tokens": 3, "suppress_tokens": [7]}, ("min_new_tokens 3", "suppress_tokens")),
    ):
        GenerationConfig(**settings).save_pretrained(folder)  # type: ignore[no-untyped-call]
        assert load_tokenizer(folder).ignored_settings == expected


def test_a_target_without_a_tokenizer_has_no_stop_ids_and_says_so_when_asked_for_text() -> None:
    target = tiny_target("llama")
    assert target.stop_ids == frozenset()
    with refused("no_tokenizer"):
        _ = target.tokenizer


def test_a_missing_folder_is_named_with_a_hint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub's own client used to try again for half a minute before it said that there was no network."""
    monkeypatch.setattr(tokenizer, "hub_reachable", lambda: False)
    with refused("unknown_model", "nowhere", "benchctl list models"):
        Target.load(tmp_path / "nowhere")


def test_a_folder_without_weights_is_named(folder: Path, tmp_path: Path) -> None:
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    with refused("model_not_loadable", str(tmp_path)):
        Target.load(tmp_path)


@pytest.mark.parametrize(
    ("name", "kept_bytes"),
    [
        ("model.safetensors", 5000),
        ("tokenizer.json", 1),
        ("config.json", 1),
        # Without a generation configuration answers would end elsewhere than where their authors meant.
        ("generation_config.json", 1),
    ],
)
def test_a_file_cut_short_is_an_error(name: str, kept_bytes: int, tmp_path: Path) -> None:
    file = tiny_folder(tmp_path) / name
    file.write_bytes(file.read_bytes()[:kept_bytes])
    with refused("model_not_loadable", str(tmp_path)):
        Target.load(tmp_path)
    if name != "model.safetensors":
        with refused("model_not_loadable", str(tmp_path)):
            load_tokenizer(tmp_path)


def test_missing_weights_are_not_made_up(tmp_path: Path) -> None:
    """transformers fills a layer that the file lacks with random numbers, and only logs it."""
    config = tiny_folder(tmp_path) / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "num_hidden_layers": 4}))
    with refused("weights_do_not_fit", "lacks 9 weights", "model.layers.3.input_layernorm"):
        Target.load(tmp_path)


@pytest.mark.parametrize("family", VARIANTS)
def test_every_family_loads_from_a_folder(family: str, tmp_path: Path) -> None:
    """Tied heads and fused experts are stored under other names than they are held."""
    target = Target.load(tiny_folder(tmp_path, family), dtype="float64")
    made = tiny_target(family, vocab_size=320)
    torch.testing.assert_close(target.next_logits([1, 7, 300]), made.next_logits([1, 7, 300]), rtol=0.0, atol=1e-9)


def _configure(folder: Path, **fields: object) -> Path:
    config = folder / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), **fields}))
    return folder


def test_a_quantised_checkpoint_is_refused(tmp_path: Path) -> None:
    folder = _configure(tiny_folder(tmp_path), quantization_config={"quant_method": "gptq", "bits": 4})
    with refused("quantised_checkpoint"):
        Target.load(folder)


def test_the_hash_of_weights_tells_configurations_apart_that_read_them_differently(tmp_path: Path) -> None:
    first, copy, turned = (tiny_folder(tmp_path / name) for name in ("first", "copy", "turned"))
    _configure(turned, rope_parameters={"rope_type": "default", "rope_theta": 500.0})
    assert Target.load(first).weights_sha256 == Target.load(copy).weights_sha256
    assert Target.load(first).weights_sha256 != Target.load(turned).weights_sha256


def test_hashes_tell_weights_and_vocabularies_apart(tmp_path: Path) -> None:
    chat, plain = tiny_folder(tmp_path / "chat"), tiny_folder(tmp_path / "plain", seed=1, chat=False)
    assert Target.load(chat).weights_sha256 != Target.load(plain).weights_sha256
    assert load_tokenizer(chat).sha256 == load_tokenizer(plain).sha256
    assert load_tokenizer(chat).chat_template_sha256 != load_tokenizer(plain).chat_template_sha256
    assert load_tokenizer(chat).same_vocabulary(load_tokenizer(plain))


def test_tokenizers_that_name_ids_differently_are_not_the_same(folder: Path) -> None:
    config = tiny_target("llama").config
    renamed = tiny_tokenizer()
    renamed.add_tokens(["a new word"])
    assert not load_tokenizer(folder).same_vocabulary(TargetTokenizer(renamed, config, frozenset()))


def named(extra: Sequence[str], *, special: bool = True, template: str = "") -> TargetTokenizer:
    """The tiny tokenizer with more tokens, which its chat template may contain; ids end with 2."""
    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens([AddedToken(token, special=special) for token in extra], special_tokens=special)
    tokenizer.chat_template += template
    return TargetTokenizer(tokenizer, tiny_target("llama").config, frozenset({2, 321}))


def test_reserved_special_tokens_may_have_other_names_in_a_draft_model() -> None:
    """Llama-3.2-1B was refused as the draft model of Llama-3-8B, for names of tokens that neither writes."""
    target, draft = named(["<r0>", "<r1>", "<r2>"]), named(["<pad2>", "<r1>", "<tool>"], template="<tool>")
    assert target.same_vocabulary(draft)
    assert not draft.same_vocabulary(target)  # its template writes <tool>, which the other does not know


@pytest.mark.parametrize(
    "draft",
    [
        pytest.param(named(["<r0>", "<stop2>", "<r2>"]), id="a stop token"),
        pytest.param(named(["<r0>", "<r1>"]), id="an id that the draft model lacks"),
        pytest.param(named(["<r0>", "<r1>", "<r2>", "<r3>"]), id="an id that the target lacks"),
        pytest.param(named(["<r0>", "<r1>", "word"], special=False), id="an ordinary token"),
    ],
)
def test_other_differences_of_a_draft_models_tokens_are_refused(draft: TargetTokenizer) -> None:
    assert not named(["<r0>", "<r1>", "<r2>"]).same_vocabulary(draft)


def test_hashes_without_a_folder_are_of_the_weights_in_memory() -> None:
    assert tiny_target("llama").weights_sha256 == tiny_target("llama").weights_sha256
    assert tiny_target("llama").weights_sha256 != tiny_target("llama", seed=1).weights_sha256


def test_pickled_weights_and_their_configuration_tell_targets_apart(tmp_path: Path) -> None:
    """Only matrices and gains were hashed: another rope_theta, or other biases, was the same target."""
    folders = [tiny_folder(tmp_path / str(theta), rope_theta=theta) for theta in (1e4, 1e5)]
    for folder in folders:
        torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
        (folder / "model.safetensors").unlink()
    one, other = (Target.load(folder).weights_sha256 for folder in folders)
    assert one != other and one == files_sha256(folders[0])
    (folders[0] / "pytorch_model.bin").write_bytes(b"other weights")
    assert files_sha256(folders[0]) != one
