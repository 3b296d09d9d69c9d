"""Whether the hub is there is asked of the name service, not of a client that waits and tries again."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
from refusals import refused

from benchctl.decoding.model.tokenizer import _generation_config, _stop_ids, downloaded_file, hub_reachable
from benchctl.decoding.modules.others import modules_folder, weights_file


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    hub_reachable.cache_clear()
    yield
    hub_reachable.cache_clear()


def test_a_name_that_cannot_be_looked_up_means_no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transformers.utils.hub.is_offline_mode", lambda: False)
    asked: list[object] = []

    def refuse(host: str, port: int) -> None:
        asked.append((host, port))
        raise socket.gaierror("no such name")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    assert not hub_reachable()
    assert len(asked) == 1 and "/" not in str(asked[0][0]) and ":" not in str(asked[0][0])  # type: ignore[index]


@pytest.mark.parametrize("proxy", ["", "proxy:3128"])
def test_a_name_that_is_found_or_that_a_proxy_looks_up_means_a_hub(monkeypatch: pytest.MonkeyPatch, proxy: str) -> None:
    offline = False
    monkeypatch.setattr("transformers.utils.hub.is_offline_mode", lambda: offline)
    monkeypatch.setenv("HTTPS_PROXY", proxy)
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, port: pytest.fail("asked") if proxy else [])
    assert hub_reachable()
    hub_reachable.cache_clear()
    offline = True
    assert not hub_reachable(), "HF_HUB_OFFLINE"


@pytest.mark.parametrize("answered", [True, False])
def test_a_hub_that_does_not_answer_is_no_repository_without_a_generation_configuration(
    monkeypatch: pytest.MonkeyPatch, answered: bool
) -> None:
    """Its stop tokens were left out without a word, so answers ran on to the limit."""
    from transformers import GenerationConfig

    def ask(*_: object, **__: object) -> None:
        try:
            raise ConnectionError("refused")
        except ConnectionError:
            if not answered:
                raise OSError("no connection")  # noqa: B904 - as transformers does
        raise OSError("no such file")

    monkeypatch.setattr(GenerationConfig, "from_pretrained", ask)
    monkeypatch.setattr("benchctl.decoding.model.tokenizer.hub_reachable", lambda: True)
    config = SimpleNamespace(eos_token_id=2)
    with nullcontext() if answered else refused("model_not_loadable", "HF_HUB_OFFLINE"):
        assert _stop_ids("owner/model", _generation_config("owner/model"), config, config).keys() == {2}


@pytest.mark.parametrize("written", [None, '{"eos_token_id": [2, 5]}', '{"eos_token_id": [2, 5]'])
def test_offline_the_generation_configuration_is_the_cached_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, written: str | None
) -> None:
    """A snapshot without one, as `benchctl fetch` leaves it, asked users to try again; a cut-off one was ignored."""
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, port: [])
    snapshot = _cached(monkeypatch, tmp_path)
    if written is not None:
        (snapshot / "generation_config.json").write_text(written)
    config = SimpleNamespace(eos_token_id=2)
    with refused("model_not_loadable", "generation_config.json") if written and written[-1] == "]" else nullcontext():
        stops = _stop_ids("owner/layer", _generation_config("owner/layer"), config, config)
        assert stops.keys() == ({2, 5} if written else {2})


def _cached(monkeypatch: pytest.MonkeyPatch, cache: Path) -> Path:
    """The snapshot of owner/layer in the hub's cache, which lies in that folder."""
    from transformers.utils.hub import constants  # type: ignore[attr-defined]

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    snapshot = cache / "models--owner--layer" / "snapshots" / "0123"
    snapshot.mkdir(parents=True)
    (cache / "models--owner--layer" / "refs").mkdir()
    (cache / "models--owner--layer" / "refs" / "main").write_text("0123")
    for name in ("config.json", "model.safetensors"):
        (snapshot / name).write_text("{}")
    return snapshot


def test_files_of_a_hub_id_are_found_in_its_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without a network; a file or an id that is not there is None, also where a folder of that name is missing."""
    snapshot = _cached(monkeypatch, tmp_path)
    assert downloaded_file("owner/layer", "config.json") == snapshot / "config.json"
    assert downloaded_file("owner/layer", "pytorch_model.bin") is None
    assert downloaded_file("owner/other", "config.json") is None
    assert modules_folder("owner/layer") == snapshot
    assert weights_file("owner/layer", ("heads.pt", "model.safetensors")) == snapshot / "model.safetensors"
    assert weights_file("owner/layer", ("heads.pt",)) is None
    assert modules_folder("some/where/else") == Path("some/where/else")
    assert weights_file("owner/other", ("model.safetensors",)) is None
