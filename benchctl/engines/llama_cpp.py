"""llama-server of llama.cpp, started here. Its options are those of build b11434."""

from __future__ import annotations

from dataclasses import dataclass, replace

from benchctl.errors import UserError
from benchctl.serving.dialects import LlamaCppDialect
from benchctl.serving.engine import Deployment
from benchctl.serving.served import Started


@dataclass
class LlamaCpp(Started):
    """The program ``server`` on the target, which must be a GGUF file, or on ``gguf``, the same weights as one.

    It drafts ``draft_tokens`` with the GGUF file ``draft``, or what followed the last ``ngram`` tokens before.
    """

    draft: str = ""
    ngram: int = 0
    draft_tokens: int = 5
    gguf: str = ""
    server: str = "llama-server"
    limit_s: float = 600.0

    dialect = LlamaCppDialect()
    takes_threads = True

    def __post_init__(self) -> None:
        if self.draft and self.ngram:
            raise ValueError("draft and ngram are two ways to draft; name one")
        if self.ngram < 0 or self.draft_tokens < 1:
            raise ValueError("ngram must be at least 0 and draft_tokens at least 1")

    def plain(self) -> LlamaCpp:
        return replace(self, draft="", ngram=0, draft_tokens=5)

    def check(self, target: str) -> None:
        super().check(target)
        file = self.gguf or target
        if not file.endswith(".gguf"):
            raise UserError(
                "needs_gguf",
                f"llama.cpp reads GGUF files, and the target is {file}. Give the target as --model FILE.gguf, or the "
                "same weights with the option gguf=FILE.gguf.",
            )

    def command(self, deployment: Deployment, port: int) -> list[str]:
        file = self.gguf or deployment.target
        # The cache has the precision of the target; the server's default is float16.
        cache = ["-ctk", "f32", "-ctv", "f32"] if deployment.dtype == "float32" else []
        speculation = []
        if self.draft:
            speculation = ["--spec-type", "draft-simple", "-md", self.draft, "--spec-draft-n-max"]
            speculation += [str(self.draft_tokens)]
            speculation += ["-ctkd", "f32", "-ctvd", "f32"] if cache else []
        elif self.ngram:
            speculation = ["--spec-type", "ngram-simple", "--spec-ngram-simple-size-n", str(self.ngram)]
            speculation += ["--spec-ngram-simple-size-m", str(self.draft_tokens)]
        return [
            *(self.server, "-m", file, "--host", "127.0.0.1", "--port", str(port)),
            # One request at a time, no prompt cache, and no idle thread that waits in a loop.
            *("--parallel", "1", "--no-cache-prompt", "--cache-ram", "0", "--poll", "0", "--no-webui"),
            *("-t", str(deployment.threads), "-c", str(deployment.context_tokens)),
            *cache,
            *speculation,
        ]
