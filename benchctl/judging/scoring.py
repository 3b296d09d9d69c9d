"""A judging: answers in results files that have no score in the scores files are judged, and their scores written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchctl.errors import UserError
from benchctl.judging.asking import Asker, Task, ask_all, tasks_of
from benchctl.judging.budget import NOTHING, Budget, Price, Spent
from benchctl.judging.items import Item, Pair, Prompts, check_same_prompts, items_of, pairs_of, with_outcome
from benchctl.judging.judge import AskedJudge, GradingJudge, Judge, Usage
from benchctl.judging.reply_cache import Cache, Outcome
from benchctl.records.schema import Row
from benchctl.records.scores import Score, ScoreWriter, read_scores, score_key, scores_path
from benchctl.records.writer import RunFile

_COUNTED = ("stored", "written", "ties", "recalled", "unreadable", "readable", "unasked", "too_long")
# Tokens of a reply that contains only the scores: "8 7" and the end token.
_REPLY_TOKENS = {"pairwise": 4, "single": 2}


@dataclass(frozen=True)
class JudgeSettings:
    """`judge` is prepared, and scores name it by `label`; `baseline` is "" for each run's own; `samples` is how often
    each judgement is made, `tries` how often a question is asked at most until its reply can be read. `price` is None
    where it is unknown."""

    label: str
    judge: Judge
    cache: Path
    baseline: str = ""
    samples: int = 1
    price: Price | None = None
    max_usd: float | None = None
    concurrency: int = 4
    tries: int = 3


@dataclass(frozen=True)
class Progress:
    """How many judgements are made, of how many, and what it cost so far."""

    done: int
    total: int
    spent: Spent


@dataclass(frozen=True)
class World:
    """What judging needs in addition to its files: the time in UTC, and who is notified."""

    now: Callable[[], str]
    notify: Callable[[str], None]
    progress: Callable[[Progress], None]


@dataclass(frozen=True)
class Forecast:
    """What a judging would do. `left_out` counts answers by what they lack. `usd` is an estimate, `most_usd` a bound of
    one reply to each question; both are None where the price is unknown."""

    judgements: int
    stored: int
    ties: int
    recalled: int = 0
    questions: int = 0
    too_long: int = 0
    usage: Usage = NOTHING
    usd: float | None = 0.0
    most_usd: float | None = 0.0
    left_out: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Summary:
    """What a judging did: `written` scores, of which `ties` were never asked about and `recalled` were paid for earlier
    or share a reply. Of the scores written or stored, ties aside, `unreadable` are without points and `readable` have
    them. `unasked` did not fit into the budget, and the questions of `too_long` do not fit into the judge's context."""

    judgements: int
    stored: int
    written: int
    ties: int
    recalled: int
    unreadable: int
    readable: int
    unasked: int
    too_long: int
    spent: Spent
    left_out: Mapping[str, int]

    @property
    def unfinished(self) -> int:
        """How many judgements are still to be made, the unreadable ones among them where no reply could be read."""
        return self.unasked + self.too_long + (0 if self.readable else self.unreadable)


class Judging:
    """The judging of results files by one judge.

    Making it checks all that the files can tell. Raises UserError for a file without the baseline's answers, or whose
    prompts are not those at hand or not those of another file, and for a budget on an unknown price.
    """

    def __init__(self, files: Sequence[RunFile], prompts: Prompts, settings: JudgeSettings, world: World) -> None:
        self._settings, self._world, self._judge = settings, world, settings.judge
        if settings.max_usd is not None and settings.price is None and self._judge.paid:
            raise UserError(
                "unknown_price",
                f"--max-usd needs a price, and that of '{self._judge.model}' is unknown. Give --price-in and "
                "--price-out to `benchctl judge`, in USD per million tokens.",
            )
        check_same_prompts(files)
        alone = self._judge.protocol == "single"
        self._files, self._left_out = [file.path for file in files], Counter[str]()
        self._items = [
            item
            for file in files
            for pair in pairs_of(file, prompts, settings.baseline or file.run.baseline, self._left_out, alone=alone)
            for item in self._items_of(pair)
        ]
        self._counts = Counter[str]()
        self._budget = Budget(settings.price if self._judge.paid else Price(0.0, 0.0), settings.max_usd)

    def forecast(self) -> Forecast:
        """The work that is left and its cost. Asks nothing and writes nothing."""
        todo, stored = self._split({path: _stored(path) for path in self._files})
        ties = sum(item.pair.identical for item in todo)
        common = (len(self._items), len(stored), ties)
        if not isinstance(self._judge, AskedJudge):
            return Forecast(*common, left_out=dict(self._left_out))
        asker, tasks = self._cached(self._judge, todo)
        fresh = [task for task in tasks if asker.outcome(task) is None]
        asked = [task for task in fresh if task.fits(self._judge)]
        usage, most = _estimate(asker, tasks, asked), sum((task.most for task in asked), NOTHING)
        return Forecast(
            *common,
            recalled=sum(len(task.items) for task in tasks) - len(fresh),
            questions=len(asked),
            too_long=len(fresh) - len(asked),
            usage=usage,
            usd=self._budget.cost_usd(usage),
            most_usd=self._budget.cost_usd(most),
            left_out=dict(self._left_out),
        )

    def run(self) -> Summary:
        """Judge what is not judged yet. Raises UserError; whatever was judged by then is kept."""
        try:
            self._run()
        finally:
            self._report_bills()
        counts = {name: self._counts[name] for name in _COUNTED}
        return Summary(len(self._items), spent=self._budget.spent, left_out=dict(self._left_out), **counts)

    def _run(self) -> None:
        if isinstance(self._judge, AskedJudge):
            self._reach(self._judge)
        with ExitStack() as stack:
            self._writers = {
                path: stack.enter_context(ScoreWriter(scores_path(path), notify=self._world.notify))
                for path in self._files
            }
            todo, stored = self._split({path: writer.stored.scores for path, writer in self._writers.items()})
            self._counts.update(stored=len(stored))
            for score in stored:
                self._count(score)
            if isinstance(self._judge, AskedJudge):
                self._ask(self._judge, stack.enter_context(self._cache()), todo)
            elif isinstance(self._judge, GradingJudge):
                self._grade(self._judge, todo)

    def _report_bills(self) -> None:
        spent, max_usd = self._budget.spent, self._settings.max_usd
        if spent.refused_bills:
            self._world.notify(
                f"The judge's server sent {spent.refused_bills} bills for impossibly many tokens. They count as the "
                "largest possible cost. Check the account of the key."
            )
        if max_usd is not None and (spent.usd or 0.0) > max_usd:
            self._world.notify(
                f"The cost is ${spent.usd:.4f}, above --max-usd {max_usd:g}: the server counts more than one token per "
                "byte, or more than reply_limit. No further requests are sent."
            )

    def _split(self, stored: Mapping[Path, Iterable[Score]]) -> tuple[list[Item], list[Score]]:
        """The items that have no score yet, or an unreadable one and tries left; and the scores of the others."""
        tries = 1 if isinstance(self._judge, AskedJudge) and self._judge.repeats_itself else self._settings.tries
        settled = {
            path: {score_key(score): score for score in scores if not score.unreadable or score.tries >= tries}
            for path, scores in stored.items()
        }
        todo, done = [], []
        for item in self._items:
            score = settled[item.pair.file].get(score_key(item.blank))
            if score is None:
                todo.append(item)
            else:
                done.append(score)
        return todo, done

    def _count(self, score: Score) -> None:
        self._counts.update(
            unreadable=int(bool(score.unreadable)), readable=int(not score.unreadable and not score.identical)
        )

    def _cached(self, judge: AskedJudge, items: Iterable[Item]) -> tuple[Asker, tuple[Task, ...]]:
        """The questions of items, and the replies to them that are in the cache, without holding its file."""
        cache = self._cache()
        cache.look()
        return self._asker(judge, cache), tasks_of(judge, (item for item in items if not item.pair.identical))

    def _reach(self, judge: AskedJudge) -> None:
        """Reach the judge if a question is to be asked. This comes before any file is made: a judging without a key
        leaves none behind."""
        todo, _ = self._split({path: _stored(path) for path in self._files})
        asker, tasks = self._cached(judge, todo)
        if any(task.fits(judge) and asker.outcome(task) is None for task in tasks):
            judge.reach()

    def _grade(self, judge: GradingJudge, items: Iterable[Item]) -> None:
        """Each answer is graded once: the same one is compared with several."""
        known: dict[object, float | None] = {}

        def grade(pair: Pair, rows: Sequence[Row]) -> float | None:
            talk = tuple((each.text, each.token_ids) for each in rows)
            key = (pair.file, rows[-1].suite, rows[-1].prompt_id, rows[-1].turn, talk)
            if key not in known:
                known[key] = judge.grade(pair.run, rows, pair.question(rows, ()))
            return known[key]

        for item in items:
            # Equal texts may be of other tokens, and the score is of the text.
            theirs = grade(item.pair, item.pair.others)
            mine = theirs if item.pair.identical else grade(item.pair, item.pair.rows)
            if mine is None or theirs is None:
                self._left_out["an exact answer to grade by"] += 1
                continue
            graded = replace(item.blank, score=mine, baseline_score=theirs, unreadable="", tries=1, cost_usd=0.0)
            self._write(item, replace(graded, judged_at=self._world.now()))

    def _ask(self, judge: AskedJudge, cache: Cache, items: Sequence[Item]) -> None:
        asker = self._asker(judge, cache)
        tasks = tasks_of(judge, (item for item in items if not item.pair.identical))
        outcomes = [(task, asker.outcome(task)) for task in tasks]
        for item in (item for item in items if item.pair.identical):
            self._write(item, replace(item.blank, cost_usd=0.0, judged_at=self._world.now()))
            self._counts.update(ties=1)
        waiting = []
        for task, outcome in outcomes:
            if outcome is not None:
                self._write_scores(task, outcome)
            elif task.fits(judge):
                waiting.append(task)
            else:
                self._counts.update(too_long=len(task.items))
        # Closed on the way out, whatever happens: what is not in flight then is never sent.
        with closing(ask_all(asker, waiting, self._settings.concurrency if judge.parallel else 1)) as answers:
            for task, outcome in answers:
                self._write_scores(task, outcome)
        self._counts["unasked"] = sum(len(task.items) for task in waiting) - self._counts["asked"]

    def _write_scores(self, task: Task, outcome: Outcome) -> None:
        """The scores of the items of a question; the first carries the bill."""
        fresh = outcome.fresh
        bills = [self._budget.cost_usd(usage) for usage in (kept.usage or task.most for kept in fresh)]
        known = [bill for bill in bills if bill is not None]
        cost_usd = sum(known) if len(known) == len(bills) else None
        for number, item in enumerate(task.items):
            shared = number > 0
            score = with_outcome(item, outcome, cost_usd=cost_usd, shared=shared, now=self._world.now())
            self._counts.update(asked=int(bool(fresh)), recalled=int(score.cached))
            self._write(item, score)

    def _write(self, item: Item, score: Score) -> None:
        self._writers[item.pair.file].append(score)
        self._count(score)
        self._counts.update(written=1)
        done = self._counts["stored"] + self._counts["written"]
        self._world.progress(Progress(done, len(self._items), self._budget.spent))

    def _items_of(self, pair: Pair) -> Iterator[Item]:
        template, samples = "", 1
        if isinstance(self._judge, AskedJudge):
            question = pair.question(pair.rows, pair.others)
            template, samples = self._judge.template(question).id, self._settings.samples
        yield from items_of(self._settings.label, self._judge, pair, samples, template)

    def _cache(self) -> Cache:
        return Cache(self._settings.cache, self._settings.label, notify=self._world.notify)

    def _asker(self, judge: AskedJudge, cache: Cache) -> Asker:
        return Asker(judge, cache, self._budget, most_tries=self._settings.tries, now=self._world.now)


def _estimate(asker: Asker, tasks: Sequence[Task], asked: Sequence[Task]) -> Usage:
    """What one reply to each of `asked` takes, corrected by the bills of the `tasks` that have replies."""
    bills = [(kept.prompt_tokens, task.prompt_tokens) for task in tasks for kept in asker.cache.tries(task.key)]
    known = [(billed, estimated) for billed, estimated in bills if billed is not None]
    factor = sum(billed for billed, _ in known) / (sum(estimated for _, estimated in known) or 1) if known else 1.0
    reply_tokens = min(_REPLY_TOKENS.get(asker.judge.protocol, 0), asker.judge.reply_limit)
    return Usage(round(factor * sum(task.prompt_tokens for task in asked)), reply_tokens * len(asked))


def _stored(results: Path) -> Sequence[Score]:
    path = scores_path(results)
    return read_scores(path).scores if path.exists() else ()
