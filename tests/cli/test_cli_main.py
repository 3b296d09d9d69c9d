"""The command line as a whole: starting, finding verbs, refusing."""

import json
import re
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import click
import pytest
from command import cli, ok

from benchctl import __version__
from benchctl.cli import OUT, VERBS, main
from benchctl.cli.judge import KEY_ENV
from benchctl.errors import InvalidData, UserError

HEAVY = (
    *("datasets", "matplotlib", "msgspec", "numpy", "openai", "pandas", "rich", "scipy", "tokenizers", "torch"),
    "transformers",
)


def verb_that_raises(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """Puts a command that raises `error` in the place of `benchctl list`."""

    @click.command(name="list")
    def failing() -> None:
        raise error

    monkeypatch.setattr(import_module("benchctl.cli.list_"), "list_", failing)


def imported_after(code: str, root: Path) -> list[str]:
    """What this code has imported, in a process of its own: the test suite has long since imported torch."""
    code += "\nimport json, sys\nprint(json.dumps(list(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    modules: list[str] = json.loads(done.stdout.splitlines()[-1])
    return modules


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], *([verb, "--help"] for verb in VERBS)])
def test_help_imports_nothing_heavy_and_the_list_of_verbs_none_of_them(arguments: list[str], root: Path) -> None:
    modules = imported_after(f"from benchctl.cli import main\nmain({arguments!r}, standalone_mode=False)", root)
    assert not set(HEAVY) & set(modules)
    assert arguments != ["--help"] or not any(name.startswith("benchctl.cli.") for name in modules)


def test_a_word_that_is_not_utf_8_is_refused() -> None:
    """A prompt file of such a name ended `run` in a traceback, when its answers were to be written."""
    result = cli("run", "--bench", b"b\xff.jsonl".decode(errors="surrogateescape"))
    assert result.exit_code == 2 and "not UTF-8" in result.stderr


@pytest.mark.parametrize("verb", VERBS)
def test_the_line_of_a_verb_begins_its_own_help(verb: str) -> None:
    command = main.get_command(click.Context(main), verb)
    assert command is not None and (command.help or "").startswith(VERBS[verb])


def test_help_names_every_environment_variable_that_the_code_reads(root: Path) -> None:
    """Found in the source, so that a new one cannot be left out."""
    files = (file for part in ("benchctl", "methods", "judges") for file in (root / part).rglob("*.py"))
    texts = [file.read_text(encoding="utf-8") for file in files]
    reading = "\n".join(text for text in texts if "os.environ" in text)
    reading = re.sub(r'metavar="\w+"', "", reading)
    values = {"PASSIVE", "GET", "POST", "CPU", "GPU", "GGUF"}
    names = {KEY_ENV, *re.findall(r'"([A-Z]{2,}(?:_[A-Z]+)*)"', reading)} - values
    assert {"RANK", "BENCHCTL_CACHE", "HTTPS_PROXY", "OMP_WAIT_POLICY"} < names
    printed = cli("--help").output
    assert [name for name in names if name not in printed] == []


def test_python_m_benchctl_answers_under_its_own_name(root: Path) -> None:
    done = subprocess.run([sys.executable, "-m", "benchctl", "fly"], cwd=root, capture_output=True, text=True)
    assert done.returncode == 2
    assert "Usage: benchctl [OPTIONS] COMMAND" in done.stderr


@pytest.mark.parametrize("arguments", [["fly"], ["--fly"], ["list", "birds"], ["list", "methods", "--fly"]])
def test_wrong_usage_is_exit_code_2(arguments: list[str]) -> None:
    result = cli(*arguments)
    assert result.exit_code == 2
    assert "Error: " in result.stderr


@pytest.mark.parametrize(
    ("error", "code", "shown"),
    [
        (UserError("no_file", "No file 'x'; name one that exists."), 2, "Error: No file 'x'; name one that exists.\n"),
        (InvalidData("torn", "Torn."), 3, "Error: Torn.\n"),
        (KeyboardInterrupt(), 130, "\n  benchctl list\n"),
    ],
)
def test_what_a_user_can_fix_is_one_message_and_an_exit_code(
    error: BaseException, code: int, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    verb_that_raises(monkeypatch, error)
    result = cli("list")
    assert (result.exit_code, result.stdout) == (code, "")
    assert shown in result.stderr


@pytest.mark.parametrize(
    ("typed", "out", "printed"),
    [
        ("run -m two_model", "results/a b.jsonl", "run -m two_model --out 'results/a b.jsonl' --resume"),
        ("run --out=x.jsonl --resume", "x.jsonl", "run --out=x.jsonl --resume"),
        ("run -m 'm2r2[exit=2]'", "", "run -m 'm2r2[exit=2]'"),
        ("train draft --out new", "new", "train draft --out new --resume"),
        ("judge 'a b.jsonl'", "", "judge 'a b.jsonl'"),
        ("doctor --aa", "results/aa.jsonl", "doctor --aa"),
    ],
)
def test_an_interrupted_command_prints_the_one_that_continues_it(
    typed: str, out: str, printed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`out` is the file that the command was writing, "" before it had one."""

    def interrupted(context: click.Context) -> None:
        if out:
            context.meta[OUT] = Path(out)
        raise KeyboardInterrupt

    monkeypatch.setattr(click.Group, "invoke", lambda self, context: interrupted(context))
    result = cli(*shlex.split(typed))
    assert result.exit_code == 130 and result.stderr.splitlines()[-1] == f"  benchctl {printed}"


def test_a_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what a user can fix is made short; a mistake of ours has to be found."""
    verb_that_raises(monkeypatch, ZeroDivisionError())
    assert isinstance(cli("list").exception, ZeroDivisionError)


def test_list_methods_shows_family_exactness_and_options() -> None:
    lines = json.loads(cli("list", "methods", "--json").stdout)
    methods = {line["name"]: line for line in lines}
    assert {"autoregressive", "two_model", "prompt_lookup", "early_exit"} <= methods.keys()
    assert methods["prompt_lookup"]["family"] == "Speculative"
    assert methods["two_model"]["exactness"] == "exact"
    assert {"name": "draft_tokens", "kind": "a whole number", "default": "6"} in methods["two_model"]["options"]
    assert all(line["description"] for line in methods.values())


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("list methods", "two_model"),
        ("list judges", "likelihood"),
        ("list suites", "mt-bench"),
        ("list models", "target"),
        ("--version", f"benchctl, version {__version__}\n"),
    ],
)
def test_lists_and_the_version_are_printed(words: str, shown: str) -> None:
    assert shown in ok(cli(*words.split())).stdout
