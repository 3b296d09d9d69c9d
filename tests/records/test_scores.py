"""Scores: what can be true of one, and their files, which are appended to and survive a kill."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from command import cli
from refusals import refused

from benchctl.errors import InvalidData
from benchctl.records.schema import to_line
from benchctl.records.scores import Score, ScoreWriter, is_scores, once, read_scores, scores_path, text_sha256

PAIR = Score(
    suite="koala",
    prompt_id="1",
    turn=0,
    label="m2r2",
    repeat=0,
    session=0,
    baseline="autoregressive",
    judge="gpt[model=m]",
    model="m",
    protocol="pairwise",
    template="pairwise-v1@0123456789abcdef",
    order="baseline_first",
    score=7.0,
    baseline_score=8.5,
    tries=1,
    reply="8.5 7",
    answer_sha256="a" * 64,
    baseline_sha256="b" * 64,
    prompt_tokens=100,
    reply_tokens=4,
    cost_usd=0.001,
    judged_at="2026-01-01T00:00:00+00:00",
)
SINGLE = replace(PAIR, protocol="single", baseline="", baseline_sha256="", baseline_score=None, order="")
EXACT = replace(PAIR, protocol="exact", order="", score=1.0, baseline_score=0.0, model="", template="")
TIE = replace(PAIR, order="", score=None, baseline_score=None, identical=True, baseline_sha256="a" * 64, reply="")


def test_scores_of_old_and_new_labels_are_of_one_method(tmp_path: Path) -> None:
    path = tmp_path / "old.scores.jsonl"
    path.write_bytes(to_line(replace(PAIR, label="m2r2[mode=aot,spare=1]", baseline="m2r2[mode=speculative]")))
    (score,) = read_scores(path).scores
    assert (score.label, score.baseline) == ("m2r2_prefetch[spare=1]", "m2r2")


@pytest.mark.parametrize(
    ("score", "changes", "reason"),
    [
        (PAIR, {"score": 10.5}, "from 1 to 10"),
        (PAIR, {"score": 0.0}, "from 1 to 10"),
        (PAIR, {"baseline_score": None}, "has all its scores"),
        (PAIR, {"score": None, "baseline_score": None}, "has all its scores"),
        (PAIR, {"unreadable": "no scores in it"}, "nothing was read"),
        (PAIR, {"order": ""}, "an order is"),
        (PAIR, {"label": "autoregressive"}, "judged against itself"),
        (PAIR, {"baseline": ""}, "names a baseline"),
        (PAIR, {"answer_sha256": "b" * 64}, "identical is what"),
        (PAIR, {"identical": True, "order": ""}, "identical is what"),
        (PAIR, {"cost_usd": -1.0}, "cost_usd"),
        (PAIR, {"score": float("nan")}, "not finite"),
        (TIE, {"score": 5.0, "baseline_score": 5.0}, "nothing was read"),
        (TIE, {"order": "baseline_first"}, "an order is"),
        (SINGLE, {"baseline_score": 5.0}, "single has no baseline_score"),
        (SINGLE, {"baseline": "autoregressive"}, "names a baseline"),
        (SINGLE, {"score": 11.0}, "from 1 to 10"),
        (EXACT, {"score": 0.5}, "exact is 1.0 or 0.0"),
        (EXACT, {"identical": True, "baseline_sha256": "a" * 64}, "same score"),
    ],
)
def test_a_score_that_cannot_be_true_is_refused(score: Score, changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        to_line(replace(score, **changes))


def test_what_is_written_is_read(tmp_path: Path) -> None:
    unreadable = replace(PAIR, prompt_id="2", score=None, baseline_score=None, unreadable="empty", cost_usd=None)
    equal = replace(EXACT, identical=True, baseline_sha256="a" * 64, baseline_score=1.0)
    scores = (PAIR, SINGLE, EXACT, TIE, unreadable, replace(equal, prompt_id="3"))
    path = scores_path(tmp_path / "first.jsonl")
    with ScoreWriter(path) as writer:
        writer.append(*scores[:2])
        writer.append(*scores[2:])
    assert path.name == "first.scores.jsonl" and is_scores(path)
    assert read_scores(path).scores == scores
    with ScoreWriter(path) as writer:
        assert writer.stored.scores == scores


def test_a_torn_last_line_is_left_out_when_read_and_cut_off_when_gone_on_with(tmp_path: Path) -> None:
    path = tmp_path / "a.scores.jsonl"
    for length in range(1, len(to_line(SINGLE))):
        path.write_bytes(to_line(PAIR) + to_line(SINGLE)[:length])
        notices: list[str] = []
        whole = length == len(to_line(SINGLE)) - 1
        with ScoreWriter(path, notify=notices.append) as writer:
            assert writer.stored.scores == ((PAIR, SINGLE) if whole else (PAIR,))
            assert len(notices) == (0 if whole else 1)
            writer.append(EXACT)
        assert [score.protocol for score in read_scores(path).scores][-1] == "exact"


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (to_line(PAIR), "the same judgement as line 1"),
        (b"{}\n", "missing"),
        (b"\n", "the line is empty"),
        (b"not json\n", "Invalid JSON"),
        (to_line(SINGLE).replace(b'"schema_version":1', b'"schema_version":2'), "newer benchctl, schema 2"),
        (to_line(SINGLE).replace(b'"score":7.0', b'"score":70.0'), "from 1 to 10"),
    ],
)
def test_a_line_that_is_no_score_is_named(tmp_path: Path, line: bytes, problem: str) -> None:
    path = tmp_path / "a.scores.jsonl"
    path.write_bytes(to_line(PAIR) + line)
    with pytest.raises(InvalidData, match=f":2: .*({problem})"):
        read_scores(path)
    result = cli("compare", "--check", path)
    assert result.exit_code == 3 and f"{path}:2:" in result.stderr


def test_of_what_could_not_be_read_and_was_asked_for_again_the_last_line_counts(tmp_path: Path) -> None:
    path = tmp_path / "a.scores.jsonl"
    unread = replace(PAIR, score=None, baseline_score=None, unreadable="no scores in it", reply="no", tries=3)
    again = replace(unread, tries=6)
    cases: tuple[tuple[tuple[Score, ...], tuple[Score, ...]], ...] = (
        ((unread, SINGLE, PAIR), (SINGLE, PAIR)),
        ((unread, SINGLE, again), (SINGLE, again)),
        ((unread, again, PAIR), (PAIR,)),
    )
    for lines, counts in cases:
        path.write_bytes(b"".join(map(to_line, lines)))
        assert read_scores(path).scores == counts
        assert cli("compare", "--check", path).exit_code == 0
    twice: tuple[tuple[Score, ...], ...] = ((PAIR, unread), (PAIR, SINGLE, PAIR), (unread, PAIR, unread))
    for lines in twice:
        path.write_bytes(b"".join(map(to_line, lines)))
        with refused("line_twice", f":{len(lines)}:", f"line {lines.index(PAIR) + 1}."):
            read_scores(path)


def test_of_two_files_the_one_that_could_read_a_reply_counts() -> None:
    unread = replace(PAIR, score=None, baseline_score=None, unreadable="no scores in it")
    other = replace(PAIR, score=3.0)
    assert once([PAIR, unread, SINGLE]) == (PAIR, SINGLE)
    assert once([unread, PAIR]) == (PAIR,) and once([PAIR, other]) == (other,)


def test_half_a_surrogate_pair_is_hashed_alike_wherever_a_text_is() -> None:
    assert text_sha256("a\ud83d") == hashlib.sha256(b"a\xed\xa0\xbd").hexdigest()
    assert text_sha256("\u00e9") == hashlib.sha256(b"\xc3\xa9").hexdigest()


def test_two_writers_of_one_file_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.scores.jsonl"
    with ScoreWriter(path), refused("file_in_use", "benchctl judge"), ScoreWriter(path):
        pass


@pytest.mark.parametrize(
    ("reason", "held"), [(errno.ENOLCK, True), (errno.EACCES, False), (errno.EAGAIN, False), (errno.EIO, None)]
)
def test_a_lock_is_held_unless_another_process_has_it(
    reason: int, held: bool | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a file system without locks every run once said that another one was writing the file."""

    def fails(*_: object) -> None:
        raise OSError(reason, os.strerror(reason))

    monkeypatch.setattr(fcntl, "flock", fails)
    with ExitStack() as expected:
        if held is None:
            expected.enter_context(pytest.raises(OSError, match="Input/output"))
        elif not held:
            expected.enter_context(refused("file_in_use", "benchctl judge"))
        with ScoreWriter(tmp_path / "a.scores.jsonl") as writer:
            writer.append(PAIR)
    assert bool(read_scores(tmp_path / "a.scores.jsonl").scores) == bool(held)


def test_validate_counts_scores_and_judges(tmp_path: Path) -> None:
    path = tmp_path / "a.scores.jsonl"
    path.write_bytes(to_line(PAIR) + to_line(SINGLE) + to_line(replace(PAIR, judge="other")))
    result = cli("compare", "--check", path)
    assert result.stdout.startswith(f"{path}: valid, 3 scores of 2 judges")
