"""Training files: what is read, and what a broken line is told."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from fixtures_training import write_lines

from benchctl.training.corpus import CorpusError, Record, data_files, data_hash, read_records
from benchctl.training.sources import LATE, MAIN, shorten, weight


def test_records_are_chats_or_plain_texts(tmp_path: Path) -> None:
    path = write_lines(
        tmp_path / "a.jsonl",
        b'{"source": "s", "instruction": "Add", "input": "1 and 2", "output": "3"}',
        b'{"instruction": "Hi", "input": "", "output": " Hello "}',
        b"",
        '{"source": "t", "text": "Grüße"}'.encode(),
    )
    assert list(read_records(path)) == [
        Record("s", "Add\n\n1 and 2", "3"),
        Record("unnamed", "Hi", "Hello"),
        Record("t", None, "Grüße"),
    ]


def test_gzip_files_read_as_plain_ones(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"text": "one"}\n'))
    assert list(read_records(path)) == [Record("unnamed", None, "one")]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (b"{broken", "not JSON"),
        (b"[1]", "must be a JSON object, not list"),
        (b'{"text": "caf\xe9"}', "not UTF-8 (byte 13)"),
        (b'{"text": "  "}', 'field "text" is empty'),
        (b'{"text": 5}', 'field "text" must be text, not int'),
        (b'{"instruction": "Hi"}', 'field "output" is missing'),
        (b'{"output": "Hi"}', 'field "instruction" is missing'),
        (b'{"prompt": "Hi"}', 'needs "text", or "instruction" and "output"; found [\'prompt\']'),
    ],
)
def test_a_broken_line_is_named_by_file_and_line(tmp_path: Path, line: bytes, complaint: str) -> None:
    path = write_lines(tmp_path / "bad.jsonl", b'{"text": "fine"}', line)
    with pytest.raises(CorpusError) as error:
        list(read_records(path))
    assert f"{path}:2: " in str(error.value)
    assert complaint in str(error.value)


def test_a_truncated_gzip_file_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "cut.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"text": "one"}\n' * 50)[:-9])
    with pytest.raises(CorpusError, match="broken gzip data"):
        list(read_records(path))


def test_empty_files_and_folders_are_errors(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="no records in this file"):
        list(read_records(write_lines(tmp_path / "empty.jsonl", b"")))
    (tmp_path / "folder").mkdir()
    with pytest.raises(CorpusError, match="in this folder"):
        data_files([tmp_path / "folder"])
    with pytest.raises(CorpusError, match="no such file"):
        data_files([tmp_path / "missing.jsonl"])


def test_a_folder_is_its_json_lines_files_and_each_has_its_hash(tmp_path: Path) -> None:
    write_lines(tmp_path / "b.jsonl", b"x")
    write_lines(tmp_path / "a.jsonl.gz", b"x")
    write_lines(tmp_path / "notes.txt", b"x")
    files = data_files([tmp_path])
    assert [path.name for path in files] == ["a.jsonl.gz", "b.jsonl"]
    assert data_hash(files)["b.jsonl"] == "73cb3858a687a8494ca3323053016282f3dad39d42cf62ca4e79dda2aac7d9ac"


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
