"""The table of fidelity without a judge or a key, with the columns that the rows and the question gave."""

from collections.abc import Iterator

from benchctl.analysis.cells import Block, Column, number
from benchctl.analysis.comparison import Group
from benchctl.analysis.faithfulness import (
    CHRF,
    DEGENERATION,
    KL,
    LOG_LIKELIHOOD_DIFFERENCE,
    ROUGE_L,
    TARGET_AGREEMENT,
    has_faithfulness,
)

_COLUMNS = (
    (TARGET_AGREEMENT, Column("target agrees", number(TARGET_AGREEMENT, "{:.3f}"))),
    (LOG_LIKELIHOOD_DIFFERENCE, Column("ln p difference", number(LOG_LIKELIHOOD_DIFFERENCE, "{:+.3f}"))),
    (KL, Column("KL nats", number(KL, "{:.3g}"))),
    (ROUGE_L, Column("ROUGE-L", number(ROUGE_L, "{:.3f}"))),
    (CHRF, Column("chrF", number(CHRF, "{:.3f}"))),
    (DEGENERATION, Column("degenerate", number(DEGENERATION, "{:.3f}"))),
)


def faithfulness_blocks(group: Group) -> Iterator[Block]:
    """One table, or none where every answer is the baseline's and none degenerates: there it would say nothing."""
    methods = group.pooled.methods
    told = {
        metric: column
        for metric, column in _COLUMNS
        if any(method.estimate(metric).value is not None for method in methods)
    }
    degenerates = any(method.estimate(DEGENERATION).value for method in methods)
    if has_faithfulness(group.frame) or degenerates or ROUGE_L in told:
        yield Block("Fidelity, otherwise", tuple(told.values()))
