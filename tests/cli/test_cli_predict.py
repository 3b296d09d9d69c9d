"""`benchctl predict` as a user meets it: tables of 80 columns, JSON with everything, one message for what is wrong."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result
from fixtures_predict import usual_file
from fixtures_records import BASELINE, DRAFTED, EXITING, RUN, usual_rows, write
from fixtures_run import make_folder
from test_predict_hardware import STATED

from benchctl.cli import main
from benchctl.records.schema import Row


def invoke(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["predict", *map(str, arguments)])


@pytest.fixture
def profiled(tmp_path: Path) -> Path:
    return write(tmp_path / "profiled.jsonl", usual_file(slower=1.1).rows, replace(STATED, modes=("free", "profile")))


def lines_of(result: Result) -> list[str]:
    assert result.exit_code == 0, result.output
    return click.unstyle(result.stdout).splitlines()


def test_the_tables_say_what_was_predicted_measured_and_where_the_gap_lies(profiled: Path) -> None:
    """40 / 15 predicted, 40 / 18.7 measured, of which 1.7 s that the profile does not show. Of a pass 8% is the head,
    so an exit at half depth costs 8 s x 0.54, and 2 s for commit and host."""
    lines = lines_of(invoke(profiled))
    assert max(map(len, lines)) <= 80
    text = "\n".join(lines)
    assert lines[0] == f"Decoding, against {BASELINE} on reference; prefill left out."
    assert "two_model           2.67x [2.67, 2.67]  2.14x [2.14, 2.14]  -0.53  unexplained" in text
    assert "early_exit          1.58x [1.58, 1.58]  1.14x [1.14, 1.14]  -0.45" in text
    (shares,) = [line.split() for line in lines if line.startswith("two_model") and "25.0" in line]
    assert shares[1:] == ["25.0", "10.0", "2.5", "2.5", "2.5", "4.3", "46.8"]
    (costs,) = [line.split() for line in lines if line.startswith("two_model") and line.endswith("profile")]
    assert costs[1:] == ["4.00", "5.00", "0.125", "1.125", "1.000", "6", "profile"]


def test_a_profile_that_is_far_from_the_free_steps_is_a_note(tmp_path: Path, profiled: Path) -> None:
    """The free steps take a tenth more, 9% of their own time; then four tenths, 29%."""
    assert "free and profiled steps differ" not in "\n".join(lines_of(invoke(profiled)))
    run = replace(STATED, modes=("free", "profile"))
    far = write(tmp_path / "far.jsonl", usual_file(slower=1.4).rows, run)
    text = " ".join(" ".join(lines_of(invoke(far))).split())
    assert f"Note: {DRAFTED}: free and profiled steps differ by 29% of its time: the machine was not steady" in text


def test_other_hardware_is_called_a_model_and_has_its_source(profiled: Path) -> None:
    lines = lines_of(
        invoke(profiled, "--hardware", "h100", "--hardware", "l4", "--batch-size", "1", "--batch-size", "64")
    )
    text = " ".join(" ".join(lines).split())
    assert "Model of h100" in text and "Model of l4" in text
    assert "A model, not a measurement" in text
    assert "NVIDIA H100 SXM, 80 GB: NVIDIA H100 Tensor Core GPU datasheet" in text
    assert "a step would take less than a millisecond" in text
    assert max(map(len, lines)) <= 80


def test_json_has_every_figure(profiled: Path) -> None:
    result = invoke(profiled, "--hardware", "a100", "--json")
    document = json.loads(result.stdout)
    drafted, exiting = document["predictions"]
    assert (drafted["label"], exiting["label"]) == (DRAFTED, EXITING)
    assert drafted["predicted"]["value"] == pytest.approx(40 / 15)
    assert drafted["measured"]["value"] == pytest.approx(40 / 18.7)
    assert drafted["gap_lies_in"] == "unexplained"
    assert drafted["costs"]["rows"] == {"5": 36}
    assert [model["label"] for model in document["models"]] == [DRAFTED, EXITING]
    # 4 tokens for a step, a drafted one an eighth of a pass; reading decides, so 5 rows cost what one does.
    assert document["models"][0]["speedup"] == pytest.approx(4 / 1.5)
    assert document["models"][0]["hardware"] == "a100" and document["unpredicted"] == []


def test_what_cannot_be_predicted_is_a_note_with_what_to_do(tmp_path: Path) -> None:
    lines = lines_of(invoke(write(tmp_path / "free.jsonl", usual_rows(3))))
    text = " ".join(" ".join(lines).split())
    assert f"Note: {DRAFTED} is not predicted: nearly all its steps draft as many tokens" in text
    assert "Measure with --profile." in text
    assert "early_exit" in text


def drafting(row: Row, drafted: int) -> Row:
    """The row, had each of its six steps drafted so much and taken a second for each."""
    return replace(row, drafted=(drafted,) * 6, rows=(1 + drafted,) * 6, step_s=(10.0 + drafted,) * 6)


def test_a_method_that_was_not_profiled_does_not_keep_the_others_from_the_model(profiled: Path, tmp_path: Path) -> None:
    """Its step told no phases; the drafts of its free rows vary."""
    other = "prompt_lookup"
    rows = list(usual_file().rows)
    free = [row for row in rows if row.label == DRAFTED and row.mode == "free"]
    rows += [drafting(replace(row, label=other), 3 + number % 3) for number, row in enumerate(free)]
    run = replace(STATED, methods=(*RUN.methods, replace(RUN.methods[1], label=other)), modes=("free", "profile"))
    result = invoke(write(tmp_path / "some.jsonl", rows, run), "--hardware", "h100", "--json")
    document = json.loads(result.stdout)
    assert {account["label"]: account["basis"] for account in document["predictions"]}[other] == "steps"
    assert [model["label"] for model in document["models"]] == [DRAFTED, EXITING]
    assert f"Note: {other}: what drafting costs is not known" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--dtype", "bfloat16"), "name it with --hardware"),
        (("--hardware", "abacus"), "'abacus' is no hardware known here. Name one of h100"),
        (("--batch-size", "0"), "Invalid value for '--batch-size'"),
        (("--batch-size", "8"), "name it with --hardware"),
    ],
)
def test_wrong_usage_is_one_message_and_exit_code_2(profiled: Path, arguments: tuple[str, ...], message: str) -> None:
    result = invoke(profiled, *arguments)
    assert result.exit_code == 2 and result.stdout == ""
    assert message in " ".join(result.stderr.split())


def test_a_model_that_cannot_be_said_keeps_nobody_from_the_accounts(profiled: Path) -> None:
    """The accounts first, then the error."""
    result = invoke(profiled, "--hardware", "t4", "--dtype", "bfloat16")
    assert result.exit_code == 2 and "t4 has no FLOP rate for bfloat16" in result.stderr
    assert click.unstyle(result.stdout).strip() == "\n".join(lines_of(invoke(profiled))).strip()


def test_a_file_that_does_not_say_what_steps_read_has_no_model(tmp_path: Path) -> None:
    old = write(tmp_path / "old.jsonl", usual_file().rows, RUN)
    result = invoke(old, "--hardware", "h100", "--json")
    assert result.exit_code == 2 and "does not say what a step reads" in result.stderr
    document = json.loads(result.stdout)
    assert (len(document["predictions"]), document["models"]) == (2, [])
    assert "Note: the file does not say what a step reads, so the head's part" in " ".join(lines_of(invoke(old)))


def test_a_run_without_generations_is_refused(tmp_path: Path) -> None:
    result = invoke(write(tmp_path / "empty.jsonl", [], RUN))
    assert result.exit_code == 2 and "no generations to predict from" in result.stderr


def test_a_run_with_profile_is_predicted_from_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From measuring to the account: a draft of two tokens takes some of the target's time, one of no layers all."""
    make_folder(tmp_path)
    monkeypatch.chdir(tmp_path)
    usual = "--model target --draft-model draft --bench three.jsonl --device cpu --max-new-tokens 16 --warm-up 1"
    labels = "-m two_model[draft_tokens=2] -m early_exit[threshold=0.0] --profile --no-watch --out out.jsonl"
    assert CliRunner().invoke(main, ["run", *usual.split(), *labels.split()]).exit_code == 0
    document = json.loads(invoke("out.jsonl", "--hardware", "a100", "--json").stdout)
    drafting, exiting = document["predictions"]
    assert (drafting["basis"], exiting["basis"]) == ("profile", "profile")
    assert drafting["costs"]["draft_ratio"] > 0 and drafting["costs"]["verify_ratio"] > 0.5
    assert exiting["costs"]["draft_ratio"] is None and exiting["costs"]["depth_fraction"] < 0.5
    for account in (drafting, exiting):
        assert sum(part["share"] for part in account["parts"]) == pytest.approx(1 / account["measured"]["value"])
    assert {model["label"] for model in document["models"]} == {drafting["label"], exiting["label"]}
