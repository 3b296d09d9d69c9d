"""`benchctl predict` as a user meets it: tables of 80 columns, JSON with everything, one message for what is wrong."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import click
import pytest
from click.testing import Result
from command import cli, ok
from fixtures_predict import usual_file
from fixtures_records import BASELINE, DRAFTED, EXITING, LAYERS, RUN, TARGET, usual_rows, write
from fixtures_run import make_folder

# A run that states what its steps read: layers of a million numbers each and the head, in float32.
STATED = replace(RUN, step_bytes=4 * (LAYERS * 1_000_000 + TARGET.vocabulary * TARGET.hidden_size))


predict = partial(cli, "predict")


@pytest.fixture
def profiled(tmp_path: Path) -> Path:
    return write(tmp_path / "profiled.jsonl", usual_file(slower=1.1).rows, replace(STATED, modes=("free", "profile")))


def lines_of(result: Result) -> list[str]:
    return click.unstyle(ok(result).stdout).splitlines()


def test_the_tables_say_what_was_predicted_measured_and_where_the_gap_lies(profiled: Path) -> None:
    """40 / 15 predicted, 40 / 18.7 measured, of which 1.7 s that the profile does not show. Of a pass 8% is the head,
    so an exit at half depth costs 8 s x 0.54, and 2 s for commit and host."""
    lines = lines_of(predict(profiled))
    assert max(map(len, lines)) <= 80
    text = " ".join(" ".join(lines).split())
    assert f"{BASELINE} on reference" in lines[0]
    assert "two_model 2.67x [2.67, 2.67] 2.14x [2.14, 2.14] -0.53 unexplained" in text
    assert "early_exit 1.58x [1.58, 1.58] 1.14x [1.14, 1.14] -0.45" in text
    (shares,) = [line.split() for line in lines if line.startswith("two_model") and "25.0" in line]
    assert shares[1:] == ["25.0", "10.0", "2.5", "2.5", "2.5", "4.3", "46.8"]
    (costs,) = [line.split() for line in lines if line.startswith("two_model") and line.endswith(" 6")]
    assert costs[1:] == ["4.00", "5.00", "0.125", "1.125", "1.000", "6"]


def test_no_part_is_minus_zero() -> None:
    kept = Path(__file__).parents[2] / "results" / "reference" / "smollm2-profile.jsonl"
    assert not re.findall(r"-0\.0+(?!\d)", "\n".join(lines_of(predict(kept))))


def test_a_profile_that_is_far_from_the_free_steps_is_a_note(tmp_path: Path, profiled: Path) -> None:
    """The free steps take a tenth more, 9% of their own time; then four tenths, 29%."""
    run = replace(STATED, modes=("free", "profile"))
    far = write(tmp_path / "far.jsonl", usual_file(slower=1.4).rows, run)
    near_text, far_text = (" ".join(" ".join(lines_of(predict(file))).split()) for file in (profiled, far))
    assert f"{DRAFTED}: " not in near_text and f"{DRAFTED}: " in far_text and "29%" in far_text


def test_json_has_every_figure(profiled: Path) -> None:
    result = predict(profiled, "--json")
    document = json.loads(result.stdout)
    drafted, exiting = document["predictions"]
    assert (drafted["label"], exiting["label"]) == (DRAFTED, EXITING)
    assert drafted["predicted"]["value"] == pytest.approx(40 / 15)
    assert drafted["measured"]["value"] == pytest.approx(40 / 18.7)
    assert drafted["gap_lies_in"] == "unexplained"
    assert drafted["costs"]["rows"] == {"5": 36}
    assert document["unpredicted"] == []


def test_what_cannot_be_predicted_is_a_note_with_what_to_do(tmp_path: Path) -> None:
    text = " ".join(" ".join(lines_of(predict(write(tmp_path / "free.jsonl", usual_rows(3))))).split())
    assert f"Note: {DRAFTED} is not" in text and "--profile" in text and "early_exit" in text
    result = predict(write(tmp_path / "empty.jsonl", [], RUN))
    assert result.exit_code == 2 and "no generations" in result.stderr


@pytest.mark.slow
def test_a_run_with_profile_is_predicted_from_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From measuring to the account: a draft of two tokens takes some of the target's time, one of no layers all."""
    make_folder(tmp_path)
    monkeypatch.chdir(tmp_path)
    usual = "--model target --draft-model draft --bench three.jsonl --device cpu --max-new-tokens 16 --warm-up 1"
    labels = "-m two_model[draft_tokens=2] -m early_exit[threshold=0.0] --profile --no-watch --out out.jsonl"
    ok(cli("run", *usual.split(), *labels.split()))
    document = json.loads(predict("out.jsonl", "--json").stdout)
    drafting, exiting = document["predictions"]
    assert drafting["costs"]["draft_ratio"] > 0 and drafting["costs"]["verify_ratio"] > 0.25
    assert exiting["costs"]["draft_ratio"] is None and exiting["costs"]["depth_fraction"] < 0.5
    for account in (drafting, exiting):
        assert sum(part["share"] for part in account["parts"]) == pytest.approx(1 / account["measured"]["value"])
