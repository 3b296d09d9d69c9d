"""The store of a target's states: what comes back is what the target made, whatever happened to the files."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from disks import largest_file
from fixtures_training import BATCHES, COMMON, done, refused, with_target
from refusals import error_of
from safetensors.torch import load_file
from tiny import tiny_folder
from torch import Tensor

from benchctl.decoding.loop import DecodeRequest, decode
from benchctl.decoding.model.target import Target
from benchctl.decoding.modules.draft_vocabulary import read_draft_vocabulary
from benchctl.decoding.modules.folders import WEIGHTS
from benchctl.decoding.modules.trainable import Trainable
from benchctl.registry import build
from benchctl.training.data.packing import Batch, PackedCorpus, Piece, batch_of, constant
from benchctl.training.modules import training_text
from benchctl.training.modules.frozen import BatchMaker, FrozenTarget, find_target, load_target
from benchctl.training.modules.job import scores_draft_vocabulary
from benchctl.training.modules.store import _ENTRY, StoredBatches, TeacherStore
from benchctl.training.modules.training_text import draft_tokens
from benchctl.training.trainer import Data

CPU = torch.device("cpu")
SIZES = ((5, 6), (9,))
TOKENS = 12
LARGE = 10**9


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> FrozenTarget:
    folder = tmp_path_factory.mktemp("target")
    tiny_folder(folder)
    return load_target(find_target(str(folder)), CPU, "float32")


def pieces(seed: int = 0) -> list[list[Piece]]:
    random = np.random.default_rng(seed)
    return [[Piece(random.integers(3, 96, size, np.uint16), constant(size, 100)) for size in sizes] for sizes in SIZES]


def batch() -> Batch:
    return batch_of(pieces(), TOKENS, pad_id=0)


def same_elsewhere() -> Batch:
    """The same documents in other rows, at other places."""
    (first, second), (third,) = pieces()
    return batch_of([[third], [second, first]], TOKENS, pad_id=0)


@contextmanager
def stored(target: FrozenTarget, folder: Path, limit: int = LARGE) -> Iterator[tuple[TeacherStore, StoredBatches]]:
    with TeacherStore(folder, target, limit, writes=True) as store:
        yield store, StoredBatches(target, store)


def standing(maker: StoredBatches, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on the target may not run."""

    def refuse(*_: Any) -> None:
        raise AssertionError("the target ran")

    monkeypatch.setattr(maker, "_states", refuse)


@pytest.mark.parametrize(
    "label",
    [
        "m2r2[gates=1]",
        "medusa[heads=2]",
        "medusa[heads=2,head=shared]",
        "early_exit[head=trained,exits=1]",
        "deed",
        "skip_decode",
    ],
)
def test_losses_and_yardsticks_from_the_store_are_those_of_the_target(
    target: FrozenTarget, label: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = build(label)
    assert isinstance(method, Trainable)
    torch.manual_seed(0)
    module = method.build(target.info, target.lm_head).eval()
    with stored(target, tmp_path) as (store, maker):
        maker(batch())
        assert len(store) == 3
        standing(maker, monkeypatch)
        live, read = BatchMaker(target.model, CPU)(same_elsewhere()), maker(same_elsewhere())
        real = live.documents >= 0
        assert torch.equal(live.teacher.top_tokens[real], read.teacher.top_tokens[real])
        torch.testing.assert_close(
            live.teacher.log_normalizers[real], read.teacher.log_normalizers[real], rtol=0, atol=1e-4
        )
        for mine, theirs in zip(read.states, live.states, strict=True):
            torch.testing.assert_close(mine[real], theirs[real], rtol=1e-3, atol=1e-3)
        tokens = live.weights.sum()
        torch.testing.assert_close(
            method.loss(module, read) / tokens, method.loss(module, live) / tokens, rtol=0, atol=1e-3
        )
        expected = method.yardsticks(module, live)
        for name, tally in method.yardsticks(module, read).items():
            assert tally.share == pytest.approx(expected[name].share, abs=2e-3), name


def test_what_a_kill_tore_off_is_cut_off_and_the_rest_is_kept(target: FrozenTarget, tmp_path: Path) -> None:
    with stored(target, tmp_path) as (store, maker):
        expected = maker(batch()).states[2]
    states, index = store.folder / "states", store.folder / "index"
    entry = index.stat().st_size // 3
    states.write_bytes(states.read_bytes()[:-1])
    with stored(target, tmp_path) as (store, _):
        assert (len(store), index.stat().st_size) == (2, 2 * entry)
        assert states.stat().st_size == store.bytes_held
    index.write_bytes(index.read_bytes()[:-1])
    with stored(target, tmp_path) as (store, maker):
        assert len(store) == 1
        torch.testing.assert_close(maker(batch()).states[2], expected, rtol=1e-3, atol=1e-3)
        assert len(store) == 3
        assert states.stat().st_size == store.bytes_held == 20 * store.token_bytes


def test_a_block_that_has_changed_is_computed_again(target: FrozenTarget, tmp_path: Path) -> None:
    """One damaged block ended a training of hours."""
    with stored(target, tmp_path) as (store, maker):
        expected = maker(batch()).states[2]
    states = store.folder / "states"
    data = bytearray(states.read_bytes())
    data[100] ^= 1
    states.write_bytes(data)
    for end in (4, 4):  # the damaged block stays where it is, and a good one follows
        with stored(target, tmp_path) as (store, maker):
            torch.testing.assert_close(maker(batch()).states[2], expected, rtol=1e-3, atol=1e-3)
            assert (len(store), (store.folder / "index").stat().st_size) == (3, end * _ENTRY.size)


def test_what_has_no_room_is_computed_each_time(target: FrozenTarget, tmp_path: Path) -> None:
    with stored(target, tmp_path, limit=0) as (store, maker):
        live = BatchMaker(target.model, CPU)(batch())
        real = live.documents >= 0
        for _ in range(2):
            read = maker(batch())
            assert len(store) == 0 and torch.equal(read.teacher.top_tokens[real], live.teacher.top_tokens[real])
            torch.testing.assert_close(read.states[-1][real], live.states[-1][real])


def test_states_that_float16_cannot_hold_are_refused(
    target: FrozenTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with stored(target, tmp_path) as (_, maker):
        states = maker._states
        monkeypatch.setattr(maker, "_states", lambda batch: [1e6 * state for state in states(batch)])
        assert error_of(lambda: maker(batch())) == "states_too_large"


def test_a_full_disk_loses_nothing(target: FrozenTarget, tmp_path: Path) -> None:
    with stored(target, tmp_path) as (store, maker):
        with largest_file(12 * store.token_bytes):
            assert error_of(lambda: maker(batch())) == "cannot_write"
        assert len(store) == 2 and (store.folder / "states").stat().st_size == store.bytes_held
        maker(batch())
        assert len(store) == 3
    with stored(target, tmp_path) as (store, _):
        assert len(store) == 3


def test_a_reader_that_opened_the_store_first_sees_what_is_added(target: FrozenTarget, tmp_path: Path) -> None:
    with TeacherStore(tmp_path, target, LARGE, False) as reader, stored(target, tmp_path) as (writer, maker):
        maker(batch())
        StoredBatches(target, reader)(batch())
        assert len(reader) == len(writer) == 3


def test_a_second_run_writes_nothing_and_reads_what_the_first_adds(
    target: FrozenTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It read what was there at its start only, and computed the rest again in each epoch."""
    shown: list[str] = []
    with stored(target, tmp_path) as (_, maker):
        maker(batch_of(pieces()[:1], TOKENS, pad_id=0))
        with TeacherStore(tmp_path, target, LARGE, True, shown.append) as second:
            reader = StoredBatches(target, second)
            computed = reader(batch()).states[2]
            assert (len(second), len(shown)) == (2, 1)
            maker(batch())
            monkeypatch.setattr(reader, "_states", None)
            torch.testing.assert_close(reader(batch()).states[2], computed, rtol=1e-3, atol=1e-3)
            assert (len(second), len(shown)) == (3, 1)


def test_the_most_frequent_tokens_are_drafted(target: FrozenTarget) -> None:
    """Answers weigh 100, prompts 30: 4 x 30 for token 7, 100 for 5 and 9; of equals the lower id."""
    tokens = np.array([7, 7, 7, 7, 9, 5], np.uint16)
    piece = Piece(tokens, np.array([30, 30, 30, 30, 100, 100], np.uint8))
    data = Data([PackedCorpus(lambda random: [piece], 8, 0, 0)], {}, torch.zeros(0))

    def ids(asked: int | None, vocabulary: int = 96) -> list[int] | None:
        chosen: Tensor | None = draft_tokens(asked, vocabulary, data)
        return None if chosen is None else chosen.tolist()

    assert (ids(2), ids(3), ids(4)) == ([5, 7], [5, 7, 9], [0, 5, 7, 9])
    assert (ids(0), ids(96), ids(None)) == (None, None, None)
    assert len(ids(None, 40000) or ()) == 8192
    assert error_of(lambda: ids(1)) == "draft_vocabulary_too_small"


def test_a_draft_model_learns_from_the_store_and_keeps_its_draft_vocabulary(tmp_path: Path) -> None:
    words = (*with_target(tmp_path), "--cache", tmp_path / "cache")
    own = ("--self-distil", 6, "--answer-tokens", 6, "--draft-vocabulary", 60, "--steps", 2)
    done("train", "draft", *words, "--out", tmp_path / "draft", *own, *BATCHES, *COMMON)
    ids = read_draft_vocabulary(tmp_path / "draft")
    assert ids is not None and len(ids) == 60
    measured = json.loads((tmp_path / "draft" / "training.json").read_text())["outcome"]["held_out"]["instruct"]
    assert 0 < measured["draft_vocabulary_covers"] <= 1
    assert measured["agreement"] <= measured["draft_vocabulary_covers"]
    (states,) = (tmp_path / "cache").glob("states-*/states")
    assert states.stat().st_size > 0
    began, learnt = (load_file(tmp_path / name / "model.safetensors") for name in ("target", "draft"))
    embedding = "model.embed_tokens.weight"
    assert torch.equal(learnt[embedding].float(), began[embedding].bfloat16().float())  # it stood still
    norm = "model.norm.weight"
    assert not torch.equal(learnt[norm].float(), began[norm].bfloat16().float())


def test_modules_saved_in_float16_are_those_that_were_measured(tmp_path: Path) -> None:
    words = (*with_target(tmp_path), "--steps", 3, *BATCHES, *COMMON)
    sizes = {}
    for kind in ("float16", "float32"):
        done("train", "medusa[head=shared]", *words, "--out", tmp_path / kind, "--save-as", kind)
        sizes[kind] = (tmp_path / kind / WEIGHTS).stat().st_size
    assert 2 * sizes["float16"] == pytest.approx(sizes["float32"], rel=0.05)
    small, large = (load_file(tmp_path / kind / WEIGHTS) for kind in sizes)
    assert all(torch.equal(small[name], weight.half()) for name, weight in large.items())
    folder = tmp_path / "float16"
    at_end = json.loads((folder / "checkpoints" / "log.jsonl").read_text().splitlines()[-1])
    assert at_end["held_out"] == json.loads((folder / "training.json").read_text())["outcome"]["held_out"]
    kept = load_file(folder / "checkpoints" / "step-0000003" / "model.safetensors")
    assert all(torch.equal(weight, large[name]) for name, weight in kept.items())


def test_modules_are_trained_from_a_store_over_a_draft_vocabulary(tmp_path: Path) -> None:
    """Three methods share it: the others find all that the first one wrote. EAGLE's own head has a row for each id."""
    words = (*with_target(tmp_path), "--cache", tmp_path / "cache")
    sizes: list[int] = []
    for label in ("m2r2[gates=1]", "early_exit[mode=draft,head=trained,exits=1]", "eagle"):
        out = tmp_path / label[:4]
        done("train", label, *words, "--out", out, "--draft-vocabulary", 60, "--steps", 4, *BATCHES, *COMMON)
        ids = read_draft_vocabulary(out)
        assert ids is not None and len(ids) == 60
        facts = json.loads((out / "modules.json").read_text())
        assert 0 < facts["yardsticks"]["draft_vocabulary_covers"] < 1
        sizes += [path.stat().st_size for path in (tmp_path / "cache").glob("states-*/states")]
    assert len(sizes) == 3 and sizes[0] == sizes[1] == sizes[2] > 0
    assert load_file(tmp_path / "eagl" / WEIGHTS)["lm_head.weight"].shape == (60, 32)
    method = build(f"eagle[modules={tmp_path / 'eagl'},tree=chain]")
    method.prepare(target := Target.load(tmp_path / "target"))
    assert decode(method, target, DecodeRequest([5, 6, 7], 9)).steps[0].drafted == 4
    done(
        "train", "m2r2[gates=1]", *words, "--out", tmp_path / "whole", "--store-gb", 0, "--steps", 1, *BATCHES, *COMMON
    )
    assert read_draft_vocabulary(tmp_path / "whole") is None


@pytest.mark.parametrize(
    ("label", "drafts"),
    [
        ("medusa[head=shared]", True),
        ("m2r2", True),
        ("early_exit[mode=draft,head=trained]", True),
        ("deed[mode=draft]", True),
        ("eagle", True),
        ("dflash", True),
        ("early_exit[head=trained]", False),
        ("deed", False),
        ("m2r2_dynamic", False),
        ("skip_decode", False),
        ("mixture_of_depths", False),
    ],
)
def test_what_answers_without_verification_learns_the_whole_vocabulary(label: str, drafts: bool) -> None:
    """Tokens outside a draft vocabulary get no gradient, and these methods choose from all tokens."""
    method = build(label)
    assert isinstance(method, Trainable)
    assert scores_draft_vocabulary(method) == drafts


def test_parts_that_answer_compare_drawn_tokens_of_a_large_vocabulary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The card says how many; --draft-vocabulary 0 compares all."""
    monkeypatch.setattr(training_text, "LARGE_VOCABULARY", 64)
    monkeypatch.setattr(training_text, "DRAFT_TOKENS", 48)
    words = (*with_target(tmp_path), "--steps", 2, *BATCHES, *COMMON)
    classifier = "early_exit[head=target,confidence=classifier]"  # learns where exits agree, from all tokens
    for label, more, drawn in (
        ("skip_decode", (), 48),
        ("skip_decode", ("--draft-vocabulary", 60), 60),
        ("skip_decode", ("--draft-vocabulary", 0), 0),
        (classifier, (), 0),
    ):
        out = tmp_path / f"{label}{more}"
        done("train", label, *words, "--out", out, *more)
        said = re.findall(r"over (\d+) random tokens", (out / "README.md").read_text())
        assert said == [str(drawn)] * bool(drawn)
        assert read_draft_vocabulary(out) is None
    out = tmp_path / "no"
    shown = refused("train", classifier, *words, "--out", out, "--draft-vocabulary", 60, id="no_draft_vocabulary")
    assert "--draft-vocabulary" in shown


def test_a_second_stage_of_answers_learns_the_whole_vocabulary_and_keeps_the_ids(tmp_path: Path) -> None:
    words = (*with_target(tmp_path), "--steps", 2, *BATCHES, *COMMON)
    done("train", "early_exit[mode=draft,head=trained]", *words, "--out", tmp_path / "one", "--draft-vocabulary", 60)
    second = f"early_exit[head=trained,confidence=classifier,modules={tmp_path / 'one'}]"
    done("train", second, *words, "--out", tmp_path / "two")
    ids, facts = read_draft_vocabulary(tmp_path / "two"), json.loads((tmp_path / "two" / "modules.json").read_text())
    assert ids is not None and len(ids) == 60
    assert "over a draft vocabulary" not in (tmp_path / "two" / "README.md").read_text()
    assert facts["method"] == "early_exit"
    out = tmp_path / "three"
    shown = refused("train", second, *words, "--out", out, "--draft-vocabulary", 60, id="no_draft_vocabulary")
    assert "--draft-vocabulary" in shown
