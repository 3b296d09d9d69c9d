"""The model hub: whether it can be reached (without it only what is cached can be loaded), where it leaves files."""

from __future__ import annotations

import os
import socket
from functools import cache
from pathlib import Path


@cache
def hub_reachable() -> bool:
    """Whether the hub's name can be looked up, or a proxy does that. The hub's own client retries for half a minute."""
    from transformers.utils.hub import constants  # type: ignore[attr-defined]

    if any(os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")):
        return True
    try:
        socket.getaddrinfo(constants.ENDPOINT.partition("//")[2].partition("/")[0].partition(":")[0], 443)
    except OSError:
        return False
    return True


def downloaded(hub_id: str) -> Path | None:
    """The folder in which the files of a hub id were cached."""
    from transformers.utils.hub import cached_file

    config = cached_file(hub_id, "config.json")
    return Path(config).parent if config else None
