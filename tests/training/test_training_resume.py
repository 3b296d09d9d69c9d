"""What is refused before anything is lost: another run's folder, a resume of other settings, what can never work."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
import refusals
import torch
from fixtures_training import BATCHES, CHATS, COLORS, COMMON, SHAPE, done, refused, train_tiny_target, write_data
from safetensors.torch import load_file, save_file
from tiny import tiny_folder

from benchctl.decoding.model.target import Target
from benchctl.training import distributed
from benchctl.training.checkpoint import DATA_ORDER, check_fingerprint, locked
from benchctl.training.data.chats import ChatFormat, Message
from benchctl.training.data.reading import Corpus
from benchctl.training.distributed import World
from benchctl.training.jobs import data_facts
from benchctl.training.modules import training_text
from benchctl.training.modules.frozen import find_target, load_target
from benchctl.training.modules.own_text import Answered, Answering, OwnText
from reference import model_jobs

SIZES = (*SHAPE, "--mlp", 64, "--vocabulary", 300, "--batch-tokens", 2048)
MIXTURE = (*SHAPE[2:], "--layers", 2, "--mlp", 16, "--experts", 4, "--experts-per-token", 2, "--batch-tokens", 2048)
OWN = ("--self-distil", 6, "--answer-tokens", 6)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data, a target of random weights, and a trained target, mixture, draft model and heads."""
    home = tmp_path_factory.mktemp("home")
    data = write_data(home / "data")
    tiny_folder(home / "random")
    train_tiny_target(data, home / "target")
    done(*moe(home), "--out", home / "moe")
    done(*draft(home), "--out", home / "draft")
    done(*heads(home), "--out", home / "heads")
    return home


def test_data_in_another_order_are_other_rows(home: Path) -> None:
    chat = ChatFormat.load(home / "random")
    one, other = (data_facts(Corpus([], {}, dict.fromkeys(names, "00")), chat) for names in ("ab", "ba"))
    with refusals.refused("other_training", "data order"):
        check_fingerprint(home, one, other)
    check_fingerprint(home, {name: value for name, value in one.items() if name != DATA_ORDER}, other)


def target(home: Path) -> tuple[object, ...]:
    return ("reference", "target", "--data", home / "data", "--steps", 3, *SIZES, *COMMON)


def moe(home: Path) -> tuple[object, ...]:
    return ("reference", "moe", "--model", home / "target", "--data", home / "data", "--steps", 1, *MIXTURE, *COMMON)


def draft(home: Path) -> tuple[object, ...]:
    words = ("--model", home / "random", "--data", home / "data", "--steps", 1)
    return ("train", "draft", *words, *OWN, *BATCHES, *COMMON)


def heads(home: Path) -> tuple[object, ...]:
    words = ("--model", home / "random", "--data", home / "data", "--steps", 1)
    return ("train", "medusa[heads=1]", *words, *OWN, *BATCHES, *COMMON)


def further(home: Path) -> tuple[object, ...]:
    words = ("--init-from", home / "target", "--data", home / "data", "--steps", 1, "--batch-tokens", 2048)
    return ("reference", "target", *words, *COMMON)


Words = Callable[[Path], tuple[object, ...]]
MADE: dict[str, Words] = {"target": target, "moe": moe, "draft": draft, "heads": heads}
PARTS: dict[str, Words] = {**MADE, "further": further}


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("part", "changed", "facts"),
    [
        ("target", ("--layers", 2), ("3 layers of 32, 2 heads",)),
        ("target", ("--heads", 4, "--kv-heads", 2), ("shape: ", "3 layers of 32, 2 heads, 1 key/value heads")),
        ("target", ("--vocabulary", 301), ("vocabulary asked for: 300", " 301")),
        ("target", ("--compile",), ("compiled: False", " True")),
        ("target", ("--positions", 64), ("stage 1: ",)),
        ("moe", ("--experts-per-token", 1), ("4 experts of 16, 2 for each token",)),
        ("moe", ("--model", "random"), ("tokenizer: ",)),
        ("draft", ("--layers", 1), ("start: ",)),
        ("draft", ("--dtype", "bfloat16"), ("target dtype: float32", " bfloat16")),
        ("draft", ("--answer-tokens", 5), ("text: 6 own answers of 6 at 0",)),
        ("draft", ("--batch-tokens", 128), ("batch_tokens: 256", " 128")),
        ("heads", ("--steps", 2), ("budget_steps: 1", " 2")),
        ("heads", ("--model", "other"), ("target: ",)),
    ],
)
def test_a_refused_resume_changes_nothing(
    home: Path, part: str, changed: tuple[object, ...], facts: tuple[str, ...]
) -> None:
    """The next Target.load once read a config.json that a refused run had written, and two layers of three."""
    if "other" in changed and not (home / "other").is_dir():
        tiny_folder(home / "other", seed=1)
    changed = tuple(home / word if word in ("random", "other") else word for word in changed)
    before = contents(home / part)
    shown = refused(*PARTS[part](home), "--out", home / part, *changed, "--resume", id="other_training")
    assert all(fact in shown for fact in facts), shown
    assert contents(home / part) == before


@pytest.mark.slow
@pytest.mark.parametrize("part", MADE)
def test_a_finished_run_takes_another_rate_and_keeps_its_weights(home: Path, part: str, tmp_path: Path) -> None:
    out = shutil.copytree(home / part, tmp_path / part)
    assert "Wrote" in done(*PARTS[part](home), "--out", out, "--rate", 1e-4, "--resume")
    weights = "modules.safetensors" if part == "heads" else "model.safetensors"
    assert (out / weights).read_bytes() == (home / part / weights).read_bytes()


def test_weights_that_the_configuration_does_not_name_are_refused(home: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(home / "random", tmp_path / "fewer")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 2}))
    for load in (Target.load, lambda path: load_target(find_target(str(path)), torch.device("cpu"), "float32")):
        with refusals.refused("weights_do_not_fit", "fewer", "model.layers.2."):
            load(folder)


def test_a_head_saved_beside_the_embedding_that_it_is_tied_to_is_no_weight_too_many(home: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(home / "target", tmp_path / "tied")
    weights = load_file(folder / "model.safetensors")
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    assert Target.load(folder).layers == 3


@pytest.mark.parametrize("name", ["README.md", "tokenizer.json", "model.safetensors", "modules.json", "checkpoints"])
@pytest.mark.parametrize("resume", [(), ("--resume",)], ids=["anew", "resume"])
def test_a_users_own_file_is_not_overwritten(home: Path, tmp_path: Path, name: str, resume: tuple[str, ...]) -> None:
    (tmp_path / name).write_text("my own")
    shown = refused(*target(home), "--out", tmp_path, *resume, id="out_not_empty")
    assert f" {name} " in shown and "--out" in shown
    assert (tmp_path / name).read_text() == "my own"
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_finished_result_without_its_checkpoints_is_not_begun_anew(home: Path, tmp_path: Path) -> None:
    """They may be deleted when a run is done."""
    out = shutil.copytree(home / "target", tmp_path / "done", ignore=shutil.ignore_patterns("step-*"))
    assert "training.json" in refused(*target(home), "--out", out, "--resume", id="out_not_empty")
    shutil.rmtree(out / "checkpoints")
    assert "training.json" in refused(*target(home), "--out", out, "--resume", id="out_not_empty")


def test_what_a_run_reads_is_not_where_it_writes(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home)
    folders = ("target", "data")
    before = {name: contents(home / name) for name in folders}
    words: list[tuple[object, ...]] = [
        (*draft(home), "--model", "./target", "--out", "target"),
        (*moe(home), "--model", home / "target", "--out", "./target"),
        (*draft(home), "--init-from", "./target", "--out", home / "target"),
        (*further(home), "--out", "target"),
        (*target(home), "--out", home / "data"),
    ]
    for each in words:
        assert "--out" in refused(*each, "--resume", id="out_not_usable")
    assert {name: contents(home / name) for name in folders} == before


@pytest.mark.slow
def test_two_runs_do_not_train_into_one_folder(home: Path, tmp_path: Path) -> None:
    def never() -> None:
        raise AssertionError

    with locked(tmp_path / ".lock", never):
        assert str(tmp_path) in refused(*target(home), "--out", tmp_path, id="folder_in_use")
    done(*target(home), "--out", tmp_path)


def test_answers_that_another_run_is_writing_are_waited_for(home: Path, tmp_path: Path) -> None:
    """The second one finds all of them written when the first lets go."""
    found = load_target(find_target(str(home / "random")), torch.device("cpu"), "float32")
    chat, shown = ChatFormat.load(home / "random"), list[str]()
    prompts = [(Message("user", f"Who is {color}?"),) for color in COLORS]
    first = OwnText(found, chat, Answering(new_tokens=4), tmp_path, lambda: 0.0)
    expected = [document.turns[0].answer.tolist() for document in first.documents(prompts, lambda answered: None)]
    whole = first.path.read_bytes()
    first.path.write_bytes(whole[:-5])  # a line that is still being written
    busy = locked(first.path.with_suffix(".lock"), lambda: None)
    waiting = threading.Event()

    def notify(notice: str) -> None:
        shown.append(notice)
        waiting.set()

    second, answered = OwnText(found, chat, Answering(new_tokens=4), tmp_path, lambda: 0.0, notify), list[Answered]()
    got: list[list[int]] = []

    def read() -> None:
        got.extend(document.turns[0].answer.tolist() for document in second.documents(prompts, answered.append))

    thread = threading.Thread(target=read)
    thread.start()
    assert waiting.wait(60)
    assert first.path.read_bytes() == whole[:-5], "what another run is writing is left alone"
    first.path.write_bytes(whole)
    busy.close()
    thread.join(60)
    assert (got, answered) == (expected, [])
    assert str(first.path) in shown[0]


TEXTS_ONLY = [{"text": "Once the dog met the cat."}]
LONG = [{"instruction": "red dog " * 18, "output": "yes"}]
ALONE, TWO = World(), World(rank=0, size=2)


@pytest.mark.parametrize(
    ("part", "records", "world", "changed", "id", "facts"),
    [
        ("heads", TEXTS_ONLY, ALONE, (), "chats_missing", ("--self-distil 0",)),
        ("heads", LONG, ALONE, (), "rows_too_short", ("64 tokens",)),
        ("draft", LONG, ALONE, ("--self-distil", 0), "rows_too_short", ("64 tokens",)),
        ("draft", CHATS, ALONE, ("--init-from", "scratch", "--heads", 5), "shapes_do_not_fit", ("--heads 5",)),
        ("draft", CHATS, ALONE, ("--answer-tokens", 500), "answers_too_long", ("500 tokens",)),
        ("draft", CHATS, TWO, ("--batch-tokens", 128), "uneven_batches", ("2 processes",)),
        ("heads", CHATS, TWO, ("--batch-tokens", 128), "uneven_batches", ("2 processes",)),
        ("moe", CHATS, TWO, (), "uneven_batches", ("2 processes",)),
        ("further", CHATS, TWO, (), "uneven_batches", ("2 processes",)),
    ],
)
def test_what_can_never_work_is_refused_before_a_model_is_loaded(
    home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    part: str,
    records: list[dict[str, str]],
    world: World,
    changed: tuple[object, ...],
    id: str,
    facts: tuple[str, ...],
) -> None:
    for place in (training_text, model_jobs):
        monkeypatch.setattr(place, "load_target", None)
    monkeypatch.setattr(distributed, "joined", lambda device: nullcontext(world))
    data = tmp_path / "data"
    data.mkdir()
    shutil.copy(home / "data" / "val.jsonl", data)
    (data / "train.jsonl").write_text("\n".join(map(json.dumps, records)))
    words = [data if word == home / "data" else word for word in PARTS[part](home)]
    shown = refused(*words, "--out", tmp_path / "out", *changed, id=id)
    assert all(fact in shown for fact in facts), shown


def test_held_out_records_without_a_prompt_cannot_be_answered(home: Path, tmp_path: Path) -> None:
    (tmp_path / "chats.jsonl").write_text("\n".join(map(json.dumps, CHATS)))
    (tmp_path / "texts_val.jsonl").write_text("\n".join(map(json.dumps, TEXTS_ONLY)))
    words = [tmp_path if word == home / "data" else word for word in heads(home)]
    assert "_val" in refused(*words, "--out", tmp_path / "out", id="chats_missing")
