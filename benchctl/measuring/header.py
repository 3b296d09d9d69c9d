"""The first record of a results file: everything fixed before the first generation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchctl.decoding.model.layers import Experts
from benchctl.decoding.model.target import Target
from benchctl.decoding.modules.folder import modules_sha256
from benchctl.measuring.check import CheckedRun, Choice
from benchctl.measuring.clock import utc_now
from benchctl.measuring.machine.host import commit, machine_facts, versions
from benchctl.measuring.machine.meter import bandwidth_mb_s
from benchctl.measuring.plan import ORDER
from benchctl.measuring.prompts.suites import Suite
from benchctl.records.schema import MethodInfo, ModelInfo, Run, SuiteInfo

EXECUTOR = "static"  # a preallocated cache, no compilation
ATTENTION = "bmm+sdpa"  # see decoding/model/kernels.py


def run_record(
    checked: CheckedRun, choices: Sequence[Choice], target: ModelInfo, draft: ModelInfo | None, traffic: Traffic
) -> Run:
    """The header. `choices` are those of the checked run, with methods marked that turned out unsupported."""
    settings = checked.settings
    answers = settings.answers
    return Run(
        name=checked.out.stem,
        created=utc_now().isoformat(timespec="seconds"),
        command=settings.command,
        baseline=choices[0].label,
        target=target,
        draft=draft,
        suites=tuple(map(suite_info, checked.suites)),
        methods=tuple(map(method_info, choices)),
        dtype=checked.dtype,
        device=checked.device,
        executor=EXECUTOR,
        attention=ATTENTION,
        threads=settings.models.threads,
        temperature=answers.temperature,
        top_p=answers.top_p,
        top_k=answers.top_k,
        seed=answers.seed,
        max_new_tokens=answers.max_new_tokens,
        repeats=settings.repeat.repeats,
        batch_size=settings.batch_size,
        modes=settings.repeat.modes,
        context_fill=settings.prompts.context_fill,
        order=ORDER,
        step_bytes=traffic.step_bytes,
        cache_token_bytes=traffic.cache_token_bytes,
        machine={**machine_facts(checked.device), **_measured(checked)},
        versions=versions(),
        commit=commit(),
    )


def _measured(checked: CheckedRun) -> dict[str, float]:
    """Facts that take a second or two to measure."""
    if not checked.settings.watch:
        return {}
    bandwidth = bandwidth_mb_s(checked.device, checked.settings.models.threads)
    return {} if bandwidth is None else {"memory_bandwidth_mb_s": round(bandwidth, 1)}


def model_info(name: str, target: Target) -> ModelInfo:
    """A loaded model's facts and hashes. Of a folder only its name is recorded, not its path."""
    return ModelInfo(
        name=Path(name).resolve().name if Path(name).is_dir() else name,
        **{name: value for name, value in asdict(target.info).items() if name in ModelInfo.__dataclass_fields__},
        parameters=target.parameters,
        weights_sha256=target.weights_sha256,
        tokenizer_sha256=target.tokenizer.sha256,
        chat_template_sha256=target.tokenizer.chat_template_sha256,
    )


def suite_info(suite: Suite) -> SuiteInfo:
    return SuiteInfo(
        name=suite.name,
        source=suite.source,
        origin=suite.origin,
        sha256=suite.prompts_sha256,
        prompts=len(suite.prompts),
        own=suite.own,
        exact_answers={prompt.id: prompt.exact_answers for prompt in suite.prompts if any(prompt.exact_answers)},
    )


def method_info(choice: Choice) -> MethodInfo:
    method = choice.method
    return MethodInfo(
        label=choice.label,
        name=choice.name,
        options=choice.options,
        exactness=method.exactness,
        reason=method.reason,
        unsupported=choice.unsupported,
        modules_sha256=modules_sha256(choice.modules) if choice.modules and not choice.unsupported else "",
    )


@dataclass(frozen=True)
class Traffic:
    """Bytes that a step of one row at full depth reads: of weights, and of keys and values for each token before it and
    its own. 0 where that cannot be said."""

    step_bytes: int = 0
    cache_token_bytes: int = 0


def traffic_of(target: Target) -> Traffic:
    """Of a target's layers, final norm and head, each weight read once; of experts those that a token goes to. The one
    row of the embedding that a token takes is left out.

    Not said of a target with an encoder, nor of one that looks back through a window: what their caches cost does not
    grow with the text.

    A target of one layer whose weights are 1,000 numbers, a head of 500 and keys and values of 8 each in float32:
    `step_bytes` 6,000, `cache_token_bytes` 64.
    """
    if target.encoder is not None or any(block.attention.window is not None for block in target.blocks):
        return Traffic()
    step_bytes = target.final_norm.gain.nbytes + target.lm_head.weight.nbytes
    cache_token_bytes = 0
    for block in target.blocks:
        attention = block.attention
        linears = [attention.qkv, attention.out]
        norms = (block.attention_norm, block.mlp_norm, attention.query_norm, attention.key_norm)
        if isinstance(block.mlp, Experts):
            of_experts = block.mlp.gate_up.nbytes + block.mlp.down.nbytes
            step_bytes += block.mlp.router.nbytes + of_experts * block.mlp.top_k // len(block.mlp.gate_up)
        else:
            linears += [block.mlp.gate_up, block.mlp.down]
        step_bytes += sum(linear.weight.nbytes for linear in linears)
        step_bytes += sum(linear.bias.nbytes for linear in linears if linear.bias is not None)
        step_bytes += sum(norm.gain.nbytes for norm in norms if norm is not None)
        cache_token_bytes += 2 * attention.kv_heads * attention.head_dim * target.dtype.itemsize
    return Traffic(step_bytes, cache_token_bytes)
