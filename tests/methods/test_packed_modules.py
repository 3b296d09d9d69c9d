"""Modules beside reference models: packed, or in the package, they serve a run that names none, and say so."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from fixtures_training import BATCHES, COMMON, done, refused, write_data
from safetensors.torch import load_file
from tiny import tiny_folder

from benchctl import bundled
from benchctl.analysis.comparison import compare, over
from benchctl.analysis.metrics.drafting import ACCEPTANCE_DIFFERENCE, ACCEPTANCE_RATE
from benchctl.analysis.metrics.experts import RECALL
from benchctl.decoding.modules.draft_vocabulary import read_draft_vocabulary, write_draft_vocabulary
from benchctl.measuring.check import Models, choose_methods
from benchctl.records.writer import read
from reference.pack import FILES


def _tiny(path: Path, family: str = "llama", **sizes: Any) -> None:
    """A target with all the files that a packed one has."""
    tiny_folder(path, family, max_position_embeddings=128, **sizes)
    for file in FILES:
        if not (path / file).exists():
            (path / file).write_text("{}")


def _pack(folder: Path, role: str, pack: Path) -> None:
    told = () if role == "modules" else ("--description", "A", "--data", "B")
    done("reference", "pack", "--model", folder, "--role", role, *told, "--pack", pack)
    bundled.models.cache_clear()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data, a target, a prompt and adapters of m2r2 that have learnt for a step."""
    folder = tmp_path_factory.mktemp("packed")
    write_data(folder / "data")
    for seed, name in enumerate(("tiny-target", "other")):
        _tiny(folder / name, seed=seed)
    (folder / "mine.jsonl").write_text('{"id": "a", "turns": ["red blue"]}\n')
    words = ("--model", folder / "tiny-target", "--data", folder / "data", "--out", folder / "adapters", "--steps", 1)
    assert "Wrote" in done("train", "m2r2[gates=1+2]", *words, *BATCHES, *COMMON)
    return folder


@pytest.fixture(scope="module")
def made_moe(made: Path) -> Path:
    """The same folder, with a mixture of experts and m2r2's modules for fetching its experts ahead."""
    _tiny(made / "tiny-moe", "olmoe", stop_ids=())
    words = ("--model", made / "tiny-moe", "--data", made / "data", "--out", made / "ahead", "--steps", 1)
    assert "Wrote" in done("train", "m2r2_prefetch[gates=1+2]", *words, *BATCHES, *COMMON)
    return made


@pytest.fixture
def pack(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A pack of that target alone."""
    _pack(made / "tiny-target", "target", tmp_path / "pack")
    monkeypatch.setattr(bundled, "MODELS", tmp_path / "pack")
    bundled.models.cache_clear()
    bundled._checked.cache_clear()
    yield tmp_path / "pack"
    bundled.models.cache_clear()
    bundled._checked.cache_clear()


@pytest.fixture
def pack_moe(made_moe: Path, pack: Path) -> Path:
    """The pack with the mixture of experts and its modules, which are for m2r2_prefetch alone."""
    _pack(made_moe / "tiny-moe", "moe", pack)
    _pack(made_moe / "ahead", "modules", pack)
    return pack


def _run(made: Path, out: Path, label: str) -> tuple[str, ...]:
    words = ("--bench", made / "mine.jsonl", "--out", out, "--max-new-tokens", 6, "--repeats", 1, "--warm-up", 0)
    return ("run", "--method", label, *map(str, words))


@pytest.mark.slow
def test_packed_modules_serve_a_run_that_names_none(made: Path, pack: Path, tmp_path: Path) -> None:
    _pack(made / "adapters", "modules", pack)
    done(*_run(made, tmp_path / "run.jsonl", "m2r2[gates=1+2]"))
    found = read(tmp_path / "run.jsonl")
    method = found.run.methods[1]
    assert (method.label, method.options["modules"], len(method.modules_sha256)) == ("m2r2[gates=1+2]", "", 64)
    assert {row.verdict for row in found.rows if row.label == method.label} == {"identical"}
    assert str(pack) not in (tmp_path / "run.jsonl").read_text()


@pytest.mark.slow
def test_options_that_a_label_leaves_out_are_those_of_the_training(made: Path, pack: Path, tmp_path: Path) -> None:
    """A label had to repeat the options that its modules were trained with, those of the package included."""
    named, packed = f"m2r2[modules={made / 'adapters'}]", "m2r2[draft_tokens=2]"
    _pack(made / "adapters", "modules", pack)
    for number, label in enumerate((named, packed)):
        done(*_run(made, tmp_path / f"{number}.jsonl", label))
        method = read(tmp_path / f"{number}.jsonl").run.methods[1]
        assert method.options["gates"] == "1+2" and "gates=1+2" in method.label
    other = f"m2r2[gates=1,modules={made / 'adapters'}]"
    assert "trained with gates=1+2" in refused(*_run(made, tmp_path / "other.jsonl", other))


def test_labels_name_the_options_that_run(made: Path) -> None:
    """Two of these labels were one choice: the label did not have the options of the training."""
    folder = made / "asked"
    shutil.copytree(made / "adapters", folder)
    facts = json.loads((folder / "modules.json").read_text())
    facts["asked"] |= {"draft_tokens": "4"}
    (folder / "modules.json").write_text(json.dumps(facts))
    asked = [f"m2r2[{more}modules={folder}]" for more in ("", "draft_tokens=6,", "draft_tokens=4,gates=1+2,")]
    choices = choose_methods(asked, Models("ref-dense", ""))[1:]
    assert [(choice.options["gates"], choice.options["draft_tokens"]) for choice in choices] == [("1+2", 4), ("1+2", 6)]
    assert len({choice.label for choice in choices}) == 2
    _, combined = choose_methods([f"combine[then=m2r2[draft_tokens=6,modules={folder}]]"], Models("ref-dense", ""))
    assert (combined.label, combined.options["then"]) == (f"combine[then={choices[1].label}]", choices[1].label)


@pytest.mark.parametrize(("options", "packed"), [("gates=1+2", "m2r2[gates=1+2]"), ("", "m2r2")])
def test_a_packed_card_names_the_method_and_no_folder(
    made: Path, pack: Path, tmp_path: Path, options: str, packed: str
) -> None:
    """The folder had another name in training, and a user who copied the command got an error."""
    folder = tmp_path / "second-try"
    shutil.copytree(made / "adapters", folder)
    label = f"m2r2[modules={folder.name}{',' if options else ''}{options}]"
    (folder / "README.md").write_text(f"# {folder.name}\n\n--method '{label}'\n")
    _pack(folder, "modules", pack)
    card = (pack / "tiny-target" / "modules" / "m2r2" / "README.md").read_text()
    assert card == f"# m2r2\n\n--method '{packed}'\n"


def test_modules_are_packed_for_another_method_that_uses_them(made: Path, pack: Path, tmp_path: Path) -> None:
    """m2r2_dynamic had to run with those of m2r2, whatever these were trained with."""
    own = tmp_path / "adapters"
    shutil.copytree(made / "adapters", own)
    facts = json.loads((own / "modules.json").read_text())
    facts["asked"] |= {"threshold": "0.7"}
    (own / "modules.json").write_text(json.dumps(facts))
    packing = ("reference", "pack", "--role", "modules", "--pack", pack)
    done(*packing, "--model", made / "adapters")
    assert "medusa does not use modules of m2r2" in refused(*packing, "--model", own, "--name", "medusa")
    done(*packing, "--model", own, "--name", "m2r2_dynamic")
    assert "# m2r2_dynamic\n" in (pack / "tiny-target" / "modules" / "m2r2_dynamic" / "README.md").read_text()
    bundled.models.cache_clear()
    _, shared, routed = choose_methods(["m2r2", "m2r2_dynamic[router=softmax_max]"], Models("tiny-target", ""))
    assert (shared.options["gates"], routed.options["gates"], routed.options["threshold"]) == ("1+2", "1+2", 0.7)


def test_packed_modules_are_bfloat16_and_replaced_with_their_target(made: Path, pack: Path) -> None:
    _pack(made / "adapters", "modules", pack)
    folder = pack / "tiny-target" / "modules" / "m2r2"
    assert {weight.dtype for weight in load_file(folder / "modules.safetensors").values()} == {torch.bfloat16}
    _pack(made / "tiny-target", "target", pack)
    assert not folder.exists() and bundled.modules_for("tiny-target", "m2r2") is None


def test_a_draft_vocabulary_is_packed_with_its_modules_or_its_draft_model(
    made: Path, pack: Path, tmp_path: Path
) -> None:
    for name in ("adapters", "other"):
        shutil.copytree(made / name, tmp_path / name)
        write_draft_vocabulary(tmp_path / name, torch.tensor([1, 5]))
    _pack(tmp_path / "adapters", "modules", pack)
    _pack(tmp_path / "other", "draft", pack)
    for folder in (pack / "tiny-target" / "modules" / "m2r2", pack / "other"):
        ids = read_draft_vocabulary(folder)
        assert ids is not None and ids.tolist() == [1, 5]


def test_a_target_without_packed_modules_says_how_to_train_them(made: Path, pack: Path, tmp_path: Path) -> None:
    told = refused(*_run(made, tmp_path / "run.jsonl", "m2r2"))
    assert "no trained modules; train some with: benchctl train m2r2" in told


def test_modules_of_another_target_are_not_packed(made: Path, pack: Path, tmp_path: Path) -> None:
    words = ("--role", "modules", "--pack", pack)
    assert "adapters.json" not in refused("reference", "pack", "--model", made / "other", *words)
    (pack / "tiny-target" / "config.json").write_text("{}")
    told = refused("reference", "pack", "--model", made / "adapters", *words)
    assert "made for tiny-target, which is not in" in told
    assert "needs --description and" in refused("reference", "pack", "--model", made, "--role", "draft", *words[2:])


@pytest.mark.slow
def test_modules_for_other_options_leave_a_method_out_of_all(made_moe: Path, pack_moe: Path, tmp_path: Path) -> None:
    """`run --method all` on a mixture of experts failed: m2r2 found modules there, but those of m2r2_prefetch."""
    model = ("--model", "tiny-moe", "--source", "embedded")
    done(*_run(made_moe, tmp_path / "all.jsonl", "all"), *model)
    found = {method.label: method.unsupported for method in read(tmp_path / "all.jsonl").run.methods}
    assert found["m2r2[gates=1+2]"].startswith("embedded modules: these modules have other shapes")
    assert found["expert_offload"] == ""
    assert str(pack_moe) not in (tmp_path / "all.jsonl").read_text()
    assert "have other shapes" in refused(*_run(made_moe, tmp_path / "one.jsonl", "m2r2"), *model)


PACKED = [(model.name, method) for model in bundled.models() for method in model.modules]


def _run_embedded(out: Path, *labels: str, model: str = "ref-dense", limit: int = 6) -> Path:
    methods = [word for label in labels for word in ("--method", label)]
    sizes = ("--limit", limit, "--max-new-tokens", 24, "--repeats", 1, "--warm-up", 0, "--no-watch")
    done("run", "--model", model, *methods, "--bench", "koala", "--source", "embedded", *sizes, "--out", out)
    return out


def test_the_methods_named_after_this_project_have_modules() -> None:
    assert {("ref-dense", "m2r2"), ("ref-moe", "m2r2")} <= set(PACKED)


@pytest.mark.slow
def test_the_accelerated_stream_drafts_better_than_its_exit_and_the_slow_state(tmp_path: Path) -> None:
    """By margins whose intervals exclude zero, on two dozen tokens of thirty prompts; figures: docs/m2r2.md."""
    labels = ("m2r2", "m2r2[source=exit]", "m2r2[source=slow]")
    file = read(_run_embedded(tmp_path / "drafts.jsonl", *labels, limit=30))
    assert {row.verdict for row in file.rows if row.label in labels} == {"identical"}
    for other in labels[1:]:
        figures = {method.label: method for method in compare([over(file, other)])[0].pooled.methods}
        difference = figures["m2r2"].estimate(ACCEPTANCE_DIFFERENCE)
        assert difference.interval is not None and difference.interval.low > 0
    assert (figures["m2r2"].estimate(ACCEPTANCE_RATE).value or 0) > 0.15


@pytest.mark.slow
def test_experts_are_foreseen_and_the_output_stays(tmp_path: Path) -> None:
    """Two of sixteen by chance would be an eighth."""
    file = read(_run_embedded(tmp_path / "loading.jsonl", "m2r2_prefetch", model="ref-moe"))
    assert {row.verdict for row in file.rows if row.label == "m2r2_prefetch"} == {"identical"}
    (_, figures) = compare([file])[0].pooled.methods
    assert (figures.estimate(RECALL).value or 0) > 0.5
