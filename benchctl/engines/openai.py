"""A server that is already running: vLLM, SGLang or llama.cpp."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from benchctl.errors import UserError
from benchctl.records.schema import EngineInfo
from benchctl.serving.client import Client
from benchctl.serving.dialects import DIALECTS, Dialect
from benchctl.serving.engine import Deployment
from benchctl.serving.served import Served


@dataclass
class OpenAI(Served):
    """The server at ``base_url``. Its baseline is the one at ``plain_url``: the same engine without speculation.

    Without ``plain_url`` the server must not speculate, and is the baseline itself. ``dtype`` is that of its weights.
    Prompts go to another machine only with ``remote=true``.
    """

    base_url: str = "http://127.0.0.1:8000"
    plain_url: str = ""
    engine: Literal["auto", "vllm", "sglang", "llama_cpp"] = "auto"
    dtype: Literal["", "float32", "bfloat16", "float16", "quantised"] = ""
    remote: bool = False
    limit_s: float = 600.0

    def __post_init__(self) -> None:
        for url in filter(None, (self.base_url, self.plain_url)):
            Client(url)

    def check(self, target: str) -> None:
        client = Client(self.base_url)
        if not client.is_local and not self.remote:
            raise UserError(
                "not_this_machine",
                f"{self.base_url} is not on this machine, so all prompts would be sent there. To allow it add "
                "remote=true to the label.",
            )
        self._found(client)

    def runs_float16(self, target: str) -> bool:
        return True

    def start(self, deployment: Deployment) -> EngineInfo:
        client = Client(self.base_url)
        if not client.is_local:
            deployment.notify(f"All prompts are sent to {self.base_url}.")
        self.dialect, version = self._found(client)
        self._client = client
        self.check_weights(deployment, client)
        cached = self.probe(deployment).cached_tokens
        return EngineInfo(
            name=self.dialect.name,
            version=version,
            run="attached",
            dtype=self.dialect.dtype(client) or self.dtype,
            prefix_cache="unproved" if cached is None else "off",
            steps_from="chunks" if self.dialect.shows_steps else "counts",
        )

    def plain(self) -> OpenAI:
        return replace(self, base_url=self.plain_url or self.base_url, plain_url="")

    def reset(self) -> None:
        if self._client is not None and self.dialect.reset_path:
            self._client.post(self.dialect.reset_path)

    def _found(self, client: Client) -> tuple[Dialect, str]:
        """The dialect of the server and its version."""
        names = tuple(DIALECTS) if self.engine == "auto" else (self.engine,)
        for dialect in (DIALECTS[name] for name in names):
            if version := dialect.version(client):
                return dialect, version
        raise UserError(
            "engine_not_recognised",
            f"{self.base_url}: no server of {' or '.join(names)} answers there. Start it, or name its address with "
            "base_url.",
        )
