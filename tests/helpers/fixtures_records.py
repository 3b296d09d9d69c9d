"""Runs and rows made in code, with times and tokens chosen so that every figure can be worked out by hand."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchctl.records.schema import Exactness, MethodInfo, ModelInfo, Row, Run, SuiteInfo, to_line

BASELINE = "autoregressive"
DRAFTED = "two_model[draft_tokens=3]"
EXITING = "early_exit"
LAYERS = 12

TARGET = ModelInfo(
    name="reference",
    family="llama",
    layers=LAYERS,
    hidden_size=256,
    parameters=9_000_000,
    vocabulary=4096,
    context_tokens=1024,
    weights_sha256="aa",
    tokenizer_sha256="bb",
    chat_template_sha256="cc",
)
KOALA = SuiteInfo(name="koala", source="published", origin="koala.jsonl", sha256="dd", prompts=20)
MT_BENCH = SuiteInfo(name="mt-bench", source="published", origin="mt-bench.jsonl", sha256="ee", prompts=20)


def method(label: str, exactness: Exactness = "exact", unsupported: str = "") -> MethodInfo:
    name = label.partition("[")[0]
    reason = "its answers may differ" if exactness == "lossy" else ""
    return MethodInfo(label=label, name=name, options={}, exactness=exactness, reason=reason, unsupported=unsupported)


RUN = Run(
    name="first",
    created="2025-01-01T00:00:00+00:00",
    command=("benchctl", "run"),
    baseline=BASELINE,
    target=TARGET,
    draft=None,
    suites=(KOALA,),
    methods=(method(BASELINE), method(DRAFTED), method(EXITING, "lossy")),
    dtype="float32",
    device="cpu",
    executor="eager",
    attention="sdpa",
    threads=1,
    temperature=0.0,
    top_p=1.0,
    top_k=0,
    seed=0,
    max_new_tokens=64,
    repeats=2,
    order="abba",
    machine={"cpu": "A", "gpu": "", "cores": 2, "load_average": [0.0, 0.0, 0.0]},
    versions={"torch": "2"},
    commit="",
)


def baseline_row(prompt_id: str = "p0", *, tokens: int = 9, step_s: float = 1.0, ttft_s: float = 2.0) -> Row:
    """An answer of `tokens` tokens, one a step: whole time `ttft_s + (tokens - 1) * step_s`."""
    steps = tokens - 1
    return Row(
        suite="koala",
        prompt_id=prompt_id,
        turn=0,
        label=BASELINE,
        repeat=0,
        session=0,
        order=0,
        prompt_tokens=5,
        token_ids=tuple(range(tokens)),
        text="text",
        stop_reason="length",
        ttft_s=ttft_s,
        step_s=(step_s,) * steps,
        committed=(1,) * steps,
        drafted=(0,) * steps,
        accepted=(0,) * steps,
        rows=(1,) * steps,
        layers=(LAYERS,) * tokens,
    )


def drafted_row(prompt_id: str = "p0", *, steps: int = 4, step_s: float = 1.0, ttft_s: float = 2.0) -> Row:
    """An identical answer of `1 + 2 * steps` tokens: each step drafts 3, accepts 1 and adds the bonus token."""
    return replace(
        baseline_row(prompt_id, tokens=1 + 2 * steps, ttft_s=ttft_s),
        label=DRAFTED,
        step_s=(step_s,) * steps,
        committed=(2,) * steps,
        drafted=(3,) * steps,
        accepted=(1,) * steps,
        rows=(4,) * steps,
        verdict="identical",
    )


Steps = Sequence[tuple[int, int]]
"""Drafted and accepted, step by step; each step also commits a bonus token."""


def stepped_row(steps: Steps, prompt_id: str = "p0", *, nodes: int = 1, cut: int = 0) -> Row:
    """A row of these steps. Each drafted position has `nodes` rows in the tree; the last step lost its last `cut`
    tokens to a stop token or the limit."""
    committed = [accepted + 1 for _, accepted in steps]
    committed[-1] -= cut
    accepted = [kept for _, kept in steps]
    accepted[-1] = min(accepted[-1], committed[-1])
    tokens = 1 + sum(committed)
    return replace(
        baseline_row(prompt_id, tokens=tokens),
        label=DRAFTED,
        step_s=(1.0,) * len(steps),
        committed=tuple(committed),
        drafted=tuple(drafted for drafted, _ in steps),
        accepted=tuple(accepted),
        rows=tuple(1 + nodes * drafted for drafted, _ in steps),
        verdict="identical",
    )


def exiting_row(prompt_id: str = "p0", *, tokens: int = 9, step_s: float = 0.5, layers: int = 6) -> Row:
    """A lossy answer that leaves the baseline's at its third token, and runs `layers` layers for all but the first."""
    return replace(
        baseline_row(prompt_id, tokens=tokens, step_s=step_s),
        label=EXITING,
        layers=(LAYERS,) + (layers,) * (tokens - 1),
        verdict="lossy",
        first_divergence=2,
        margin=0.5,
        noise=1e-6,
    )


def failed(row: Row, error: str = "the prompt is longer than the context") -> Row:
    """The row as it would be had its generation failed."""
    return Row(
        suite=row.suite,
        prompt_id=row.prompt_id,
        turn=row.turn,
        label=row.label,
        repeat=row.repeat,
        session=row.session,
        order=row.order,
        prompt_tokens=row.prompt_tokens,
        batch=row.batch,
        error=error,
    )


def batch(*rows: Row) -> list[Row]:
    """The rows as if decoded together."""
    return [replace(row, batch=tuple(each.prompt_id for each in rows)) for row in rows]


def write(path: Path, rows: Sequence[Row], run: Run = RUN) -> Path:
    """A file of `run` and `rows`; the modes of the rows become the run's."""
    modes = tuple(dict.fromkeys((*run.modes, *(row.mode for row in rows))))
    path.write_bytes(to_line(replace(run, modes=modes)) + b"".join(map(to_line, rows)))
    return path


def usual_rows(prompts: int = 20) -> list[Row]:
    """Answers of the three methods to each prompt, of lengths 9, 11, 13, 9 ... with times that vary a little."""
    rows: list[Row] = []
    for index in range(prompts):
        prompt_id, steps = f"p{index}", 4 + index % 3
        tokens, pace = 1 + 2 * steps, 1 + 0.01 * (index % 7)
        rows += [
            baseline_row(prompt_id, tokens=tokens, step_s=pace),
            drafted_row(prompt_id, steps=steps, step_s=1.1 + 0.02 * (index % 5)),
            exiting_row(prompt_id, tokens=tokens, step_s=0.6 * pace),
        ]
    return rows
