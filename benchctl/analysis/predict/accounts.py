"""What the time of a method's tokens is made of, in shares of the baseline's time for a token: see speedup.py.

A token that leaves early still reads the head: the layers it ran are a share of all but the head's part of a pass. Rows
do not count further heads, as of a rule that looks at the confidence at every exit, so one head is assumed.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchctl.analysis.stats.intervals import Floats, Interval
from benchctl.records.schema import Row, Run

PHASES = ("draft", "verify", "commit", "host")  # of profile rows, see decoding.phases
UNEXPLAINED = "unexplained"
ITEM_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True)
class Part:
    """What one cause adds to a token's time, as a share of the baseline's, with its 95% interval, None where unknown.
    `predicted`: the prediction includes it."""

    name: str
    share: float
    predicted: bool
    interval: Interval | None = None


@dataclass(frozen=True)
class Account:
    """The parts; the last one is what the others leave. The other fields are seconds of each answer, [answers]: each of
    the other parts, those that the prediction includes, and the baseline's for as many tokens (Sums.for_tokens)."""

    parts: tuple[Part, ...]
    parts_s: tuple[Floats, ...]
    known_s: Floats
    baseline_s: Floats


@dataclass(frozen=True)
class Sums:
    """Answers of one method as numbers, each [answers] but for the steps: `depth` counts steps by the share of the
    layers they ran, `rows` has the rows of every step."""

    steps: Floats
    tokens: Floats
    drafted: Floats
    depth: Floats
    seconds: Floats
    text_tokens: Floats
    phases: Mapping[str, Floats]
    rows: Sequence[int]

    @classmethod
    def of(cls, rows: Sequence[Row], layers: int) -> "Sums":
        """The first token is prefill's, and no step's."""
        return cls(
            steps=_floats(len(row.step_s) for row in rows),
            tokens=_floats(sum(row.committed) for row in rows),
            drafted=_floats(sum(row.drafted) for row in rows),
            depth=_floats(sum(row.layers[1:]) / layers for row in rows),
            seconds=_floats(sum(row.step_s) for row in rows),
            text_tokens=_floats(row.prompt_tokens + len(row.token_ids) / 2 for row in rows),
            phases={name: _floats(sum(row.phases.get(name, ())) for row in rows) for name in PHASES},
            rows=[count for row in rows for count in row.rows],
        )

    @property
    def total_tokens(self) -> float:
        return float(self.tokens.sum())

    @property
    def token_s(self) -> float:
        """Seconds per token."""
        return float(self.seconds.sum()) / self.total_tokens

    @property
    def step_text_tokens(self) -> float:
        """The mean length of the text that a step saw."""
        return float(self.text_tokens @ self.steps / self.steps.sum())

    def for_tokens(self, seconds: Floats, tokens: Floats) -> Floats:
        """What `seconds` of these answers come to for `tokens` of another method's, [answers] each.

        The sum is the seconds per token of all answers times all of `tokens`. Answers of other lengths are no error of
        a time per token: what each adds to it beside its own tokens is by how much its pace differs from that of all
        (the influence of each observation, as in stats). With as many tokens, answer by answer, it is `seconds`.

        2 and 4 s for 1 and 3 tokens, so 1.5 s a token, and 6 and 2 tokens: 9 and 3 s at that pace, 10 and 2 with the
        paces of the answers.
        """
        pace_s = float(seconds.sum()) / self.total_tokens
        return pace_s * tokens + float(tokens.sum()) / self.total_tokens * (seconds - pace_s * self.tokens)

    def passes(self, head: float) -> Floats:
        """How many passes of the baseline its steps come to where they draft nothing and the head is that share of a
        pass, [answers]: the layers they ran and a head each. 10 steps of half the layers and a head of 0.2: 6."""
        return (1 - head) * self.depth + head * self.steps

    def step_phase_s(self, name: str) -> float:
        """Seconds per step."""
        return float(self.phases[name].sum() / self.steps.sum())


def head_share(run: Run, text_tokens: float) -> float:
    """The head's share of what a step of the baseline reads with so much text before it, and so about of its time.

    Where the run does not tell what a step reads, its share of all parameters: a guess, too low where these hold an
    embedding that is no head, or experts not gone to, and too high by what the cache takes. 0 where those are not told
    either.
    """
    if run.step_bytes:
        head_bytes = run.target.vocabulary * run.target.hidden_size * ITEM_BYTES[run.weights or run.dtype]
        return head_bytes / (run.step_bytes + text_tokens * run.cache_token_bytes)
    if run.target.parameters:
        return run.target.vocabulary * run.target.hidden_size / run.target.parameters
    return 0.0


def by_phases(ours: Sums, theirs: Sums, split: Sums, plain: Sums, head: float) -> Account:
    """From free and profiled answers of method and baseline, where `head` is its share of a pass.

    Target steps are steps of the baseline, or that share of its layers and a head; wider passes what verification takes
    beyond one row, and rest of passes what passes that verify nothing take beyond that: more heads, and deciding by
    them. Commit and host are what those take beyond the baseline's. The prediction of a method that drafts knows the
    first three. What is unexplained is how free rows differ from profiled ones.
    """
    verify_s, commit_s, host_s = (plain.step_phase_s(name) for name in ("verify", "commit", "host"))
    whole_s = sum(plain.phases.values(), np.zeros(len(plain.steps)))
    baseline_s = plain.for_tokens(whole_s, split.tokens)
    drafts = bool(split.drafted.any())
    passes = split.steps if drafts else split.passes(head)
    wider = "wider passes" if drafts else "rest of passes"
    parts_s = {
        "target steps": passes * verify_s + split.steps * (commit_s + host_s),
        "drafting": split.phases["draft"],
        wider: split.phases["verify"] - passes * verify_s,
        "commit": split.phases["commit"] - split.steps * commit_s,
        "host": split.phases["host"] - split.steps * host_s,
    }
    known = {"target steps", "drafting", wider} if drafts else {"target steps"}
    measured, unit_s = ours.token_s / theirs.token_s, float(baseline_s.sum())
    parts = [Part(name, float(seconds.sum()) / unit_s, name in known) for name, seconds in parts_s.items()]
    parts.append(Part(UNEXPLAINED, measured - sum(part.share for part in parts), False))
    known_s = sum((seconds for name, seconds in parts_s.items() if name in known), np.zeros(len(baseline_s)))
    return Account(tuple(parts), tuple(parts_s.values()), known_s, baseline_s)


def _floats(values: Iterable[float]) -> Floats:
    return np.array(list(values), dtype=np.float64)
