"""A server that is already running: vLLM, SGLang or llama.cpp."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from benchctl.errors import UserError
from benchctl.records.schema import EngineInfo
from benchctl.serving.client import KEY, Client
from benchctl.serving.dialects import DIALECTS, Dialect, TextDialect
from benchctl.serving.engine import Answer, Deployment
from benchctl.serving.served import Served


@dataclass
class OpenAI(Served):
    """The server at ``base_url``. Its baseline is the one at ``plain_url``: the same engine without speculation.

    Without ``plain_url`` the server must not speculate, and is the baseline itself. ``dtype`` is that of its weights.
    Prompts go to another machine only with ``remote=true``.

    With ``ids=none`` prompts are sent as text, to /v1/completions of any server, for its ``model``. Only times are
    measured: answers without token ids are not compared.
    """

    base_url: str = "http://127.0.0.1:8000"
    plain_url: str = ""
    engine: Literal["auto", "vllm", "sglang", "llama_cpp"] = "auto"
    dtype: Literal["", "float32", "bfloat16", "float16", "quantised"] = ""
    ids: Literal["", "none"] = ""
    model: str = ""
    remote: bool = False
    limit_s: float = 600.0

    def __post_init__(self) -> None:
        for url in filter(None, (self.base_url, self.plain_url)):
            Client(url)
        if self.sends_ids:
            self.refuse_options("without ids=none", "model")

    @property
    def sends_ids(self) -> bool:
        return self.ids != "none"

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
        found, version = self._found(client)
        self.dialect, self._client = found if self.sends_ids else TextDialect(self.model), client
        self.check_weights(deployment, client)
        cached = self._probed(deployment).cached_tokens
        return EngineInfo(
            name=found.name,
            version=version,
            run="attached",
            dtype=found.dtype(client) or self.dtype,
            prefix_cache="unproved" if cached is None else "off",
            steps_from="chunks" if self.dialect.shows_steps else "counts",
        )

    def plain(self) -> OpenAI:
        return replace(self, base_url=self.plain_url or self.base_url, plain_url="")

    def reset(self) -> None:
        if self._client is not None and self.dialect.reset_path:
            self._client.post(self.dialect.reset_path)

    def _probed(self, deployment: Deployment) -> Answer:
        try:
            return self.probe(deployment)
        except UserError as error:
            if self.sends_ids and error.id in ("engine_refused", "no_token_ids"):
                advice = "If the server takes or sends text alone, add ids=none to the label: then speed is measured."
                raise UserError(error.id, f"{error} {advice}") from error
            raise

    def _found(self, client: Client) -> tuple[Dialect, str]:
        """The dialect of the server and its version; with ``ids=none`` any server will do."""
        names = tuple(DIALECTS) if self.engine == "auto" else (self.engine,)
        for dialect in (DIALECTS[name] for name in names):
            if version := dialect.version(client):
                return dialect, version
        if not client.is_there:
            raise UserError(
                "no_server", f"{self.base_url}: no server answers there. Start it, or name its address with base_url."
            )
        if not self.sends_ids:
            return TextDialect(self.model), ""
        pages = ", ".join(page for name in names for page, _ in DIALECTS[name].facts)
        raise UserError(
            "engine_not_recognised",
            f"{self.base_url}: a server answers there, but it is not {' or '.join(names)}, which name their versions "
            f"at {pages}. Check base_url, and the key in {KEY} if it asks for one. To measure speed alone, add "
            "ids=none to the label.",
        )
