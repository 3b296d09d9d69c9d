"""vLLM's server, started here. Its options are those of version 0.32."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

from benchctl.serving.dialects import VllmDialect
from benchctl.serving.engine import Deployment
from benchctl.serving.served import Started


@dataclass
class Vllm(Started):
    """`vllm serve` on the target. ``speculative`` is a method of vLLM, such as ngram, eagle3 or draft_model.

    It drafts ``draft_tokens``, with the model ``draft`` where the method needs one.

    The servers of a run, the baseline's and one for each label, share the GPU: each takes ``gpu_memory`` of it.
    """

    speculative: str = ""
    draft_tokens: int = 5
    draft: str = ""
    gpu_memory: float = 0.4
    server: str = "vllm"
    limit_s: float = 900.0

    dialect = VllmDialect()

    def __post_init__(self) -> None:
        if not self.speculative:
            self.refuse_options("without speculative", "draft", "draft_tokens")

    def plain(self) -> Vllm:
        return replace(self, speculative="", draft="", draft_tokens=5)

    def command(self, deployment: Deployment, port: int) -> list[str]:
        speculation: dict[str, str | int] = {"method": self.speculative, "num_speculative_tokens": self.draft_tokens}
        speculation |= {"model": self.draft} if self.draft else {}
        speculation |= {"prompt_lookup_min": 1, "prompt_lookup_max": 3} if self.speculative == "ngram" else {}
        return [
            *(self.server, "serve", deployment.folder, "--host", "127.0.0.1", "--port", str(port)),
            *("--dtype", deployment.dtype, "--max-model-len", str(deployment.context_tokens), "--max-num-seqs", "1"),
            *("--no-enable-prefix-caching", "--generation-config", "vllm", "--enable-prompt-tokens-details"),
            *("--gpu-memory-utilization", str(self.gpu_memory)),
            *(("--speculative-config", json.dumps(speculation)) if self.speculative else ()),
            *(("--per-request-spec-decode-metrics", "detailed") if self.speculative else ()),
        ]
