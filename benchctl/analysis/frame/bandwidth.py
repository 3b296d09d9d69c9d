"""How long the baseline's steps would take if nothing but reading memory took time: the bound that no kernel beats."""

from __future__ import annotations

from benchctl.records.schema import Row, Run

BANDWIDTH = "memory_bandwidth_mb_s"  # the machine's fact
_PLAIN = "autoregressive"  # whose steps read what the header tells; another method may stand in for the baseline


def least_read_s(row: Row, run: Run) -> float | None:
    """Seconds that the run's machine needs at least to read, for every step of a baseline's row, the weights and the
    keys and values of the text so far. None for methods, whose steps read other things, for batches, and where the
    header does not tell.

    A prompt of 3 tokens and 2 steps, 100 bytes of weights, 10 of keys and values per token, 1 MB/s: the steps see
    texts of 4 and 5 tokens, so 290 bytes, 290 us.
    """
    bandwidth_mb_s = run.machine.get(BANDWIDTH)
    if not isinstance(bandwidth_mb_s, int | float) or bandwidth_mb_s <= 0 or not run.step_bytes:
        return None
    if row.label.partition("[")[0] != _PLAIN or row.batch or row.error is not None or row.totals is not None:
        return None
    steps = len(row.step_s)
    texts_tokens = steps * row.prompt_tokens + steps * (steps + 1) // 2
    return (steps * run.step_bytes + texts_tokens * run.cache_token_bytes) / (bandwidth_mb_s * 1e6)
