"""Labels to methods, on a package of fake methods."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from refusals import refused

from benchctl import registry
from benchctl.records.labels import current_label, note_rename
from benchctl.registry import Label, parse_label

TWO_STEP = '''
from __future__ import annotations
from dataclasses import dataclass, field
from typing import Literal

@dataclass(frozen=True)
class Helper:
    """Not the method."""

@dataclass
class TwoStep:
    """Takes two steps at a time."""

    draft_tokens: int = 4
    threshold: float = 0.5
    mode: Literal["exit", "draft"] = "exit"
    heads: int | None = None
    adaptive: bool = False
    model: str = ""
    state: list[int] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        if self.draft_tokens < 1:
            raise ValueError("draft_tokens must be at least 1")
'''


@pytest.fixture(autouse=True)
def fakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package of two built-in methods, and a distribution that announces two more."""
    folder = tmp_path / "fake_methods"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "_shared.py").write_text("")
    (folder / "two_step.py").write_text(TWO_STEP)
    (folder / "misnamed.py").write_text("class Other:\n    pass\n")
    (folder / "plain.py").write_text("class Plain:\n    pass\n")
    (tmp_path / "elsewhere.py").write_text(TWO_STEP.replace("TwoStep", "Elsewhere"))
    distribution = tmp_path / "elsewhere-1.0.dist-info"
    distribution.mkdir()
    (distribution / "METADATA").write_text("Metadata-Version: 2.1\nName: elsewhere\nVersion: 1.0\n")
    (distribution / "entry_points.txt").write_text(
        "[fake_methods]\nfar_step = elsewhere:Elsewhere\nbroken = elsewhere:Missing\ntwo_step = elsewhere:Elsewhere\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(registry, "METHODS", "fake_methods")
    registry._plugins.cache_clear()
    yield
    registry._plugins.cache_clear()
    for name in [name for name in sys.modules if name.split(".")[0] in ("fake_methods", "elsewhere")]:
        del sys.modules[name]


def options_of(label: str) -> dict[str, object]:
    return {name: value for name, value in vars(registry.build(label)).items() if name != "state"}


def test_a_label_is_a_name_and_options_in_brackets() -> None:
    label = Label("two_step", (("model", "some/folder"), ("heads", "3")))
    assert parse_label("two_step") == parse_label("two_step[]") == Label("two_step")
    assert parse_label(" two_step[model=some/folder, heads=3] ") == label
    assert label.text == "two_step[model=some/folder,heads=3]"


@pytest.mark.parametrize(
    "text", ["", "two step", "two_step[heads]", "two_step[heads=]", "two_step[=3]", "two_step[a=1", "[a=1]"]
)
def test_what_is_no_label_is_answered_with_an_example(text: str) -> None:
    with refused("bad_label", "two_model[draft_tokens=5]"):
        parse_label(text)


def test_names_come_from_files_and_from_other_distributions() -> None:
    assert registry.builtin_names() == ("misnamed", "plain", "two_step")
    assert registry.names(registry.METHODS) == ("broken", "far_step", "misnamed", "plain", "two_step")


def test_a_package_is_a_method_and_a_folder_without_init_is_none(tmp_path: Path) -> None:
    """A deleted package leaves its __pycache__ behind."""
    for name in ("three_step", "deleted", "__pycache__"):
        (tmp_path / "fake_methods" / name / "__pycache__").mkdir(parents=True)
    source = TWO_STEP.replace("TwoStep", "ThreeStep")
    (tmp_path / "fake_methods" / "three_step" / "__init__.py").write_text("from .steps import ThreeStep")
    (tmp_path / "fake_methods" / "three_step" / "steps.py").write_text(source)
    assert registry.builtin_names() == ("misnamed", "plain", "three_step", "two_step")
    assert registry.build("three_step[heads=2]").heads == 2  # type: ignore[attr-defined]


@pytest.mark.parametrize(("module", "changed"), [("mine.core", True), ("mine.deep.core", True), ("core", False)])
def test_the_hash_of_a_method_is_of_its_file_or_of_all_files_of_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, changed: bool
) -> None:
    """Also where the class is in another file of the package than the first."""
    core, helper = tmp_path / ("deep" if "deep" in module else "") / "core.py", tmp_path / "helper.py"
    core.parent.mkdir(exist_ok=True)
    core.write_text("core")
    helper.write_text("first")
    holder = ModuleType(f"benchctl.methods.{module}")
    holder.__file__ = str(core)
    monkeypatch.setitem(sys.modules, holder.__name__, holder)
    monkeypatch.setattr(registry, "method_class", lambda name: type("Mine", (), {"__module__": holder.__name__}))
    before = registry.source_sha256("mine")
    helper.write_text("second")
    assert (registry.source_sha256("mine") != before) == changed


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("m2r2[mode=speculative,width=3]", "m2r2[width=3]"),
        ("m2r2[mode=dynamic]", "m2r2_dynamic"),
        ("m2r2[modules=a,mode=aot,spare=1]", "m2r2_prefetch[modules=a,spare=1]"),
        ("m2r2[mode=dynamic|aot]", "m2r2[mode=dynamic|aot]"),
        ("m2r2[width=3]", "m2r2[width=3]"),
    ],
)
def test_a_label_of_version_0_1_is_read_as_todays_and_the_new_one_is_printed_once(
    old: str, new: str, capsys: pytest.CaptureFixture[str]
) -> None:
    current_label.cache_clear()
    note_rename.cache_clear()
    assert parse_label(old).text == parse_label(old).text == new
    printed = capsys.readouterr().err
    assert printed.count("\n") == (old != new) and (old == new or new.partition("[")[0] in printed)


def test_naming_methods_imports_none_of_them_and_a_built_in_wins_over_another_distribution() -> None:
    registry.names(registry.METHODS)
    assert not {"fake_methods.two_step", "elsewhere"} & set(sys.modules)
    method = registry.method_class("two_step")
    assert (method.__name__, method.__module__) == ("TwoStep", "fake_methods.two_step")
    assert registry.method_class("far_step").__module__ == "elsewhere"


@pytest.mark.parametrize(
    ("label", "id", "facts"),
    [
        ("two_stop", "unknown_method", ("'two_stop'", "'two_step'", "broken, far_step")),
        ("misnamed", "no_class_of_name", ("methods/misnamed.py", "Misnamed")),
        ("plain", "no_dataclass", ("'plain'", "@dataclass")),
        ("broken", "broken_plugin", ("'broken'", "elsewhere:Missing")),
        ("two_step[heads=1,heads=2]", "repeated_option", ("'heads'",)),
        (
            "two_step[tokens=3]",
            "unknown_option",
            ("'tokens'", "draft_tokens=4, threshold=0.5, mode=exit, heads=none, adaptive=false, model="),
        ),
        ("two_step[state=3]", "unknown_option", ("'state'",)),  # __init__ does not take it
        ("two_step[draft_tokens=0]", "bad_option_value", ("two_step[draft_tokens=0]", "at least 1")),
    ],
)
def test_what_cannot_be_built_is_refused_with_what_can(label: str, id: str, facts: tuple[str, ...]) -> None:
    with refused(id, *facts):
        registry.build(label)


def test_options_are_converted_to_the_types_of_the_fields() -> None:
    label = "two_step[draft_tokens=7,threshold=1,mode=draft,heads=3,adaptive=true,model=some/folder]"
    numbers = {"draft_tokens": 7, "threshold": 1.0, "heads": 3}
    assert options_of(label) == {**numbers, "mode": "draft", "adaptive": True, "model": "some/folder"}
    assert isinstance(options_of(label)["threshold"], float)
    assert options_of("two_step[heads=none]")["heads"] is None


@pytest.mark.parametrize(
    ("option", "kind"),
    [
        ("draft_tokens=many", "a whole number"),
        ("draft_tokens=2.5", "a whole number"),
        ("draft_tokens=none", "a whole number"),
        ("threshold=nan", "a number"),
        ("threshold=inf", "a number"),
        ("threshold=high", "a number"),
        ("mode=both", "exit or draft"),
        ("heads=few", "a whole number or none"),
        ("adaptive=perhaps", "true or false"),
    ],
)
def test_a_value_that_does_not_fit_names_the_option_and_what_it_takes(option: str, kind: str) -> None:
    name, _, value = option.partition("=")
    with refused("bad_option_value", "two_step", f"'{name}'", f"'{value}'", f" {kind}."):
        registry.build(f"two_step[{option}]")


@pytest.mark.parametrize(
    ("asked", "canonical"),
    [
        ("two_step", "two_step"),
        ("two_step[draft_tokens=4]", "two_step"),
        ("two_step[heads=03,threshold=0.50,draft_tokens=2]", "two_step[draft_tokens=2,heads=3]"),
        ("two_step[adaptive=TRUE]", "two_step[adaptive=true]"),
    ],
)
def test_the_canonical_label_keeps_only_changed_options_in_the_order_declared(asked: str, canonical: str) -> None:
    method = registry.build(asked)
    assert registry.canonical_label(method, parse_label(asked)) == canonical
    assert options_of(canonical) == options_of(asked)


def test_all_is_every_built_in_and_repetitions_are_dropped() -> None:
    labels = registry.split_labels(["two_step[heads=3]", "all", "two_step"])
    assert labels == ("two_step[heads=3]", "misnamed", "plain", "two_step")


def test_a_sweep_is_every_combination_of_its_alternatives() -> None:
    assert registry.expand_sweep("two_step[heads=1|2 | 2,threshold=0.5,draft_tokens=3|4]") == tuple(
        f"two_step[heads={heads},threshold=0.5,draft_tokens={tokens}]" for heads in (1, 2) for tokens in (3, 4)
    )


def test_a_sweep_can_go_in_steps() -> None:
    """In decimals: 0.5 + 4 * 0.1 in floats is 0.9, but 0.1 + 2 * 0.1 would be 0.30000000000000004."""
    labels = registry.expand_sweep("two_step[threshold=0.1:0.35:0.1|0.9,heads=2]")
    assert [parse_label(label).options[0][1] for label in labels] == ["0.1", "0.2", "0.3", "0.9"]
    assert len(registry.expand_sweep("early_exit[threshold=0.5:0.95:0.05]")) == 10
    for steps in ("0.5:0.4:0.1", "0:1:0", "0:1:-0.5", "0:1000:1"):
        with refused("bad_sweep", steps, "100"):
            registry.expand_sweep(f"two_step[threshold={steps}]")


def test_a_sweep_tries_the_alternatives_of_a_part_of_a_label() -> None:
    """They were split in the middle of the part, and gave labels with half of its brackets."""
    wanted = [f"combine[first={first},then=two_step[heads={heads}]]" for first in ("a", "b[x=1]") for heads in (2, 4)]
    assert registry.expand_sweep("combine[first=a|b[x=1],then=two_step[heads=2|4]]") == tuple(wanted)
    assert registry.expand_sweep("combine[then=two_step[heads=1:3:2]]")[1] == "combine[then=two_step[heads=3]]"


@pytest.mark.parametrize(
    "text",
    [
        *("two_step", "two_step[heads=2]", "two_step[heads=2|]", "two_step[heads=|2]", "two_step[heads=2|2]"),
        *("combine[then=two_step[heads=2]]", "combine[then=two_step[heads=2|]]"),
    ],
)
def test_a_sweep_of_nothing_is_refused(text: str) -> None:
    with refused("bad_sweep", f"'{text}'"):
        registry.expand_sweep(text)


def test_a_label_has_names_in_place_of_the_paths_of_folders_and_model_files(tmp_path: Path) -> None:
    """The path of a GGUF file, with the user's name in it, stood in scores and in trained modules."""
    (tmp_path / "judge").mkdir()
    (tmp_path / "judge.gguf").touch()
    models = (str(tmp_path / "judge"), str(tmp_path / "judge.gguf"), "owner/name")
    shown = [Label("local", (("model", model), ("way", "generate"))).without_places.text for model in models]
    assert shown == [f"local[model={name},way=generate]" for name in ("judge", "judge.gguf", "owner/name")]


def test_the_shipped_methods_are_those_that_git_has_in_methods(root: Path) -> None:
    """A file that a user puts there is a plug-in: `run` states what doctor found about it."""
    if not (root / ".git").exists():
        pytest.skip("only a clone knows which files are its own")
    listed = subprocess.run(["git", "ls-files", "methods"], cwd=root, capture_output=True, text=True, check=True)
    names = {line.split("/")[1].removesuffix(".py") for line in listed.stdout.split()}
    assert names - {"__init__"} == registry.SHIPPED


def test_what_doctor_found_holds_for_the_code_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = tmp_path / "repeat.py"
    code.write_text("first")
    monkeypatch.setenv("BENCHCTL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(registry, "source_sha256", lambda name: code.read_text())
    assert (registry.doctor_result("repeat", "repeat"), registry.doctor_result("medusa", "medusa")) == ("never", "")
    registry.note_examined("repeat", "repeat", passed=True)
    assert registry.doctor_result("repeat", "repeat") == "passed"
    with monkeypatch.context() as later:
        later.setattr(registry, "__version__", "99")  # its loop may be another one
        assert registry.doctor_result("repeat", "repeat") == "never"
    code.write_text("second")
    assert registry.doctor_result("repeat", "repeat") == "never"
    registry.note_examined("repeat", "repeat", passed=False)
    assert registry.doctor_result("repeat", "repeat") == "failed"


def test_what_doctor_found_of_one_label_does_not_hide_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A label that failed was recorded as passed once another label of the same code passed."""
    monkeypatch.setenv("BENCHCTL_CACHE", str(tmp_path))
    monkeypatch.setattr(registry, "source_sha256", lambda name: "0" * 64)
    registry.note_examined("repeat", "repeat[k=2]", passed=False)
    registry.note_examined("repeat", "repeat", passed=True)
    found = [registry.doctor_result("repeat", label) for label in ("repeat[k=2]", "repeat", "repeat[k=3]")]
    assert found == ["failed", "passed", "failed"]
