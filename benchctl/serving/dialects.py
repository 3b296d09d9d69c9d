"""What is sent to the servers of each engine, and how their events are read.

Requests send token ids, ask for ids, force greedy choices against the defaults of the server and of the model's files,
and name the target's stop ids; those of TextDialect send text. What an engine does not report stays None.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchctl.errors import UserError
from benchctl.serving.client import Client, Event
from benchctl.serving.engine import Answer, Chunk, Counts, Finish, Question

_GREEDY = {
    "temperature": 0.0,
    "top_p": 1.0,
    "top_k": 1,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}


class Dialect(ABC):
    """How the servers of one engine are spoken to.

    name        of the engine
    path        of generation
    facts       pages that may name the version of the engine, each with the name of the field
    reset_path   posted before each answer to empty the prefix cache; "" where requests turn it off
    shows_steps  whether the tokens of a step arrive together
    """

    name: str
    path: str
    facts: tuple[tuple[str, str], ...]
    reset_path: str = ""
    shows_steps: bool = True

    def version(self, client: Client) -> str | None:
        """The version of the engine; None where the server is not one of this engine."""
        return next(filter(None, (_text(client.get(page), field) for page, field in self.facts)), None)

    def dtype(self, client: Client) -> str:
        """The number format of the weights, "" where the server does not tell it."""
        return ""

    @abstractmethod
    def body(self, client: Client, question: Question) -> dict[str, Any]: ...

    @abstractmethod
    def read(self, events: Sequence[Event]) -> Answer:
        """Raises UserError for events that are no whole answer, KeyError and the like for others."""


class VllmDialect(Dialect):
    """vLLM's /v1/completions. Per-request counts need --per-request-spec-decode-metrics detailed."""

    name = "vLLM"
    path = "/v1/completions"
    facts = (("/version", "version"),)
    reset_path = "/reset_prefix_cache"

    def body(self, client: Client, question: Question) -> dict[str, Any]:
        models = client.get("/v1/models") or {}
        return {
            "model": next((model["id"] for model in models.get("data", ())), ""),
            "prompt": list(question.prompt_ids),
            "max_tokens": question.max_new_tokens,
            "stop_token_ids": list(question.stop_ids),
            "return_token_ids": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            **_GREEDY,
        }

    def read(self, events: Sequence[Event]) -> Answer:
        chunks, finish, usage, counts = list[Chunk](), None, dict[str, Any](), Counts()
        for event in events:
            _check(event.data)
            for choice in event.data.get("choices", ()):
                chunks += _chunk(event, _ids(choice, "token_ids"))
                finish = choice.get("finish_reason") or finish
            usage = event.data.get("usage") or usage
            if reported := (event.data.get("metrics") or {}).get("speculative_decoding"):
                counts = Counts(
                    steps=reported.get("num_spec_steps"),
                    drafted=reported["num_draft_tokens"],
                    accepted=reported["num_accepted_draft_tokens"],
                    drafted_each=_each(reported.get("per_step_drafted")),
                    accepted_each=_each(reported.get("per_step_accepted")),
                )
        return Answer(
            tuple(chunks),
            _finish(finish),
            counts,
            usage.get("prompt_tokens"),
            (usage.get("prompt_tokens_details") or {}).get("cached_tokens"),
            usage.get("completion_tokens"),
        )


class SglangDialect(Dialect):
    """SGLang's /generate. Its streams hold all ids so far, or with another server option the new ones."""

    name = "SGLang"
    path = "/generate"
    facts = (("/server_info", "version"), ("/get_server_info", "version"))
    reset_path = "/flush_cache"

    def body(self, client: Client, question: Question) -> dict[str, Any]:
        sampling = {
            "max_new_tokens": question.max_new_tokens,
            "stop_token_ids": list(question.stop_ids),
            **_GREEDY,
        }
        return {"input_ids": list(question.prompt_ids), "sampling_params": sampling, "stream": True}

    def read(self, events: Sequence[Event]) -> Answer:
        chunks, seen, reported = list[Chunk](), 0, dict[str, Any]()
        for event in events:
            _check(event.data)
            ids, reported = _ids(event.data, "output_ids"), event.data["meta_info"]
            new = ids[seen:] if len(ids) == reported["completion_tokens"] else ids
            seen += len(new)
            chunks += _chunk(event, new)
        accepted = reported.get("spec_num_correct_drafts", reported.get("spec_accept_token_num"))
        drafted = reported.get("spec_num_proposed_drafts", reported.get("spec_draft_token_num"))
        return Answer(
            tuple(chunks),
            _finish((reported.get("finish_reason") or {}).get("type")),
            Counts(reported.get("spec_verify_ct") if drafted is not None else None, drafted, accepted),
            reported.get("prompt_tokens"),
            reported.get("cached_tokens"),
            reported.get("completion_tokens"),
        )


class LlamaCppDialect(Dialect):
    """llama-server's /completion. It sends one event for each token, so its stream does not show steps."""

    name = "llama.cpp"
    path = "/completion"
    facts = (("/props", "build_info"),)
    shows_steps = False

    def dtype(self, client: Client) -> str:
        """`float32` where the file has four bytes for each weight; other types also compute in other formats."""
        for model in (client.get("/v1/models") or {}).get("data", ()):
            meta = model.get("meta") or {}
            if meta.get("n_params"):
                return "float32" if meta["size"] >= 3.9 * meta["n_params"] else "below float32"
        return ""

    def body(self, client: Client, question: Question) -> dict[str, Any]:
        return {
            "prompt": list(question.prompt_ids),
            "n_predict": question.max_new_tokens,
            "cache_prompt": False,
            "return_tokens": True,
            "stream": True,
            "samplers": ["top_k"],
            "top_k": 1,
            "temperature": 0.0,
            "repeat_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "stop": [],
        }

    def read(self, events: Sequence[Event]) -> Answer:
        chunks, last = list[Chunk](), dict[str, Any]()
        for event in events:
            _check(event.data)
            chunks += _chunk(event, _ids(event.data, "tokens"))
            last = dict(event.data)
        timings, drafted = last.get("timings") or {}, (last.get("timings") or {}).get("draft_n")
        # Where nothing was drafted the timings lack both fields. Without timings nothing is known.
        counts = Counts(drafted=drafted or 0, accepted=timings.get("draft_n_accepted") if drafted is not None else 0)
        kinds: dict[object, str] = {"eos": "stop", "word": "stop", "limit": "length"}
        return Answer(
            tuple(chunks),
            _finish(kinds.get(last.get("stop_type")) if last.get("stop") else None),
            counts if timings else Counts(),
            last.get("tokens_evaluated"),
            timings.get("cache_n"),
            last.get("tokens_predicted"),
        )


@dataclass(frozen=True)
class TextDialect(Dialect):
    """/v1/completions of any server: text in and text out, and at the end the number of tokens.

    model  what to ask the server for; "" where it has one
    """

    model: str = ""
    name = "unknown server"
    path = "/v1/completions"
    facts = ()
    shows_steps = False

    def body(self, client: Client, question: Question) -> dict[str, Any]:
        return {
            "model": self.model or self._only_model(client),
            "prompt": question.prompt_text,
            "max_tokens": question.max_new_tokens,
            "temperature": 0.0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }

    def _only_model(self, client: Client) -> str:
        found = [str(model["id"]) for model in (client.get("/v1/models") or {}).get("data", ())]
        if len(found) > 1:
            raise UserError(
                "several_models",
                f"{client.base_url} has {len(found)} models, such as {found[0]}. Name one with the option `model`.",
            )
        return found[0] if found else ""

    def read(self, events: Sequence[Event]) -> Answer:
        chunks, parts, finish, usage = list[Chunk](), list[str](), None, dict[str, Any]()
        for event in events:
            _check(event.data)
            for choice in event.data.get("choices", ()):
                finish = choice.get("finish_reason") or finish
                if choice.get("text") or choice.get("finish_reason"):
                    parts.append(choice.get("text") or "")
                    chunks.append(Chunk(event.at_s, ()))
            usage = event.data.get("usage") or usage
        return Answer(
            tuple(chunks),
            _finish(finish),
            cached_tokens=(usage.get("prompt_tokens_details") or {}).get("cached_tokens"),
            new_tokens=usage.get("completion_tokens"),
            text="".join(parts),
        )


DIALECTS: dict[str, Dialect] = {"vllm": VllmDialect(), "sglang": SglangDialect(), "llama_cpp": LlamaCppDialect()}


def _text(page: Any, name: str) -> str | None:
    found = page.get(name) if isinstance(page, dict) else None
    return str(found) if found else None


def _check(event: Mapping[str, Any]) -> None:
    if error := event.get("error"):
        raise UserError("engine_refused", f"the engine ended its answer with an error: {str(error)[:200]}")


def _ids(event: Mapping[str, Any], name: str) -> tuple[int, ...]:
    """Raises UserError where the server sends no ids: text could be cut into other tokens than the engine's."""
    if not isinstance(ids := event.get(name), list):
        raise UserError(
            "no_token_ids",
            f"the engine sent no token ids (`{name}`), so its answers cannot be counted or compared. Use a version "
            "that returns them.",
        )
    return tuple(ids)


def _chunk(event: Event, ids: tuple[int, ...]) -> list[Chunk]:
    return [Chunk(event.at_s, ids)] if ids else []


def _each(counts: Any) -> tuple[int, ...] | None:
    return tuple(counts) if isinstance(counts, list) else None


def _finish(reason: Any) -> Finish:
    if reason == "stop" or reason == "length":
        return "stop" if reason == "stop" else "length"
    raise UserError("answer_cut", f"the answer ended before it was finished (reason: {reason}).")
