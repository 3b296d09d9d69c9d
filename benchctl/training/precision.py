"""Where products in bfloat16 are quicker than in float32: elsewhere they are emulated, and slower."""

from __future__ import annotations

import platform

import torch

X86 = ("x86_64", "amd64")


def bf16_helps(device: str) -> bool:
    """Whether the processor that `device` (cpu, cuda, cuda:1) names has instructions of its own for them."""
    if not device.startswith("cuda"):
        return _cpu_has_bf16()
    with torch.cuda.device(torch.device(device)):
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))


def _cpu_has_bf16() -> bool:
    """AVX512_BF16 or AMX on x86, the bf16 extension on ARM; of an x86 without them torch says that it emulates well."""
    if platform.machine().lower() in X86:
        return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())
    mkldnn = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return bool(mkldnn and torch.ops.mkldnn._is_mkldnn_bf16_supported())
