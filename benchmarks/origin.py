"""What figures stand on: the code and the machine, so that they can be taken again."""

from __future__ import annotations

from benchctl.measuring.clock import utc_now
from benchctl.measuring.machine.host import commit, machine_facts, versions


def circumstances() -> dict[str, object]:
    """When figures are taken, by which code, on what machine."""
    return {
        "created": utc_now().isoformat(timespec="seconds"),
        "commit": commit(),
        "machine": machine_facts("cpu"),
        "versions": versions(),
    }
