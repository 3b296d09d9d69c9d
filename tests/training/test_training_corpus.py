"""Training data: what is read from where, what is held out, and how a broken line is refused."""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from refusals import refused

from benchctl.training.data import reading
from benchctl.training.data.chats import Message, Record, is_held_out
from benchctl.training.data.reading import is_held_out_name, read_corpus, read_parts, read_records, sections
from reference.sources import LATE, MAIN, shorten, weight

ROWS = [{"instruction": "Hi", "output": "Hello"}, {"text": "Once"}]
CHAT = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]


def write_lines(path: Path, *lines: bytes) -> Path:
    path.write_bytes(b"\n".join(lines) + b"\n")
    return path


def write_chats(path: Path, numbers: range) -> Path:
    lines = (json.dumps({"instruction": f"Say {n}", "output": str(n)}).encode() for n in numbers)
    return write_lines(path, *lines)


def test_records_are_chats_or_plain_texts(tmp_path: Path) -> None:
    path = write_lines(
        tmp_path / "a.jsonl",
        b'{"source": "s", "instruction": "Add", "input": "1 and 2", "output": "3"}',
        b'{"instruction": "Hi", "input": "", "output": " Hello ", "text": "Hi Hello"}',
        b"",
        '{"source": "t", "text": "Grüße"}'.encode(),
    )
    assert list(read_records(path)) == [
        Record.chat("s", "Add\n\n1 and 2", "3"),
        Record.chat("unnamed", "Hi", "Hello"),
        Record.plain("t", "Grüße"),
    ]


def test_a_record_of_messages_keeps_every_turn(tmp_path: Path) -> None:
    messages = [{"role": "system", "content": "Be kind."}, *CHAT, *CHAT]
    (record,) = read_records(write_lines(tmp_path / "a.jsonl", json.dumps({"messages": messages}).encode()))
    assert record.messages == tuple(Message(entry["role"], entry["content"]) for entry in messages)
    assert (record.prompt, record.answer) == (record.messages[:4], "Hello")


def test_gzip_files_and_files_with_a_byte_order_mark_read_as_plain_ones(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b'\xef\xbb\xbf{"text": "one"}\n'))
    assert list(read_records(path)) == [Record.plain("unnamed", "one")]


def test_a_json_file_is_an_array_of_records_or_a_record_a_line(tmp_path: Path) -> None:
    array, lines = tmp_path / "array.json", tmp_path / "lines.json"
    array.write_text(json.dumps(ROWS, indent=2))
    write_lines(lines, *(json.dumps(row).encode() for row in ROWS))
    assert list(read_records(array)) == list(read_records(lines))
    array.write_text('[\n{"text": ""}]')
    with refused("bad_record", "array.json: entry 1", '"text"'):
        list(read_records(array))


def test_a_text_file_is_cut_at_blank_lines_into_sections_of_some_length(tmp_path: Path) -> None:
    a, b, c = "a" * 1500, "b" * 600, "c" * 30
    assert list(sections(f"{a}\n\n{b}\n \n{c}")) == [f"{a}\n\n{b}", c]
    path = tmp_path / "notes.md"
    path.write_bytes(f"{a}\r\n\r\n{b}\r\n\r\n{c}\r\n".encode())
    assert list(read_records(path)) == [Record.plain("unnamed", f"{a}\n\n{b}"), Record.plain("unnamed", c)]


@pytest.mark.parametrize(
    ("line", "id", "facts"),
    [
        (b"{broken", "not_json", ("column 2",)),
        (b"[1]", "bad_record", ("list",)),
        (b'{"text": "caf\xe9"}', "not_utf8", ("byte 13",)),
        (b'{"text": "  "}', "bad_record", ('"text"',)),
        (b'{"text": 5}', "bad_record", ('"text"', "int")),
        (b'{"text": "\\ud83d"}', "bad_record", ('"text"', "surrogate")),
        (b'{"instruction": "Hi"}', "bad_record", ('"output"',)),
        (b'{"output": "Hi"}', "bad_record", ('"instruction"',)),
        (b'{"prompt": "Hi"}', "bad_record", ('"text"', "['prompt']")),
        (b'{"messages": []}', "bad_record", ('"messages"', '"role"', '"content"')),
        (b'{"messages": "Hi"}', "bad_record", ('"messages"', '"role"', '"content"')),
        (b'{"messages": ["Hi"]}', "bad_record", ("message 1", '"role"', '"content"', "str")),
        (b'{"messages": [{"role": "user", "content": "Hi"}]}', "last_message_not_answer", ("user",)),
        (b'{"messages": [{"role": "tool", "content": "Hi"}]}', "unknown_role", ("message 1", '"tool"', "system")),
        (b'{"messages": [{"role": "user", "content": ""}]}', "bad_record", ("message 1", '"content"')),
        (b'{"messages": [{"role": "assistant", "content": "Hi"}]}', "wrong_turns", ("message 1", "assistant")),
    ],
)
def test_a_broken_line_is_named_by_file_and_line(tmp_path: Path, line: bytes, id: str, facts: tuple[str, ...]) -> None:
    path = write_lines(tmp_path / "bad.jsonl", b'{"text": "fine"}', line)
    with refused(id, f"{path}:2: ", *facts):
        list(read_records(path))


@pytest.mark.parametrize("broken", ["cut", "changed"])
def test_broken_gzip_data_is_an_error(tmp_path: Path, broken: str) -> None:
    whole = gzip.compress(b'{"text": "one"}\n' * 50)
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(whole[:-9] if broken == "cut" else whole[:10] + b"\xff" + whole[11:])
    with refused("broken_gzip", str(path)):
        list(read_records(path))


def test_empty_files_and_folders_and_missing_ones_are_errors(tmp_path: Path) -> None:
    with refused("no_records", "empty.jsonl"):
        list(read_records(write_lines(tmp_path / "empty.jsonl", b"")))
    (tmp_path / "folder").mkdir()
    with refused("no_data_files", str(tmp_path / "folder"), "*.jsonl"):
        list(read_parts([str(tmp_path / "folder")]))
    for missing in ("missing.jsonl", "nowhere", "data/missing.txt", "/data/missing"):
        with refused("no_data_files", missing):
            list(read_parts([missing]))


def test_a_folder_is_its_json_lines_files_with_their_hashes_or_else_its_texts(tmp_path: Path) -> None:
    write_lines(tmp_path / "notes.txt", b"x")
    assert [part.name for part in read_parts([str(tmp_path)])] == ["notes.txt"]
    write_lines(tmp_path / "b.jsonl", b'{"text": "one"}')
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b'{"text": "two"}'))
    parts = {part.name: part for part in read_parts([str(tmp_path)])}
    assert list(parts) == ["a.jsonl.gz", "b.jsonl"]
    assert parts["b.jsonl"].sha256 == "d0c87fa3d5b4e12b921f70a3abdd2c40f350e2b1df848fb32d0be45aabaaf3b6"


@pytest.mark.parametrize(
    ("file", "id", "facts"),
    [("val.jsonl", "no_training_data", ()), ("few.jsonl", "too_few_records", ("3 records", "500", "_val"))],
)
def test_data_all_held_out_or_too_few_to_hold_out_any_are_refused(
    file: str, id: str, facts: tuple[str, ...], tmp_path: Path
) -> None:
    with refused(id, *facts):
        read_corpus([str(write_chats(tmp_path / file, range(3)))])


@pytest.mark.parametrize(
    ("name", "held_out"),
    [("val", True), ("instruct_val", True), ("Validation", True), ("eval-2", True), ("interval", False), ("a", False)],
)
def test_a_name_says_whether_a_file_is_held_out(name: str, held_out: bool) -> None:
    assert is_held_out_name(name) is held_out


def test_a_file_for_the_held_out_loss_leaves_all_other_chats_to_training(tmp_path: Path) -> None:
    write_chats(tmp_path / "train.jsonl", range(300))
    write_chats(tmp_path / "val.jsonl", range(300, 303))
    corpus = read_corpus([str(tmp_path)])
    assert len(corpus.train) == 300
    (tmp_path / "val.jsonl").rename(tmp_path / "chats.val.jsonl")
    assert read_corpus([str(tmp_path)]).held_out == corpus.held_out
    assert {name: len(records) for name, records in corpus.held_out.items()} == {"instruct": 3}
    assert set(corpus.hashes) == {"train.jsonl", "val.jsonl"}


def test_without_such_a_file_one_record_in_a_hundred_is_held_out_by_its_content(tmp_path: Path) -> None:
    path = write_chats(tmp_path / "chats.jsonl", range(1000))
    corpus = read_corpus([str(path)])
    held_out = corpus.held_out["instruct"]
    assert len(corpus.train) + len(held_out) == 1000
    assert 3 <= len(held_out) <= 20
    assert all(map(is_held_out, held_out))
    assert not any(map(is_held_out, corpus.train))


def test_texts_are_held_out_by_content_though_chats_have_a_file(tmp_path: Path) -> None:
    lines = (json.dumps({"text": f"text {number}"}).encode() for number in range(500))
    train = write_lines(tmp_path / "train.jsonl", *lines)
    corpus = read_corpus([str(train), str(write_chats(tmp_path / "val.jsonl", range(3)))])
    assert set(corpus.held_out) == {"instruct", "text"}
    assert len(corpus.train) + len(corpus.held_out["text"]) == 500


def test_files_of_one_name_keep_both_their_hashes(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        write_chats(tmp_path / folder / "train.jsonl", range(500))
    hashes = read_corpus([str(tmp_path / "a"), str(tmp_path / "b")]).hashes
    assert list(hashes) == ["train.jsonl", "train.jsonl (2)"]


def test_weights_follow_the_first_rule_that_matches() -> None:
    assert weight("p3/common_gen", MAIN) == 0.5
    assert weight("p3/anything", MAIN) == 0.1
    assert weight("p3/anything", LATE) == 0.0
    assert weight("my own source", LATE) == 1.0


def test_long_answers_are_cut_after_a_sentence() -> None:
    assert shorten("One two. Three four. Five", 18) == "One two."
    assert shorten("One two. Three four. Five", 21) == "One two. Three four."
    assert shorten("One two.", 100) == "One two."
    assert shorten("no sentence here", 5) == "no se"


class FakeLibrary:
    """Stands for `datasets`; `given` are the arguments of load_dataset, `found` what it gives or raises."""

    config = SimpleNamespace(HF_DATASETS_CACHE="nowhere")

    def __init__(self, found: dict[str, list[dict[str, Any]]] | Exception) -> None:
        self._found = found
        self.given: list[object] = []

    def load_dataset(self, *arguments: object) -> dict[str, list[dict[str, Any]]]:
        self.given += arguments
        if isinstance(self._found, Exception):
            raise self._found
        return self._found


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Callable[..., FakeLibrary]:
    """Puts the library in the place of the real one."""

    def using(found: dict[str, list[dict[str, Any]]] | Exception, reachable: bool = True) -> FakeLibrary:
        monkeypatch.setitem(sys.modules, "datasets", library := FakeLibrary(found))
        monkeypatch.setattr(reading, "hub_reachable", lambda: reachable)
        return library

    return using


def test_a_data_set_of_the_hub_is_read_by_its_name_and_its_splits(use: Callable[..., FakeLibrary]) -> None:
    library = use({"train_sft": [{"messages": CHAT}], "test_sft": ROWS})
    train, test = read_parts(["owner/chats:short"])
    assert library.given == ["owner/chats", "short"]
    assert (train.name, train.held_out, test.held_out) == ("owner/chats:short[train_sft]", False, True)
    assert train.records == [Record.chat("owner/chats", "Hi", "Hello")]
    assert test.records[1] == Record.plain("owner/chats", "Once")


def test_a_split_is_held_out_by_a_whole_word_of_its_name(use: Callable[..., FakeLibrary]) -> None:
    use(dict.fromkeys(("latest", "contest", "test", "test_sft", "validation"), ROWS))
    assert [part.held_out for part in read_parts(["owner/chats"])] == [False, False, True, True, True]


@pytest.mark.parametrize(
    ("found", "reachable", "id", "facts"),
    [
        ({"train": [{"prompt": "Hi"}]}, True, "bad_record", ("owner/chats[train]:1", "['prompt']")),
        ({"train": []}, True, "no_records", ("owner/chats", "train")),
        (ValueError("No name.\nPick"), True, "unknown_data_set", ("owner/chats:CONF", "(ValueError: No name. Pick)")),
        ({}, False, "unknown_data_set", ("owner/chats", "save_to_disk")),
    ],
)
def test_an_unreadable_data_set_fails(
    use: Callable[..., FakeLibrary], found: Any, reachable: bool, id: str, facts: tuple[str, ...]
) -> None:
    library = use(found, reachable)
    with refused(id, *facts):
        list(read_parts(["owner/chats"]))
    assert bool(library.given) is reachable


def test_without_the_library_an_error_names_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    (tmp_path / "dataset_info.json").write_text("{}")
    for wanted in ("owner/chats", str(tmp_path)):
        with refused("library_missing", wanted, "pip install 'benchctl[datasets]'"):
            list(read_parts([wanted]))


@pytest.fixture(scope="module")
def datasets() -> Any:
    return pytest.importorskip("datasets")


def test_folders_of_the_library_and_parquet_files_read_as_json_lines(datasets: Any, tmp_path: Path) -> None:
    rows = [{"messages": CHAT, "source": "s"}] * 2
    table = datasets.Dataset.from_list(rows)
    table.save_to_disk(tmp_path / "one")
    datasets.DatasetDict({"train": table, "validation": table}).save_to_disk(tmp_path / "two")
    table.to_parquet(tmp_path / "hub" / "data" / "train-00000-of-00001.parquet")
    expected = [Record.chat("s", "Hi", "Hello")] * 2
    assert [part.records for part in read_parts([str(tmp_path / "one")])] == [expected]
    assert [part.records for part in read_parts([str(tmp_path / "hub")])] == [expected]
    both = list(read_parts([str(tmp_path / "two")]))
    assert [(part.name, part.held_out) for part in both] == [("two[train]", False), ("two[validation]", True)]
    assert [part.records for part in both] == [expected, expected]


def test_broken_folders_and_parquet_files_are_errors(datasets: Any, tmp_path: Path) -> None:
    (tmp_path / "dataset_info.json").write_text("{}")
    with refused("file_not_readable", str(tmp_path), "save_to_disk"):
        list(read_parts([str(tmp_path)]))
    with refused("file_not_readable", "a.parquet"):
        list(read_parts([str(write_lines(tmp_path / "a.parquet", b"PAR"))]))
