"""Heads as others publish them: read, held to a plain reimplementation, and refused where they do not fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fixtures_run import make_folder, make_settings, measure_file
from oracles import heads_drafter, replay_tree
from published import Change, Weights, changed, folder_of, without
from refusals import refused
from runs import answer, generate, pair, prompt_of, rounds_of
from tiny import tiny_target
from torch import Tensor

from benchctl.decoding.model.target import Target
from benchctl.decoding.modules.folders import modules_sha256
from benchctl.errors import UserError
from benchctl.measuring.check import Models, choose_methods
from benchctl.measuring.settings import RepeatSettings
from benchctl.methods.medusa import Medusa
from benchctl.methods.medusa.heads import Heads
from benchctl.methods.medusa.published import read_published

SAFETENSORS, PICKLE = "medusa_lm_head.safetensors", "medusa_lm_head.pt"
WIDTHS = (3, 2, 2)


def made(target: Target, heads: int, blocks: int, seed: int = 0, shared: bool = False) -> Weights:
    """Weights under published names, in float32; LM heads near the target's, so that some drafts are right.

    ``shared``: of the second form, which has none.
    """
    lm_head = target.lm_head.weight.double()
    vocabulary, width = lm_head.shape
    noise = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=noise, dtype=torch.float64)

    weights = {}
    for head in range(heads):
        for block in range(blocks):
            weights[f"{head}.{block}.linear.weight"] = random(width, width) / width**0.5
            weights[f"{head}.{block}.linear.bias"] = random(width)
        if not shared:
            weights[f"{head}.{blocks}.weight"] = lm_head + 0.5 * lm_head @ random(width, width) / width**0.5
    return {name: weight.float().contiguous() for name, weight in weights.items()}


def published(folder: Path, weights: Weights, file: str = SAFETENSORS, **told: Any) -> str:
    """A folder of them with the config.json of such folders."""
    config = {"base_model_name_or_path": "lmsys/vicuna-7b-v1.3", "medusa_num_heads": 2, "medusa_num_layers": 1, **told}
    return folder_of(folder, weights, config, file)


def plain(weights: Mapping[str, Tensor], head: int, blocks: int, final: Tensor, shared: Tensor | None = None) -> Tensor:
    """What the head says of one state, as the format is documented: blocks x + SiLU(W x + b), then an LM head."""
    x = final.double()
    for block in range(blocks):
        grown = weights[f"{head}.{block}.linear.weight"].double() @ x + weights[f"{head}.{block}.linear.bias"].double()
        x = x + grown * torch.sigmoid(grown)
    return (weights[f"{head}.{blocks}.weight"].double() if shared is None else shared) @ x


@pytest.mark.parametrize(
    ("blocks", "file", "shared"),
    [
        (1, SAFETENSORS, False),
        (1, PICKLE, False),
        (3, SAFETENSORS, False),
        (2, PICKLE, False),
        (1, SAFETENSORS, True),
        (2, PICKLE, True),
    ],
)
def test_published_heads_take_the_steps_of_a_plain_reimplementation(
    blocks: int, file: str, shared: bool, tmp_path: Path
) -> None:
    """With biases and with several blocks; of more heads the first three are asked for.

    Those of the second form share the target's LM head; config.json of the authors says version 2.
    """
    models, heads = pair("llama"), 4 if shared else 5
    told: dict[str, Any] = {"medusa_num_layers": blocks, "medusa_num_heads": heads}
    if shared:
        told["version"] = "2"
    weights = made(models.target, heads, blocks, shared=shared)
    form: Any = "shared" if shared else "own"
    method = Medusa(modules=published(tmp_path, weights, file, **told), heads=3, head=form, tree="3x2x2")
    method.prepare(models.target)
    got = generate(method, models, prompt_of(13))
    text = answer("llama", 0, 13)
    assert list(got.token_ids) == text
    lm_head = models.target.lm_head.weight if shared else None
    draft = heads_drafter(
        models.naive, WIDTHS, lambda final: [plain(weights, head, blocks, final, lm_head) for head in range(3)]
    )
    assert rounds_of(got) == (expected := replay_tree(prompt_of(13), text, len(text), draft))
    assert any(accepted > 0 for _, accepted in expected)


def test_the_form_of_published_heads_must_be_the_one_asked_for(tmp_path: Path) -> None:
    target = pair("llama").target
    for shared, form, other in ((True, "shared", "own"), (False, "own", "shared")):
        folder = published(tmp_path / form, made(target, 3, 1, shared=shared))
        with refused("trained_with_other_option", folder, f"head={form}"):
            choose_methods((f"medusa[modules={folder},head={other}]",), Models("no such model", ""))


def test_heads_of_the_second_form_are_refused_for_another_width(tmp_path: Path) -> None:
    folder = published(tmp_path, made(tiny_target(hidden_size=16), 3, 1, shared=True))
    with refused("modules_of_other_target", "0.linear.weight", "[16, 16]", "[32, 32]"):
        Medusa(modules=folder, head="shared").prepare(pair("llama").target)


@pytest.mark.parametrize("blocks", [1, 2])
@pytest.mark.parametrize("count", [1, 3])
def test_all_heads_together_say_what_each_says_alone(blocks: int, count: int) -> None:
    weights = {name: weight.double() for name, weight in made(pair("llama").target, 4, blocks).items()}
    final = torch.randn(1, 32, dtype=torch.float64)
    expected = torch.stack([plain(weights, head, blocks, final[0]) for head in range(count)])
    torch.testing.assert_close(Heads(weights, 3, "plain")(final, count), expected, rtol=1e-12, atol=1e-12)


def test_a_folder_may_hold_more_heads_than_its_configuration_tells(tmp_path: Path) -> None:
    """That of Vicuna-7B tells of two and has five."""
    models = pair("llama")
    folder = published(tmp_path, made(models.target, 5, 1), PICKLE)
    found = read_published(folder)
    assert found is not None and (found.heads, found.blocks) == (5, 1)
    Medusa(modules=folder, heads=5).prepare(models.target)


def test_other_folders_are_none_of_these(tmp_path: Path) -> None:
    assert read_published(str(tmp_path)) is None
    assert read_published(str(tmp_path / "nowhere")) is None


def test_more_heads_than_are_there_are_refused_before_any_model_is_loaded(tmp_path: Path) -> None:
    folder = published(tmp_path, made(pair("llama").target, 2, 1))
    with refused("trained_for_fewer", "heads=2", "heads=3"):
        choose_methods((f"medusa[modules={folder}]",), Models("no such model", ""))
    fitting = choose_methods((f"medusa[modules={folder},heads=2]",), Models("no such model", ""))
    assert fitting[1].unsupported == ""


def test_heads_of_another_width_or_vocabulary_are_refused_and_both_are_named(tmp_path: Path) -> None:
    models = pair("llama")
    weights = made(models.target, 3, 1)
    narrow = {name: weight[..., :16].contiguous() for name, weight in weights.items()}
    fewer = {name: weight[:20].contiguous() if ".1." in name else weight for name, weight in weights.items()}
    for name, misfit, shape in (("narrow", narrow, "[24, 16]"), ("fewer", fewer, "[20, 32]")):
        method = Medusa(modules=published(tmp_path / name, misfit))
        with refused("modules_of_other_target", "vicuna-7b-v1.3", shape, "[24, 32]"):
            method.prepare(models.target)


@pytest.mark.parametrize(
    ("change", "id", "facts"),
    [
        (without("1.0.linear.bias"), "not_medusa_heads", ["1.0.linear.bias", "medusa_num_layers=1", "3 heads"]),
        (without("2.1.weight"), "not_medusa_heads", ["2.1.weight"]),
        (changed("0.2.weight", torch.ones(2)), "not_medusa_heads", ["0.2.weight"]),
        (
            lambda weights: {f"blocks.{name}": weight for name, weight in weights.items()},
            "not_medusa_heads",
            [" 0.0.linear.bias"],
        ),
        (changed("1.0.linear.bias", torch.ones(3)), "shapes_do_not_fit", ["1.0.linear.bias", "[3]", "[32]"]),
        (changed("2.1.weight", torch.ones(24, 3)), "shapes_do_not_fit", ["2.1.weight", "[24, 3]", "[24, 32]"]),
    ],
)
def test_weights_of_no_heads_are_refused(change: Change, id: str, facts: Sequence[str], tmp_path: Path) -> None:
    method = Medusa(modules=published(tmp_path, change(made(pair("llama").target, 3, 1))))
    with refused(id, *facts):
        method.prepare(pair("llama").target)


@pytest.mark.parametrize(
    ("told", "lacking"), [({"medusa_num_heads": 4}, "3.0.linear.bias"), ({"medusa_num_layers": 2}, "0.1.linear.bias")]
)
def test_fewer_heads_or_blocks_than_told_are_refused(told: dict[str, Any], lacking: str, tmp_path: Path) -> None:
    folder = published(tmp_path, made(pair("llama").target, 3, 1), **told)
    with refused("not_medusa_heads", lacking):
        read_published(folder)


@pytest.mark.parametrize("config", ["", "[]", "{}", '{"medusa_num_heads": 2, "medusa_num_layers": 0}'])
def test_a_configuration_that_is_none_is_refused(config: str, tmp_path: Path) -> None:
    folder = published(tmp_path, made(pair("llama").target, 2, 1))
    (tmp_path / "config.json").write_text(config)
    with refused("file_not_readable", "config.json"):
        read_published(folder)


class Stranger:
    """Something that a pickle may ask to have made, and that must not be."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (_run_by_a_pickle, ())


def _run_by_a_pickle() -> None:
    raise AssertionError("a pickle ran code")


def test_a_file_of_strangers_runs_nothing_and_a_torn_one_is_told(tmp_path: Path) -> None:
    folder = published(tmp_path, made(pair("llama").target, 2, 1), PICKLE)
    for content in ({"0.0.linear.weight": Stranger()}, {"0.0.linear.weight": "text"}, [torch.ones(2)]):
        torch.save(content, tmp_path / PICKLE)
        with pytest.raises(UserError) as refusal:
            read_published(folder)
        assert refusal.value.id in ("unsafe_file", "file_not_readable") and PICKLE in refusal.value.message
        assert "weights_only" not in str(refusal.value)  # torch advises to unpickle the rest
    for name in (PICKLE, SAFETENSORS):
        (tmp_path / name).write_bytes(b"torn")
        with refused("file_not_readable", name):
            read_published(folder)


@pytest.mark.slow
def test_a_run_takes_published_heads_and_records_their_hash(tmp_path: Path) -> None:
    settings = make_settings(make_folder(tmp_path), tmp_path / "out.jsonl")
    heads = published(tmp_path / "heads", made(Target.load(tmp_path / "target"), 3, 1))
    asked = replace(
        settings, methods=(f"medusa[modules={heads},nodes=15]",), repeat=RepeatSettings(repeats=1, warm_up=0)
    )
    found = measure_file(asked)
    assert found.run.methods[1].modules_sha256 == modules_sha256(heads)
    rows = [row for row in found.rows if row.label.startswith("medusa")]
    assert {row.verdict for row in rows} <= {"identical", "tie"} and any(sum(row.accepted) for row in rows)


def test_the_hash_of_published_heads_tells_other_weights_and_other_settings(tmp_path: Path) -> None:
    hashes = []
    for name, seed, layers in (("a", 0, 1), ("b", 0, 1), ("c", 1, 1), ("d", 0, 2)):
        folder = published(tmp_path / name, made(pair("llama").target, 2, 1, seed), medusa_num_layers=layers)
        hashes.append(modules_sha256(folder))
    assert hashes[0] == hashes[1] and len(set(hashes)) == 3
