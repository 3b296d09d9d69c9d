"""Whether the hub is there is asked of the name service, not of a client that waits and tries again."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from benchctl.decoding.model.tokenizer import hub_reachable


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    hub_reachable.cache_clear()
    yield
    hub_reachable.cache_clear()


def test_a_name_that_cannot_be_looked_up_means_no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def refuse(host: str, port: int) -> None:
        asked.append((host, port))
        raise socket.gaierror("no such name")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    assert not hub_reachable()
    assert len(asked) == 1 and "/" not in str(asked[0][0]) and ":" not in str(asked[0][0])  # type: ignore[index]


@pytest.mark.parametrize("proxy", ["", "proxy:3128"])
def test_a_name_that_is_found_or_that_a_proxy_looks_up_means_a_hub(monkeypatch: pytest.MonkeyPatch, proxy: str) -> None:
    monkeypatch.setenv("HTTPS_PROXY", proxy)
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, port: pytest.fail("asked") if proxy else [])
    assert hub_reachable()
