"""SGLang's server, started here. Its options are those of version 0.5; benchctl's tests never ran them."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass, replace

from benchctl.errors import UserError
from benchctl.serving.dialects import SglangDialect
from benchctl.serving.engine import Deployment
from benchctl.serving.served import Started


@dataclass
class Sglang(Started):
    """`sglang.launch_server` on the target, by the Python ``server``. ``speculative`` is an algorithm of SGLang.

    It verifies ``draft_tokens`` tokens in a step, drafted with the model ``draft`` where the algorithm needs one.

    The servers of a run, the baseline's and one for each label, share the GPU: each takes ``gpu_memory`` of it.
    """

    speculative: str = ""
    draft_tokens: int = 6
    draft: str = ""
    gpu_memory: float = 0.4
    server: str = "python3"
    limit_s: float = 900.0

    dialect = SglangDialect()

    def __post_init__(self) -> None:
        if not self.speculative:
            self.refuse_options("without speculative", "draft", "draft_tokens")

    def check(self, target: str) -> None:
        super().check(target)
        found = "import sys; from importlib.util import find_spec; sys.exit(find_spec('sglang') is None)"
        if subprocess.run([self.server, "-c", found], capture_output=True).returncode:
            raise UserError(
                "engine_not_found",
                f"{self.server} has no SGLang. Install it (pip install sglang), or name the Python that has it with "
                "`server`.",
            )

    def plain(self) -> Sglang:
        return replace(self, speculative="", draft="", draft_tokens=6)

    def command(self, deployment: Deployment, port: int) -> list[str]:
        speculation = ["--speculative-algorithm", self.speculative, "--speculative-num-draft-tokens"]
        speculation += [str(self.draft_tokens)]
        speculation += ["--speculative-draft-model-path", self.draft] if self.draft else []
        return [
            *(self.server, "-m", "sglang.launch_server", "--model-path", deployment.folder),
            *("--host", "127.0.0.1", "--port", str(port), "--dtype", deployment.dtype),
            *("--context-length", str(deployment.context_tokens), "--max-running-requests", "1"),
            *("--disable-radix-cache", "--sampling-defaults", "openai"),
            *("--mem-fraction-static", str(self.gpu_memory)),
            *(speculation if self.speculative else ()),
        ]
