"""Engines behind HTTP: what each misbehaviour of a server leads to, and that no server is left running."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from documents import DOCS, blocks
from fake_engine import PROBE, SLOW_S, VERSION, FakeEngine, counting, program, running, speculating, wait_for
from refusals import error_of, refused
from tiny import tiny_folder

from benchctl.decoding.loop import Generation
from benchctl.engines import llama_cpp
from benchctl.engines.openai import OpenAI
from benchctl.measuring.clock import Clock
from benchctl.registry import build_engine, parse_label
from benchctl.serving.client import KEY, Client
from benchctl.serving.engine import Deployment, Engine, Question, check_gguf
from benchctl.serving.ledger import settle
from benchctl.serving.served import Served

DIALECTS = ("vllm", "sglang", "llama_cpp")
PROMPT = (3, 1, 4)
TOKENS = tuple(range(5, 12))


def deployment(notices: list[str] | None = None, target: str = "model.gguf") -> Deployment:
    said = [] if notices is None else notices
    return Deployment(target, target, "float32", "F32", 1, 64, Clock(), said.append)


def ask(engine: Engine, most: int = len(TOKENS), drafts: bool = True) -> Generation:
    question = Question(PROMPT, most, (2,), Clock())
    return settle(engine.answer(question), question, drafts=drafts, limited_by_context=False, vocabulary=99)


@pytest.mark.parametrize(
    ("label", "option"),
    [
        ("vllm[draft=some/eagle]", "draft"),
        ("sglang[draft_tokens=3]", "draft_tokens"),
        ("llama_cpp[draft_tokens=8]", "draft_tokens"),
        ("openvino[draft_tokens=8]", "draft_tokens"),
    ],
)
def test_an_engine_that_does_not_draft_has_no_options_of_drafting(label: str, option: str) -> None:
    """It would be the baseline under another label."""
    with refused("bad_option_value", f"{option} has no effect"):
        build_engine(parse_label(label))


def asked_of(dialect: str, *misbehaves: str, limit_s: float = 5.0) -> Generation:
    """The answer of a server that speculates."""
    with FakeEngine(dialect, speculating, *misbehaves) as server:
        engine = OpenAI(server.url, limit_s=limit_s)
        engine.start(deployment())
        return ask(engine)


def test_a_file_of_float32_is_not_what_a_run_of_float16_weights_measures() -> None:
    """The fake one says that its file has four bytes for each weight."""
    with FakeEngine("llama_cpp", speculating) as server, refused("other_weights"):
        OpenAI(server.url).start(replace(deployment(), weights="F16"))


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_server_is_recognised_and_its_answer_is_told_as_it_was_counted(dialect: str) -> None:
    with FakeEngine(dialect, speculating) as server:
        engine = OpenAI(server.url)
        info = engine.start(deployment())
        generation = ask(engine)
    assert (info.version, info.run, info.prefix_cache) == (VERSION, "attached", "off")
    assert info.dtype == ("float32" if dialect == "llama_cpp" else "")
    assert generation.token_ids == TOKENS and generation.stop_reason == "length"
    told = generation.reported
    assert told is not None
    if dialect == "vllm":
        assert [(step.drafted, step.accepted) for step in generation.steps] == [(3, 2), (3, 2)]
    else:
        steps = 2 if dialect == "sglang" else None
        assert (told.by_step, told.steps, told.drafted, told.accepted) == (False, steps, 6, 4)
    assert told.arrived_tokens == ((1,) * 7 if dialect == "llama_cpp" else (1, 3, 3))


@pytest.mark.parametrize("dialect", DIALECTS)
def test_ids_are_sent_with_greedy_choices_and_without_the_prompt_cache(dialect: str) -> None:
    with FakeEngine(dialect, counting) as server:
        engine = OpenAI(server.url)
        engine.start(deployment())
        engine.reset()
        ask(engine, drafts=False)
    probe, asked = server.asked
    sampling = asked.get("sampling_params", asked)
    assert probe.get("prompt", probe.get("input_ids")) == PROBE
    assert asked.get("prompt", asked.get("input_ids")) == list(PROMPT)
    assert sampling["temperature"] == 0 and sampling["presence_penalty"] == sampling["frequency_penalty"] == 0
    assert sampling.get("repetition_penalty", sampling.get("repeat_penalty")) == 1
    if dialect == "llama_cpp":
        assert not asked["cache_prompt"] and asked["samplers"] == ["top_k"] and asked["top_k"] == 1
        assert server.posted == []
    else:
        assert sampling["stop_token_ids"] == [2]
        assert server.posted == [{"vllm": "/reset_prefix_cache", "sglang": "/flush_cache"}[dialect]]


@pytest.mark.parametrize(
    ("misbehaviour", "error"),
    [
        ("cached", "prefix_cached"),
        ("other_prompt", "other_prompt"),
        ("wrong_ids", "wrong_token_ids"),
        ("no_ids", "no_token_ids"),
        ("lost", "tokens_lost"),
        ("dying", "answer_cut"),
        ("refusing", "engine_refused"),
        ("broken", "engine_not_understood"),
    ],
)
@pytest.mark.parametrize("dialect", DIALECTS)
def test_an_answer_that_cannot_be_used_is_an_error(dialect: str, misbehaviour: str, error: str) -> None:
    assert error_of(lambda: asked_of(dialect, misbehaviour)) == error


def test_a_server_that_hangs_or_is_too_slow_costs_one_time_limit_and_is_asked_nothing_more() -> None:
    for misbehaviour in ("hanging", "slow"):
        with FakeEngine("vllm", counting, misbehaviour) as server:
            engine = OpenAI(server.url)
            engine.start(deployment())
            engine.limit_s = 3 * SLOW_S
            started_s = time.monotonic()
            assert error_of(lambda: ask(engine)) == "engine_too_slow"  # noqa: B023
            assert time.monotonic() - started_s < 3
            assert error_of(lambda: ask(engine)) == "engine_died"  # noqa: B023
            assert len(server.asked) == 2


@pytest.mark.parametrize("misbehaviour", ["split", "joined"])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_how_events_are_cut_into_packets_does_not_matter(dialect: str, misbehaviour: str) -> None:
    whole, cut = asked_of(dialect), asked_of(dialect, misbehaviour)
    assert (cut.token_ids, cut.steps) == (whole.token_ids, whole.steps)
    assert cut.reported is not None and whole.reported is not None
    assert cut.reported.arrived_tokens == whole.reported.arrived_tokens
    if misbehaviour == "joined":
        assert cut.reported.arrived_s[-1] - cut.reported.arrived_s[0] < SLOW_S


@pytest.mark.parametrize("misbehaviour", ["merged", "apart"])
def test_chunks_that_are_no_steps_leave_the_steps_unknown(misbehaviour: str) -> None:
    generation = asked_of("vllm", misbehaviour)
    told = generation.reported
    assert told is not None and (told.by_step, told.steps, told.drafted) == (False, None, None)
    assert generation.token_ids == TOKENS and generation.counters == {}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_false_counts_are_marked_and_left_out(dialect: str) -> None:
    generation = asked_of(dialect, "false_counts")
    told = generation.reported
    assert told is not None and (told.by_step, told.steps, told.drafted, told.accepted) == (False, None, None, None)
    assert generation.counters["wrong_counts"] == 1 and generation.token_ids == TOKENS


def test_sums_that_the_answer_contradicts_are_left_out() -> None:
    told = asked_of("sglang", "other_sums").reported
    assert told is not None and (told.steps, told.drafted, told.accepted) == (None, None, None)


def test_a_prefix_cache_that_is_not_reported_is_not_proved_to_be_off() -> None:
    with FakeEngine("vllm", counting, "silent") as server:
        assert OpenAI(server.url).start(deployment()).prefix_cache == "unproved"


def test_the_baseline_of_a_running_server_must_not_draft() -> None:
    with FakeEngine("llama_cpp", speculating) as server:
        engine = OpenAI(server.url)
        engine.start(deployment())
        assert error_of(lambda: ask(engine, drafts=False)) == "baseline_drafts"
        assert engine.plain() == engine
        assert OpenAI(server.url, plain_url="http://127.0.0.1:1").plain() == OpenAI("http://127.0.0.1:1")


def test_prompts_leave_the_machine_only_when_asked_and_with_a_notice(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Client("http://[::1]:80").is_local and Client("http://localhost").is_local
    assert not Client("https://example.org").is_local and not Client("http://10.0.0.1:8000").is_local
    assert error_of(lambda: OpenAI("http://192.0.2.1:1").check("target")) == "not_this_machine"
    monkeypatch.setattr(Client, "get", lambda self, path: None)
    notices: list[str] = []
    assert error_of(lambda: OpenAI("http://192.0.2.1:1", remote=True).start(deployment(notices))) == "no_server"
    assert len(notices) == 1 and "192.0.2.1" in notices[0]


def test_a_key_comes_from_the_environment_and_an_address_with_one_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY, "secret")
    with FakeEngine("vllm", counting) as server:
        engine = OpenAI(server.url)
        info = engine.start(deployment())
    assert server.asked[0]["key"] == "Bearer secret" and "secret" not in repr((engine, info))
    for url in ("http://name:secret@127.0.0.1", "127.0.0.1:80", "ftp://127.0.0.1", "http://127.0.0.1/?key=secret"):
        assert error_of(lambda: OpenAI(url)) == "bad_base_url"  # noqa: B023


def test_no_server_is_no_server_and_an_unknown_one_is_not_called_none() -> None:
    """Both had the same message: no server answers there."""
    for ids in ("", "none"):
        with refused("no_server", "127.0.0.1:9"):
            OpenAI("http://127.0.0.1:9", ids=ids).check("target")
    with FakeEngine("text", counting) as server, refused("engine_not_recognised", "/version", "/props", "ids=none"):
        OpenAI(server.url).check("target")


def test_a_server_of_text_alone_is_asked_for_text_and_has_times_alone() -> None:
    with FakeEngine("text", speculating) as server:
        engine = OpenAI(server.url, ids="none")
        engine.check("target")
        info = engine.start(deployment())
        question = Question(PROMPT, 7, (2,), Clock(), "three one four")
        generation = settle(engine.answer(question), question, drafts=True, limited_by_context=False, vocabulary=99)
    assert (info.name, info.version, info.prefix_cache) == ("unknown server", "", "off")
    body = server.asked[-1]
    assert (body["model"], body["prompt"], body["temperature"]) == ("model-0", "three one four", 0)
    told = generation.reported
    assert told is not None and generation.token_ids == () and generation.stop_reason == "length"
    assert (told.text, told.new_tokens, told.steps) == (" 5 6 7 8 9 10 11", 7, None)
    assert generation.ttft_s == told.arrived_s[0] <= told.arrived_s[-1] == generation.wall_s


@pytest.mark.parametrize(
    ("misbehaviour", "error"),
    [
        ("no_usage", "no_token_counts"),
        ("no_tokens", "no_tokens"),
        ("two_models", "several_models"),
        ("cached", "prefix_cached"),
    ],
)
def test_a_server_of_text_that_cannot_be_measured_is_an_error(misbehaviour: str, error: str) -> None:
    with FakeEngine("text", counting, misbehaviour) as server:
        engine = OpenAI(server.url, ids="none")

        def answer() -> None:
            engine.start(deployment())
            ask(engine)

        assert error_of(answer) == error
        if misbehaviour == "two_models":
            OpenAI(server.url, ids="none", model="model-1").start(deployment())
            assert server.asked[-1]["model"] == "model-1"


def test_a_known_server_that_takes_or_sends_no_ids_is_refused_with_what_to_do() -> None:
    """`answered 400: prompt must be a string` came without advice."""
    for misbehaviour, error in (("refusing_all", "engine_refused"), ("no_ids", "no_token_ids")):
        with FakeEngine("vllm", counting, misbehaviour) as server, refused(error, "ids=none"):
            OpenAI(server.url).start(deployment())
    with FakeEngine("vllm", counting) as server:
        info = OpenAI(server.url, ids="none").start(deployment())
    assert (info.name, info.version) == ("vLLM", VERSION) and server.asked[-1]["prompt"] == "1, 2,"


def started(folder: Path, name: str, *misbehaves: str, options: str = "", limit_s: float = 20) -> Served:
    server = program(folder, name, *misbehaves)
    engine = build_engine(parse_label(f"{name}[server={server},limit_s={limit_s}{options}]"))
    assert isinstance(engine, Served)
    return engine


@pytest.mark.parametrize(
    ("name", "options"), [("llama_cpp", ",ngram=3"), ("vllm", ",speculative=ngram"), ("sglang", ",speculative=NGRAM")]
)
def test_an_engine_is_started_speculates_only_where_asked_and_is_stopped(
    name: str, options: str, tmp_path: Path
) -> None:
    engine = started(tmp_path, name, "parent", options=options)
    info = engine.start(deployment(target="/models/of mine/model.gguf"))
    plain = engine.plain()
    assert isinstance(plain, Served) and plain.plain() == plain != engine
    plain_info = plain.start(deployment())
    threads = 1 if name == "llama_cpp" else 0  # of the others it is not known
    assert (info.run, info.version, info.dtype, info.threads) == ("started", VERSION, "float32", threads)
    assert set(plain_info.command[1:]) - {"model.gguf"} < {*info.command}, "they differ in speculation alone"
    assert "0" in info.command and not any("/models" in part or str(tmp_path) in part for part in info.command)
    assert ask(engine).token_ids == ask(plain, drafts=False).token_ids == TOKENS
    assert len(running(tmp_path)) == 4 and engine.cpu_s() > 0
    engine.stop()
    plain.stop()
    engine.stop()
    assert wait_for(lambda: running(tmp_path) == [])
    assert error_of(lambda: ask(engine)) == "engine_died"


def test_a_program_that_is_missing_or_a_target_that_it_cannot_read_is_named() -> None:
    missing = build_engine(parse_label("llama_cpp[server=no-such-server]"))
    assert error_of(lambda: missing.check("model.gguf")) == "engine_not_found"
    there = build_engine(parse_label("llama_cpp[server=sh]"))
    assert error_of(lambda: there.check("owner/name")) == "not_fetched"
    mixed = build_engine(parse_label(f"llama_cpp[server=sh,draft={__file__}]"))
    assert error_of(lambda: mixed.check("ref-dense")) == "unknown_model"


def test_a_python_without_sglang_is_named(tmp_path: Path) -> None:
    """The message was the last line of Python's traceback."""
    with refused("engine_not_found", sys.executable, "pip install sglang"):
        build_engine(parse_label(f"sglang[server={sys.executable}]")).check("target")
    (tmp_path / "python").write_text("#!/bin/sh\nexit 0\n")
    (tmp_path / "python").chmod(0o755)
    build_engine(parse_label(f"sglang[server={tmp_path}/python]")).check("target")


def test_llama_cpp_is_the_program_on_path_or_else_the_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With xllamacpp installed a user had to write a program llama-server around it."""
    (tmp_path / "a.gguf").touch()
    target = f"{tmp_path}/a.gguf"
    monkeypatch.setenv("PATH", str(tmp_path))

    def check(label: str, is_installed: bool) -> str:
        monkeypatch.setattr(llama_cpp, "find_spec", lambda name: is_installed or None)
        engine = build_engine(parse_label(label))
        assert isinstance(engine, llama_cpp.LlamaCpp)
        engine.check(target)
        words = engine.command(deployment(target=target), 80)
        return " ".join(words[: words.index("-m")])

    with refused("engine_not_found", "xllamacpp"):
        check("llama_cpp", False)
    with refused("engine_not_found", "other-server"):
        check("llama_cpp[server=other-server]", True)
    assert check("llama_cpp", True).startswith(f"{sys.executable} -P ")
    for name in ("llama-server", "other-server"):
        (tmp_path / name).touch(0o755)
        assert check(f"llama_cpp[server={name}]", True) == name


def test_a_draft_model_and_a_target_have_the_same_kind_of_file(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").touch()
    mixed = build_engine(parse_label(f"llama_cpp[server=sh,draft={tmp_path}/a.gguf]"))
    assert error_of(lambda: mixed.check("ref-dense")) == "mixed_vocabularies"
    mixed.check(f"{tmp_path}/a.gguf")
    quantised = build_engine(parse_label(f"llama_cpp[server=sh,draft={tmp_path}/a.gguf,quantised={tmp_path}/a.gguf]"))
    quantised.check("ref-dense")
    assert quantised.has_other_weights and not quantised.plain().has_other_weights


def test_a_server_that_does_not_start_is_an_error_with_its_last_words_and_is_gone(tmp_path: Path) -> None:
    with refused("engine_died", "no such model"):
        started(tmp_path, "llama_cpp", "crashing").start(deployment())
    slow = started(tmp_path, "llama_cpp", "never_ready", "parent", limit_s=1.5)
    assert error_of(lambda: slow.start(deployment())) == "engine_start_too_slow"
    assert error_of(lambda: started(tmp_path, "vllm", "no_ids").start(deployment())) == "no_token_ids"
    assert wait_for(lambda: running(tmp_path) == [])


def test_a_server_that_dies_takes_its_children_with_it(tmp_path: Path) -> None:
    engine = started(tmp_path, "llama_cpp", "dying", "parent")
    engine.start(deployment())
    assert len(running(tmp_path)) == 2
    assert error_of(lambda: ask(engine)) in ("answer_cut", "engine_gone", "engine_died")
    assert wait_for(lambda: running(tmp_path) == [])
    with refused("engine_died", "code 7"):
        ask(engine)
    engine.stop()


@pytest.mark.slow
def test_a_server_that_hangs_is_killed_even_if_it_does_not_want_to_end(tmp_path: Path) -> None:
    engine = started(tmp_path, "llama_cpp", "hanging", "stubborn", "parent", limit_s=8)
    engine.start(deployment())
    assert error_of(lambda: ask(engine)) == "engine_too_slow"
    assert wait_for(lambda: running(tmp_path) == [])


def test_the_engine_of_the_page_is_a_whole_engine(tmp_path: Path) -> None:
    """The example of docs/engines.md, with a program that speaks vLLM's dialect in place of its own."""
    (code,) = blocks(DOCS / "engines.md", "python")
    names: dict[str, Any] = {}
    exec(compile(code, "engines.md", "exec"), names)
    engine = names["Fork"](drafts=True)
    assert error_of(lambda: engine.check("model.gguf")) == "engine_not_found"
    command = engine.command(deployment(), 80)
    assert command == ["fork-serve", "model.gguf", "--port", "80", "--draft"]
    engine.command = lambda deployment, port: [str(program(tmp_path, "vllm")), "--port", str(port)]
    try:
        assert engine.start(deployment()).name == "vLLM"
        assert ask(engine, drafts=False).token_ids == TOKENS and engine.plain() == names["Fork"]()
    finally:
        engine.stop()


HOLD = """
import time
from pathlib import Path
from fake_engine import program
from benchctl.engines.llama_cpp import LlamaCpp
from benchctl.serving.engine import Deployment
folder = Path({folder!r})
engine = LlamaCpp(server=str(program(folder, "llama_cpp", "parent", "stubborn")))
try:
    engine.start(Deployment("model.gguf", "", "float32", "F32", 1, 64, time.monotonic, print))
    print("ready", flush=True)
    time.sleep(60)
finally:
    engine.stop()
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_running_however_benchctl_ends(number: signal.Signals, tmp_path: Path) -> None:
    code = HOLD.format(folder=str(tmp_path))
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1] / "helpers")}
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
    )
    with process:
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        assert len(running(tmp_path)) == 2
        process.send_signal(number)
        process.wait(30)
    try:
        assert wait_for(lambda: running(tmp_path) == [])
    finally:
        for pid in running(tmp_path):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def test_an_engine_takes_a_hub_id_whose_files_are_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from transformers.utils.hub import constants  # type: ignore[attr-defined]

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("benchctl.decoding.model.tokenizer.hub_reachable", lambda: False)
    of_id = tmp_path / "models--owner--tiny"
    snapshot = tiny_folder(of_id / "snapshots" / "0123")
    (of_id / "refs").mkdir()
    (of_id / "refs" / "main").write_text("0123")
    check_gguf("owner/tiny")
    for weights in snapshot.glob("*.safetensors"):
        weights.unlink()
    assert error_of(lambda: check_gguf("owner/tiny")) == "not_fetched"
    assert error_of(lambda: check_gguf("owner/other")) == "not_fetched"
