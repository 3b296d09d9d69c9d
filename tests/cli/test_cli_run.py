"""`benchctl run` as a user meets it: what it prints where, and one clear message for everything that can be wrong."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from fixtures_run import make_folder, write_prompts
from plain_t5 import tiny_t5
from tiny import tiny_folder, tiny_target, tiny_tokenizer
from untrained import facts_of, untrained

from benchctl.cli import main
from benchctl.decoding.loop import decode
from benchctl.decoding.model.target import Target
from benchctl.decoding.modules.trainable import save_modules
from benchctl.methods.m2r2 import M2R2
from benchctl.methods.medusa import Medusa
from benchctl.records.writer import read


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("cli"))


@pytest.fixture
def here(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder with links to the models and prompts, so that arguments stay short."""
    for name in ("target", "draft", "three.jsonl"):
        (tmp_path / name).symlink_to(folder / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def no_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Target, "load", lambda *_, **__: pytest.fail("weights were loaded"))


def invoke(*arguments: str) -> Result:
    """A run on the small target; options given again replace those given here."""
    usual = "--model target --draft-model draft --bench three.jsonl --device cpu --max-new-tokens 5 --warm-up 1"
    return CliRunner().invoke(main, ["run", "--no-watch", *usual.split(), "--out", "out.jsonl", *arguments])


def refused(result: Result, code: int = 2) -> str:
    """The message of a refusal: this exit code, nothing on stdout, no traceback, and nothing measured."""
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    assert "Error: " in result.stderr
    return " ".join(result.stderr.partition("Error: ")[2].split())


def test_a_run_ends_with_the_table_and_the_files_name(here: Path) -> None:
    result = invoke("--method", "two_model", "--method", "prompt_lookup")
    assert result.exit_code == 0, result.output
    assert all(label in result.stdout for label in ("autoregressive", "two_model", "prompt_lookup", "speed-up"))
    assert result.stdout.splitlines()[-1] == "Results: out.jsonl"
    assert len(read(here / "out.jsonl").rows) == (4 * 2 + 1) * 3
    assert max(map(len, result.stdout.splitlines())) <= 80


@pytest.mark.slow
def test_a_sweep_measures_every_combination_and_names_the_best(here: Path) -> None:
    """Alone it does not bring in the methods that run by default; beside labels it adds to them."""
    sweep = ("--sweep", "two_model[draft_tokens=2|3,confidence=0|0.5]")
    result = invoke(*sweep, "--repeats", "1")
    assert result.exit_code == 0, result.output
    labels = [method.label for method in read(here / "out.jsonl").run.methods]
    assert labels == [
        "autoregressive",
        "two_model[draft_tokens=2]",
        "two_model[draft_tokens=2,confidence=0.5]",
        "two_model[draft_tokens=3]",
        "two_model[draft_tokens=3,confidence=0.5]",
    ]
    assert "4 labels of two_model" in " ".join(result.stdout.split())
    both = invoke(*sweep, "--method", "prompt_lookup", "--repeats", "1", "--out", "both.jsonl")
    assert both.exit_code == 0, both.output
    assert len(read(here / "both.jsonl").run.methods) == 6


@pytest.fixture
def unread(here: Path) -> Path:
    """Folders of models whose weights are not there, or are none, and of modules that were made for another one."""
    for name, model in (("absent", "target"), ("broken", "target")):
        shutil.copytree(here / model, here / name)
        (here / name / "model.safetensors").unlink()
    (here / "broken" / "model.safetensors").write_bytes(b"no weights")
    tiny_t5(vocabulary=320).config.save_pretrained(here / "encoding")
    tiny_tokenizer(chat=False).save_pretrained(here / "encoding")
    method, other = M2R2(gates="3"), tiny_target("llama", layers=4)
    save_modules(here / "made", untrained(method, other), facts_of("m2r2", method, other))
    return here


@pytest.mark.parametrize(
    ("model", "label", "message"),
    [
        ("absent", "early_exit[exits=40]", "exit 40 is not below the target's 3 layers; choose others with the option"),
        ("absent", "lookahead[window=4000]", "window=4000 with ngram=5 looks 4002 tokens ahead, but the target takes"),
        ("absent", "skip_decode[adapters=none,min_layers=99]", "min_layers 99 is more than the target's 3 layers"),
        ("absent", "m2r2[gates=3,modules=made]", "gate 3 is not below the target's 3 layers"),
        ("absent", "expert_offload", "the target is dense; offloading takes a mixture of experts"),
        ("encoding", "lookahead", "the target has an encoder, and this method is for targets without one"),
        ("encoding", "early_exit[exits=5]", "exit 5 is not below the target's 4 layers"),
    ],
)
def test_options_that_do_not_fit_the_target_are_refused_before_its_weights_are_read(
    unread: Path, model: str, label: str, message: str
) -> None:
    """Its configuration tells; reading weights may take minutes, and say something else first."""
    told = refused(invoke("--method", label, "--model", model, "--draft-model", ""))
    name = label.partition("[")[0]
    assert told.startswith(name) and f" cannot run on this target: {message}" in told
    assert not (unread / "out.jsonl").exists()


def test_modules_for_a_target_of_other_sizes_are_refused_before_weights_are_read(unread: Path) -> None:
    """Their facts tell how many layers that has; its weights need not be read for that."""
    method, other = Medusa(heads=2), tiny_target("llama", layers=4)
    save_modules(unread / "heads", untrained(method, other), facts_of("medusa", method, other))
    told = refused(invoke("--method", "medusa[heads=2,modules=heads]", "--model", "absent"))
    assert "heads: made for tiny" in told and "4 layers of 32" in told and "3 layers of 32" in told
    assert told.endswith("trained for this target")


@pytest.mark.parametrize("model", ["absent", "broken"])
def test_what_all_brings_in_does_not_keep_weights_from_being_read(unread: Path, model: str) -> None:
    told = refused(invoke("--method", "all", "--model", model))
    assert "cannot load" in told and "cannot run" not in told


def test_batches_on_a_target_with_an_encoder_are_refused_before_its_weights_are_read(unread: Path) -> None:
    options = ("--method", "autoregressive", "--model", "encoding", "--draft-model", "", "--batch-size", "2")
    told = refused(invoke(*options))
    assert "encoding has an encoder" in told and "--batch-size" in told


def test_json_is_all_there_is_on_stdout(here: Path) -> None:
    result = invoke("--method", "prompt_lookup", "--json")
    assert json.loads(result.stdout)
    assert "Results: out.jsonl" in result.stderr


def test_away_from_a_terminal_there_is_a_line_at_the_start_and_one_at_the_end(here: Path) -> None:
    """What transformers draws while it loads is its own."""
    lines = invoke("--method", "prompt_lookup").stderr.splitlines()
    ours = [line for line in lines if line and not line.startswith("Loading weights")]
    assert all(fact in ours[0] for fact in ("3 of three (file)", "target, float32, cpu, 1 thread"))
    assert ours[0].endswith("autoregressive, prompt_lookup. -> out.jsonl")
    assert ours[1].startswith("16 generations ") and "% of the time" in ours[1]
    assert len(ours) == 2


@pytest.mark.slow
def test_the_command_line_is_in_the_record(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["/somewhere/bin/benchctl", "run", "--seed", "7"])
    invoke("--seed", "7")
    run = read(here / "out.jsonl").run
    assert run.command == ("benchctl", "run", "--seed", "7")
    assert run.seed == 7


def test_every_option_reaches_the_record(here: Path) -> None:
    options = (
        "--method two_model --limit 1 --temperature 0.5 --top-p 0.9 --top-k 7 --seed 3 --repeats 1 --dtype float64"
    )
    result = invoke(*options.split(), "--max-new-tokens", "3", "--threads", "2", "--warm-up", "0")
    assert result.exit_code == 0, result.output
    file = read(here / "out.jsonl")
    run = file.run
    assert (run.temperature, run.top_p, run.top_k, run.seed) == (0.5, 0.9, 7, 3)
    assert (run.repeats, run.dtype, run.max_new_tokens, run.threads) == (1, "float64", 3, 2)
    assert [(row.label, row.verdict) for row in file.rows] == [("autoregressive", None), ("two_model", "sampled")]


@pytest.mark.slow
def test_without_out_a_run_makes_a_file_in_results(here: Path) -> None:
    usual = "run --model target --bench three.jsonl --device cpu --max-new-tokens 3 --method prompt_lookup"
    result = CliRunner().invoke(main, [*usual.split(), "--repeats", "1"])
    (found,) = (here / "results").glob("three-prompt_lookup-*.jsonl")
    assert result.stdout.splitlines()[-1] == f"Results: results/{found.name}"


@pytest.mark.slow
def test_all_runs_every_method_and_says_which_cannot(here: Path) -> None:
    usual = "run --model target --bench three.jsonl --device cpu --max-new-tokens 3 --out out.jsonl"
    result = CliRunner().invoke(main, usual.split())
    assert result.exit_code == 0, result.output
    assert "two_model cannot run here" in result.stderr and "--draft-model" in result.stderr
    labels = {row.label for row in read(here / "out.jsonl").rows}
    assert {"autoregressive", "prompt_lookup", "early_exit"} <= labels and "two_model" not in labels


@pytest.mark.usefixtures("here", "no_weights")
class TestRefusals:
    """Each before any weights are loaded."""

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ("--method two_modell", "Unknown method 'two_modell'. Did you mean 'two_model'?"),
            ("--method two_model[drafts=3]", "two_model has no option 'drafts'. It has: draft_model=, draft_tokens=5"),
            (
                "--method two_model[draft_tokens=many]",
                "option 'draft_tokens' cannot be 'many'; it takes a whole number",
            ),
            ("--method two_model[draft_tokens=0]", "draft_tokens is 0; it must be at least 1"),
            ("--method two_model[draft_tokens", "'two_model[draft_tokens' is not a label"),
            ("--bench kola", 'unknown bench "kola"'),
            ("--bench nowhere.jsonl", "nowhere.jsonl"),
            ("--model nowhere", "'nowhere' is neither an embedded model nor a folder"),
            ("--draft-model nowhere", "'nowhere' is neither an embedded model nor a folder"),
            ("--max-new-tokens 0", "Invalid value for '--max-new-tokens': 0 is not in the range x>=1"),
            ("--max-new-tokens -3", "Invalid value for '--max-new-tokens': -3 is not in the range x>=1"),
            ("--max-new-tokens few", "Invalid value for '--max-new-tokens': 'few' is not a valid integer range"),
            ("--limit 0", "Invalid value for '--limit'"),
            ("--repeats 0", "Invalid value for '--repeats'"),
            ("--threads 0", "Invalid value for '--threads'"),
            ("--temperature -1", "Invalid value for '--temperature'"),
            ("--temperature nan", "nan is not a finite number"),
            ("--temperature inf", "inf is not a finite number"),
            ("--top-p nan", "nan is not a finite number"),
            (f"--out {'x' * 300}.jsonl", "File name too long. Give another --out"),
            ("--top-p 0", "Invalid value for '--top-p'"),
            ("--top-p 1.5", "Invalid value for '--top-p'"),
            ("--top-k -1", "Invalid value for '--top-k'"),
            ("--dtype float8", "Invalid value for '--dtype'"),
            ("--fast", "No such option"),
        ],
    )
    def test_a_wrong_argument(self, arguments: str, message: str) -> None:
        assert message in refused(invoke(*arguments.split()))

    def test_a_gpu_that_is_not_there(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("torch.cuda.is_available", lambda: False)
        assert "--device cpu" in refused(invoke("--device", "cuda"))

    def test_a_hub_id_without_network(self) -> None:
        """The tests run offline."""
        message = refused(invoke("--model", "nobody/no-such-model"))
        assert "nobody/no-such-model" in message and "network" in message

    def test_a_folder_that_holds_no_model(self, here: Path) -> None:
        (here / "empty").mkdir()
        assert "cannot load" in refused(invoke("--model", "empty"))

    def test_a_draft_model_with_another_tokenizer(self, here: Path) -> None:
        other = tiny_folder(here / "other", layers=1)
        tokenizer = json.loads((other / "tokenizer.json").read_text())
        tokenizer["model"]["vocab"] = {token: 319 - index for token, index in tokenizer["model"]["vocab"].items()}
        (other / "tokenizer.json").write_text(json.dumps(tokenizer))
        message = refused(invoke("--draft-model", "other"))
        assert "'other'" in message and "tokenizer" in message and "--draft-model" in message

    def test_a_method_without_its_draft_model(self) -> None:
        usual = "run --model target --bench three.jsonl --method two_model"
        message = refused(CliRunner().invoke(main, usual.split()))
        assert message.startswith("two_model cannot run") and "--draft-model" in message

    def test_a_prompt_longer_than_the_context(self, here: Path) -> None:
        write_prompts(here / "long.jsonl", [{"id": "endless", "prompt": "Say something. " * 100}, {"prompt": "Hi"}])
        message = refused(invoke("--bench", "long.jsonl"))
        assert "1 of 2 prompts of long" in message and "endless (" in message
        assert "--long-prompts skip" in message and "--long-prompts cut" in message

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("", "bad.jsonl"),
            ('{"prompt": "Hi"}\n{"prompt": \n', "bad.jsonl:2"),
            ('{"prompt": "Hi"}\n{"question": "Hi"}\n', "bad.jsonl:2"),
            ('{"id": "a", "prompt": "Hi"}\n{"id": "a", "prompt": "Ho"}\n', "bad.jsonl:2"),
        ],
    )
    def test_an_empty_or_broken_data_file_by_its_line(self, here: Path, text: str, message: str) -> None:
        (here / "bad.jsonl").write_text(text)
        assert message in refused(invoke("--bench", "bad.jsonl"))

    def test_a_file_that_cannot_be_written(self, here: Path) -> None:
        """A path below an ordinary file: permissions would not stop the root user."""
        (here / "wall").write_text("")
        message = refused(invoke("--out", "wall/out.jsonl"))
        assert "wall" in message and "--out" in message

    def test_a_file_that_is_a_folder(self) -> None:
        assert "is not an ordinary file" in refused(invoke("--out", "target"))

    def test_resume_without_a_file(self) -> None:
        usual = "run --model target --bench three.jsonl --method prompt_lookup --resume"
        assert "--out FILE" in refused(CliRunner().invoke(main, usual.split()))

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            ('{"kind": "run", "schema_version": 99}\n', "written by a newer benchctl, schema 99"),
            ("name,speed\na,1\n", "out.jsonl:1"),
            ('{"some": "json"}\n', "out.jsonl:1"),
        ],
    )
    def test_resuming_a_file_that_is_no_run_of_ours(self, here: Path, content: str, message: str) -> None:
        (here / "out.jsonl").write_text(content)
        assert message in refused(invoke("--resume"), code=3)
        assert (here / "out.jsonl").read_text() == content


def test_an_existing_file_is_never_written_over(here: Path, no_weights: None) -> None:
    (here / "out.jsonl").write_text("dear\n")
    message = refused(invoke())
    assert "--resume" in message and "--out" in message
    assert (here / "out.jsonl").read_text() == "dear\n"


def test_resuming_with_other_settings_is_refused_and_keeps_every_row(here: Path) -> None:
    assert invoke("--method", "prompt_lookup").exit_code == 0
    before = (here / "out.jsonl").read_bytes()
    for change in (["--seed", "9"], ["--method", "two_model"], ["--limit", "1"], ["--model", "draft"]):
        message = refused(invoke("--method", "prompt_lookup", "--resume", *change))
        assert "cannot be resumed" in message and "differs" in message, change
    assert (here / "out.jsonl").read_bytes() == before


@pytest.mark.slow
def test_a_finished_run_resumed_prints_its_table_again(here: Path) -> None:
    first = invoke("--method", "prompt_lookup")
    second = invoke("--method", "prompt_lookup", "--resume")
    assert second.exit_code == 0
    assert second.stdout == first.stdout
    assert "0 generations measured" in second.stderr and "; 16 " in second.stderr


def test_failed_generations_are_counted_and_when_all_fail_so_does_the_command(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("out of luck")

    monkeypatch.setattr("benchctl.measuring.measure.decode", fail)
    result = invoke("--method", "prompt_lookup")
    assert result.exit_code == 1
    assert "16 FAILED" in result.stderr
    errors = {row.error for row in read(here / "out.jsonl").rows if row.turn == 0}
    assert errors == {"RuntimeError: out of luck"}


def test_an_interrupted_run_keeps_what_was_measured(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def interrupt(*arguments: object) -> object:
        calls.append(1)
        if len(calls) == 6:
            raise KeyboardInterrupt
        return decode(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr("benchctl.measuring.measure.decode", interrupt)
    result = invoke("--method", "prompt_lookup")
    assert result.exit_code == 130
    assert "--resume" in result.stderr
    assert len(read(here / "out.jsonl").rows) == 5


def test_the_help_explains_every_option_and_shows_examples() -> None:
    result = CliRunner().invoke(main, ["run", "--help"])
    assert "Examples:" in result.output and "benchctl run --limit 10" in result.output
    run = main.commands.get("run") or main.get_command(None, "run")  # type: ignore[arg-type]
    assert run is not None
    assert [option.name for option in run.params if not getattr(option, "help", None)] == []
