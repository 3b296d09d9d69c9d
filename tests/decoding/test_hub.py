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


def test_a_name_that_is_found_means_a_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, port: [])
    assert hub_reachable()


def test_behind_a_proxy_names_are_the_proxy_s_business(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "proxy:3128")
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, port: pytest.fail("asked"))
    assert hub_reachable()
