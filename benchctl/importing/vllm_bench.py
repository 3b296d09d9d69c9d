"""Results of `vllm bench serve --save-result --save-detailed`: one object with a list for each quantity.

The id of a prompt is its place in the data set. A time ends with the last chunk of text. Where the server reports no
usage, vLLM counts the tokens of the text itself. The acceptance in these files is a sum over the server.
"""

from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct

from benchctl.importing.published_answers import Answer
from benchctl.importing.published_lines import Counts, Times, not_as_published
from benchctl.importing.requests import Requests, decode, most_at_once, only_means, several_loads
from benchctl.records.reader import is_json


class _Result(Struct, frozen=True):
    model_id: Annotated[str, Meta(min_length=1)]
    date: str = ""
    label: str | None = None
    max_concurrency: int | None = None
    input_lens: Counts | None = None
    output_lens: Counts | None = None
    ttfts: Times | None = None
    itls: list[Times] | None = None
    generated_texts: list[str] | None = None
    errors: list[str] | None = None
    start_times: list[float] | None = None


def read(path: Path, text: bytes) -> Requests:
    """Raises InvalidData for a file without single requests, of several results, or of another shape."""
    lines = text.strip().splitlines()
    if len(lines) > 1 and is_json(lines[0]):
        raise several_loads(path, len(lines), "Give each of its lines as a file of its own.")
    result = decode(path, text, _Result)
    prompts, new, ttfts, itls = result.input_lens, result.output_lens, result.ttfts, result.itls
    if prompts is None or new is None or ttfts is None or itls is None:
        raise only_means(path, "Run `vllm bench serve` with --save-result --save-detailed.")
    texts, errors = result.generated_texts or [""] * len(new), result.errors or [""] * len(new)
    if len({len(values) for values in (prompts, new, ttfts, itls, texts, errors)}) > 1:
        raise not_as_published(path, 1, "its lists differ in length")
    answers = tuple(
        Answer(str(number), 0, 0, "", prompt_tokens=prompts[number], error=_reason(errors[number]))
        if errors[number] or not new[number]
        else _answer(number, texts[number], prompts[number], new[number], ttfts[number], itls[number])
        for number in range(len(new))
    )
    written_s = 0.0
    with suppress(ValueError):  # a local time whose zone is not in the file
        written_s = datetime.strptime(result.date, "%Y%m%d-%H%M%S").replace(tzinfo=UTC).timestamp()
    return Requests("vllm-bench", result.label or result.model_id, answers, _at_once(result, answers), written_s)


def _answer(number: int, text: str, prompt_tokens: int, new_tokens: int, ttft_s: float, gaps_s: Times) -> Answer:
    """Without a stream there is no time to the first token, and the file lacks that of the whole answer."""
    times = (ttft_s, ttft_s + sum(gaps_s)) if ttft_s else (None, None)
    return Answer(str(number), 0, 0, text, new_tokens, wall_s=times[1], prompt_tokens=prompt_tokens, ttft_s=times[0])


def _reason(error: str) -> str:
    """The last line of a traceback."""
    return f"the request failed: {(error.strip().splitlines() or ['no tokens came'])[-1][:200]}"


def _at_once(result: _Result, answers: tuple[Answer, ...]) -> int | None:
    if result.max_concurrency == 1:
        return 1
    starts = result.start_times
    unknown = any(answer.wall_s is None and not answer.error for answer in answers)
    if starts is None or len(starts) != len(answers) or unknown:
        return None
    return most_at_once((start, start + (answer.wall_s or 0.0)) for start, answer in zip(starts, answers, strict=True))
