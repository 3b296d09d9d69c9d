"""The order of sources: BENCHCTL_DATA, cache, public address, embedded sample; no test here meets a network."""

import io
import socket
import threading
from email.message import Message
from http.client import RemoteDisconnected
from pathlib import Path
from typing import IO
from urllib.error import HTTPError, URLError

import pytest
from disks import full_disk
from refusals import refused

from benchctl.measuring.prompts import sources, suites
from benchctl.measuring.prompts.sources import SIZE_LIMIT_BYTES, Downloader, UnreachableError, prompts_folder, sha256
from benchctl.measuring.prompts.suites import Suite, load_suite

CONTENT = b'{"id": "koala_0", "prompt": "Hello?"}\n'
WIZARD = b'{"idx": 1, "Skill": "Math", "Difficulty": 1, "Instruction": "2 + 2?"}\r\n'


VICUNA = b'{"question_id": 1, "category": "generic", "turns": ["Hi?"]}\n'
SPEC_BENCH = b'{"question_id": 2, "category": "rag", "turns": ["Hi?"]}\n'


class Network:
    """A fake opener: answers with one content, or fails with one error, and counts the calls."""

    def __init__(self, answer: bytes | Exception) -> None:
        self.answer = answer
        self.addresses: list[str] = []

    def __call__(self, address: str, timeout_s: float) -> IO[bytes]:
        self.addresses.append(address)
        if isinstance(self.answer, Exception):
            raise self.answer
        return io.BytesIO(self.answer)


OFFLINE = URLError(socket.gaierror(-2, "Name or service not known"))


@pytest.fixture(autouse=True)
def small_suites(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Four suites pinned to the one-line files above, and a cache of the test's own."""
    monkeypatch.delenv("BENCHCTL_DATA", raising=False)
    monkeypatch.setenv("BENCHCTL_CACHE", str(tmp_path / "cache"))
    contents = {"koala": CONTENT, "wizardlm": WIZARD, "vicuna": VICUNA, "spec-bench": SPEC_BENCH}
    pins = {name: sha256(content) for name, content in contents.items()}
    pinned = tuple(sources.SuiteSpec(**{**vars(spec), "sha256": pins.get(spec.name, "")}) for spec in suites.SUITES)
    monkeypatch.setattr(suites, "SUITES", pinned)


def load(
    network: Network | Downloader,
    name: str = "koala",
    source: str = "auto",
    data_dir: Path | None = None,
    notices: list[str] | None = None,
) -> Suite:
    downloader = Downloader(network) if isinstance(network, Network) else network
    notices = [] if notices is None else notices
    with pytest.MonkeyPatch.context() as patch:
        if data_dir is not None:
            patch.setenv("BENCHCTL_DATA", str(data_dir))
        return load_suite(name, source=source, limit=None, notify=notices.append, downloader=downloader)


def kept() -> Path:
    return prompts_folder() / "koala/koala_test_set.jsonl"


def test_fetched_file_is_announced_checked_kept_and_then_read_from_the_cache() -> None:
    network, notices = Network(CONTENT), list[str]()
    first = load(network, notices=notices)
    again = load(Network(OFFLINE), source="published", notices=notices)
    assert first == again
    assert (first.source, first.origin, first.sha256) == ("published", network.addresses[0], sha256(CONTENT))
    assert len(notices) == 1 and network.addresses[0] in notices[0]
    assert [path.name for path in kept().parent.iterdir()] == ["koala_test_set.jsonl"]


def test_a_copy_that_an_earlier_version_kept_is_read_from_its_place() -> None:
    prompts_folder().mkdir(parents=True)
    (prompts_folder() / "koala_test_set.jsonl").write_bytes(CONTENT)
    notices: list[str] = []
    assert load(Network(OFFLINE), notices=notices).source == "published" and notices == []


def test_fetched_file_with_another_checksum_is_an_error_and_not_kept() -> None:
    with refused("not_published_file", f"sha256 {sha256(b'other')}", f"expected {sha256(CONTENT)}"):
        load(Network(b"other"))
    assert not kept().exists()


def test_a_damaged_cache_is_noticed_and_fetched_anew() -> None:
    kept().parent.mkdir(parents=True)
    kept().write_bytes(b"torn")
    notices: list[str] = []
    assert load(Network(CONTENT), notices=notices).source == "published"
    assert f"{kept()} is damaged" in notices[0] and kept().read_bytes() == CONTENT


@pytest.mark.parametrize("fault", ["folder", "disk"])
def test_an_unwritable_cache_costs_a_notice_only(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notices: list[str] = []
    if fault == "folder":
        (tmp_path / "cache").write_text("a file where a folder should be")
    else:
        monkeypatch.setattr("benchctl.measuring.prompts.sources.os.replace", full_disk)
    assert load(Network(CONTENT), notices=notices).source == "published"
    assert "not kept in" in notices[-1] and not kept().exists()
    assert fault == "folder" or list(kept().parent.iterdir()) == []


def test_without_network_the_embedded_sample_replaces_the_published_prompts_unless_those_are_asked_for() -> None:
    notices: list[str] = []
    suite = load(Network(OFFLINE), notices=notices)
    assert (suite.source, len(suite.prompts)) == ("embedded", 30)
    (notice,) = notices
    assert all(fact in notice for fact in ("Name or service not known", "30", "180", "BENCHCTL_DATA"))
    with refused("suite_unreachable", "koala", "BENCHCTL_DATA", "--source embedded", str(kept())):
        load(Network(OFFLINE), source="published")


def test_a_suite_without_a_sample_is_refused_without_network_with_the_place_for_its_file() -> None:
    place = prompts_folder() / "vicuna_bench/question.jsonl"
    with refused("suite_unreachable", "vicuna", str(place), "Name or service not known"):
        load(Network(OFFLINE), "vicuna")
    place.parent.mkdir(parents=True)
    place.write_bytes(VICUNA)
    assert load(Network(OFFLINE), "vicuna").prompts[0].turns == ("Hi?",)
    with refused("no_sample", "vicuna"):
        load(Network(OFFLINE), "vicuna", source="embedded")


def test_two_suites_whose_files_have_one_name_are_both_kept() -> None:
    network = Network(OFFLINE)
    for name, content in (("vicuna", VICUNA), ("spec-bench", SPEC_BENCH)):
        load(Network(content), name)
    assert [load(network, name).prompts[0].id for name in ("vicuna", "spec-bench")] == ["1", "2"]
    assert network.addresses == []


def test_embedded_touches_neither_network_nor_cache_nor_folder(tmp_path: Path) -> None:
    network, notices = Network(CONTENT), list[str]()
    load(network)
    assert load(network, source="embedded", data_dir=tmp_path, notices=notices).source == "embedded"
    assert len(network.addresses) == 1
    assert len(notices) == 1 and "30" in notices[0] and "180" in notices[0]


def test_machine_without_network_is_asked_once_for_all_suites(monkeypatch: pytest.MonkeyPatch) -> None:
    network, notices = Network(OFFLINE), list[str]()
    monkeypatch.setattr(suites, "_DOWNLOADER", Downloader(network))
    for name in ("koala", "wizardlm"):
        assert load_suite(name, source="auto", limit=None, notify=notices.append).source == "embedded"
    assert len(network.addresses) == 1


def test_refusal_for_one_address_does_not_count_as_offline() -> None:
    network = Network(HTTPError("https://a.example", 404, "Not Found", Message(), io.BytesIO()))
    downloader = Downloader(network)
    notices: list[str] = []
    load(downloader, notices=notices)
    load(downloader, "wizardlm", notices=notices)
    assert len(network.addresses) == 2
    assert "HTTP 404 Not Found" in notices[1]


def test_silent_network_is_given_up_after_the_first_answers_time() -> None:
    """A name look-up has no time limit of its own; a machine behind a dead resolver would hang for half a minute."""
    started, release = threading.Event(), threading.Event()
    holds_up_the_end: list[bool] = []

    def silent(address: str, timeout_s: float) -> IO[bytes]:
        holds_up_the_end.append(not threading.current_thread().daemon)
        started.set()
        release.wait()
        return io.BytesIO(CONTENT)

    downloader = Downloader(silent, timeout_s=0.02)
    for _ in range(2):
        with pytest.raises(UnreachableError, match="0.02 s"):
            downloader.fetch("https://a.example")
    assert started.wait(60)  # it may get a core only after it was given up
    release.set()
    assert holds_up_the_end == [False]


@pytest.mark.parametrize("error", [TimeoutError("timed out"), RemoteDisconnected("closed"), ValueError("bad proxy")])
def test_each_way_a_connection_fails_is_unreachable(error: Exception) -> None:
    with pytest.raises(UnreachableError, match=str(error)):
        Downloader(Network(error)).fetch("https://a.example")


def test_endless_answer_is_cut_at_the_size_limit() -> None:
    with open("/dev/zero", "rb") as endless:
        content = Downloader(lambda address, timeout_s: endless).fetch("https://a.example")
    assert len(content) == SIZE_LIMIT_BYTES


@pytest.mark.parametrize("place", ["koala/koala_test_set.jsonl", "koala_test_set.jsonl"])
def test_data_dir_is_read_in_the_published_layout_and_flat(tmp_path: Path, place: str) -> None:
    path = tmp_path / "data" / place
    path.parent.mkdir(parents=True)
    path.write_bytes(CONTENT)
    network = Network(OFFLINE)
    suite = load(network, source="published", data_dir=tmp_path / "data")
    assert suite.source == "published" and suite.origin.startswith("https://")
    assert network.addresses == []


def test_data_dir_without_the_file_never_falls_through(tmp_path: Path) -> None:
    network = Network(CONTENT)
    load(network)
    with refused("data_folder", "koala/koala_test_set.jsonl", str(tmp_path)):
        load(network, data_dir=tmp_path)
    with refused("data_folder", "absent"):
        load(network, data_dir=tmp_path / "absent")
    assert len(network.addresses) == 1


def test_changed_file_in_data_dir_runs_as_a_file_but_never_as_published(tmp_path: Path) -> None:
    path = tmp_path / "koala_test_set.jsonl"
    path.write_bytes(CONTENT + b'{"id": "mine", "prompt": "Hi?"}\n')
    notices: list[str] = []
    suite = load(Network(OFFLINE), data_dir=tmp_path, notices=notices)
    assert (suite.source, suite.origin, len(suite.prompts)) == ("file", str(path), 2)
    assert str(path) in notices[0] and "koala" in notices[0]
    with refused("not_published_file", "koala_test_set.jsonl"):
        load(Network(OFFLINE), source="published", data_dir=tmp_path)


def test_in_a_flat_folder_the_published_file_goes_before_another_of_its_name(tmp_path: Path) -> None:
    (tmp_path / "spec_bench").mkdir()
    (tmp_path / "spec_bench/question.jsonl").write_bytes(VICUNA)
    (tmp_path / "question.jsonl").write_bytes(SPEC_BENCH)
    assert load(Network(OFFLINE), "spec-bench", source="published", data_dir=tmp_path).prompts[0].id == "2"


def test_non_commercial_licence_is_announced_for_published_prompts_only() -> None:
    notices: list[str] = []
    suite = load(Network(WIZARD), "wizardlm", notices=notices)
    assert suite.prompts[0].turns == ("2 + 2?",)
    assert "CC BY-NC 4.0" in notices[-1]
    notices.clear()
    (prompts_folder() / "wizardlm/WizardLM_testset.jsonl").unlink()
    assert load(Network(OFFLINE), "wizardlm", notices=notices).source == "embedded"
    assert not any("CC BY-NC" in text for text in notices)


def test_prompts_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("BENCHCTL_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert prompts_folder() == tmp_path / "benchctl" / "prompts"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert prompts_folder() == tmp_path / ".cache" / "benchctl" / "prompts"
