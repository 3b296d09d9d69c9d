"""A judging: what results files hold is set against what their scores files have, and the rest is asked and written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

from benchctl.errors import UserError
from benchctl.judging.asking import Asker
from benchctl.judging.batches import Batches, handed_in, refuse_open_batches
from benchctl.judging.budget import Budget, check_budget, is_paid
from benchctl.judging.cache import Cache
from benchctl.judging.estimate import estimate
from benchctl.judging.grading import Grades
from benchctl.judging.items import Item, as_tie, items_of, with_outcome
from benchctl.judging.judge import AskedJudge, BatchedJudge, GradingJudge
from benchctl.judging.pairs import FilePairs, Prompts, check_same_prompts, pairs_of
from benchctl.judging.panel import Answered, Panel
from benchctl.judging.patience import Patience
from benchctl.judging.prices import Price
from benchctl.judging.questions import Task, fits, only, refuse_too_long, tasks_of
from benchctl.judging.settings import Forecast, JudgeSettings, Progress, Summary, World
from benchctl.records.scores import Score, ScoreWriter, read_scores, score_key, scores_path
from benchctl.records.writer import RunFile


class Judging:
    """The judging of results files by one judge.

    Making it checks all that the files can tell. Raises UserError for a file without the baseline's answers, or whose
    prompts are not those at hand or not those of another file, and where a budget is set on a price nobody knows.
    """

    def __init__(self, files: Sequence[RunFile], prompts: Prompts, settings: JudgeSettings, world: World) -> None:
        self._settings, self._world, self._judge = settings, world, settings.judge.judge
        _check_settings(settings)
        check_same_prompts(files)
        alone = self._judge.protocol == "single"
        self._files = [pairs_of(file, prompts, settings.baseline or file.run.baseline, alone=alone) for file in files]
        self._items = [item for file in self._files for item in self._items_of(file)]
        self._left_out = Counter[str]()
        for file in self._files:
            self._left_out.update(file.left_out)
        self._counts = Counter[str]()
        self._budget = Budget(_price(settings), settings.max_usd)

    def forecast(self) -> Forecast:
        """What would be done and what it would cost; nothing is asked, held or written."""
        todo = self._todo({file.path: _stored(file.path) for file in self._files})
        ties = sum(map(_is_tie, todo))
        common = (len(self._items), len(self._items) - len(todo), ties)
        if not isinstance(self._judge, AskedJudge):
            return Forecast(*common, left_out=dict(self._left_out))
        asker, tasks = self._seen(self._judge, todo)
        fresh = [task for task in tasks if asker.outcome(task.asked) is None]
        asked = [task for task in fresh if fits(self._judge, task)]
        costs = estimate(asker, tasks, asked)
        recalled = sum(len(task.items) for task in tasks) - len(fresh)
        return Forecast(
            *common,
            recalled=recalled,
            questions=len(asked),
            too_long=len(fresh) - len(asked),
            handed_in=handed_in(asker.cache.path),
            usage=costs.usage,
            usd=costs.usd,
            most_usd=costs.most_usd,
            left_out=dict(self._left_out),
        )

    def run(self) -> Summary:
        """Judge what is not judged yet. Raises UserError; whatever was judged by then is kept."""
        tasks = self._reach(self._judge) if isinstance(self._judge, AskedJudge) else ()
        with ExitStack() as stack:
            self._writers = {
                file.path: stack.enter_context(ScoreWriter(scores_path(file.path), notify=self._world.notify))
                for file in self._files
            }
            todo = self._todo({path: writer.stored.scores for path, writer in self._writers.items()})
            self._counts.update(stored=len(self._items) - len(todo))
            if isinstance(self._judge, AskedJudge):
                self._ask(self._judge, stack.enter_context(self._cache()), todo, only(tasks, todo))
            elif isinstance(self._judge, GradingJudge):
                self._grade(Grades(self._judge), todo)
        return self._summary()

    def _todo(self, stored: Mapping[Path, Iterable[Score]]) -> list[Item]:
        """The items that have no score yet, or an unreadable one and tries left."""
        tries = self._settings.tries
        settled = {
            path: {score_key(score) for score in scores if not score.unreadable or score.tries >= tries}
            for path, scores in stored.items()
        }
        return [item for item in self._items if score_key(item.blank) not in settled[item.pair.file]]

    def _seen(self, judge: AskedJudge, items: Iterable[Item]) -> tuple[Asker, tuple[Task, ...]]:
        """The questions of items, and the replies to them as they are, without holding the cache."""
        cache = self._cache()
        cache.look()
        return self._asker(judge, cache), tasks_of(judge, (item for item in items if not _is_tie(item)))

    def _reach(self, judge: AskedJudge) -> tuple[Task, ...]:
        """The questions, and the judge reached if one of them is to be asked: before any file is made, as without a key
        none should be left behind."""
        asker, tasks = self._seen(judge, self._todo({file.path: _stored(file.path) for file in self._files}))
        waiting = [task for task in tasks if asker.outcome(task.asked) is None]
        if not self._settings.skip_long:
            refuse_too_long(judge, [task for task in waiting if not fits(judge, task)])
        if any(fits(judge, task) for task in waiting):
            asker.patience.insist(judge.reach)
        return tasks

    def _grade(self, grades: Grades, items: Iterable[Item]) -> None:
        for item in items:
            score = grades.score(item, self._world.now())
            if score is None:
                self._left_out.update({"an exact answer to grade by": 1})
            else:
                self._write(item, score)

    def _ask(self, judge: AskedJudge, cache: Cache, items: Iterable[Item], tasks: Iterable[Task]) -> None:
        asker = self._asker(judge, cache)
        outcomes = [(task, asker.outcome(task.asked)) for task in tasks]
        waiting = self._without_long(judge, [task for task, outcome in outcomes if outcome is None])
        for item in filter(_is_tie, items):
            self._write(item, as_tie(item, self._world.now()))
            self._counts.update(ties=1)
        for task, outcome in outcomes:
            if outcome is not None:
                self._answered(Answered(task, outcome))
        if not waiting:
            return
        # Closed on the way out, whatever happens: what is not in flight then is never sent.
        with closing(self._answers(asker, judge, waiting)) as answers:
            for answered in answers:
                self._answered(answered)
        self._counts["unasked"] = sum(len(task.items) for task in waiting) - self._counts["asked"]

    def _answers(self, asker: Asker, judge: AskedJudge, tasks: Sequence[Task]) -> Generator[Answered]:
        if self._settings.batch and isinstance(judge, BatchedJudge):
            with Batches(asker, judge, self._world.notify, forget=self._settings.forget_batches) as batches:
                yield from batches.ask(tasks)
            return
        refuse_open_batches(asker.cache.path)
        yield from Panel(asker, self._settings.concurrency if judge.parallel else 1).ask(tasks)

    def _answered(self, answered: Answered) -> None:
        task, outcome = answered
        fresh = outcome.fresh
        bills = [self._budget.cost_usd(usage) for usage in (kept.reply.usage or task.asked.most for kept in fresh)]
        known = [bill for bill in bills if bill is not None]
        cost_usd = sum(known) if len(known) == len(bills) else None
        for number, item in enumerate(task.items):
            shared = number > 0
            score = with_outcome(item, outcome, cost_usd=cost_usd, shared=shared, now=self._world.now())
            self._counts.update(
                asked=int(bool(fresh)), recalled=int(score.cached), unreadable=int(bool(score.unreadable))
            )
            self._write(item, score)

    def _without_long(self, judge: AskedJudge, tasks: Sequence[Task]) -> list[Task]:
        """Those that fit the judge; the others, which may be skipped by now, are counted."""
        for task in (task for task in tasks if not fits(judge, task)):
            self._left_out.update({"room in the judge's context": len(task.items)})
        return [task for task in tasks if fits(judge, task)]

    def _write(self, item: Item, score: Score) -> None:
        self._writers[item.pair.file].append(score)
        self._counts.update(written=1)
        done = self._counts["stored"] + self._counts["written"]
        self._world.progress(Progress(done, len(self._items), self._budget.spent))

    def _items_of(self, file: FilePairs) -> Iterator[Item]:
        judge, settings = self._judge, self._settings
        for pair in file.pairs:
            template, samples = "", 1
            if isinstance(judge, AskedJudge):
                template, samples = judge.template(pair.question(pair.rows, pair.others)).id, settings.samples
            yield from items_of(settings.judge, pair, settings.orders, samples, template)

    def _cache(self) -> Cache:
        return Cache(self._settings.cache, self._settings.judge.label, notify=self._world.notify)

    def _asker(self, judge: AskedJudge, cache: Cache) -> Asker:
        world, settings = self._world, self._settings
        patience = Patience(world.timer, world.chance, settings.back_off)
        return Asker(judge, cache, self._budget, patience, most_tries=settings.tries, now=world.now)

    def _summary(self) -> Summary:
        counts = self._counts
        return Summary(
            judgements=len(self._items),
            stored=counts["stored"],
            written=counts["written"],
            ties=counts["ties"],
            recalled=counts["recalled"],
            unreadable=counts["unreadable"],
            unasked=counts["unasked"],
            spent=self._budget.spent,
            left_out=dict(self._left_out),
        )


def _check_settings(settings: JudgeSettings) -> None:
    judge = settings.judge.judge
    check_budget(judge, settings.price, settings.max_usd)
    if settings.batch and not isinstance(judge, BatchedJudge):
        raise UserError(f"{settings.judge.label} takes no batches: leave --batch out.")


def _price(settings: JudgeSettings) -> Price | None:
    """What a token costs; those of a judge that is not paid cost nothing."""
    if not is_paid(settings.judge.judge):
        return Price(0.0, 0.0)
    return settings.price.in_batches() if settings.price and settings.batch else settings.price


def _is_tie(item: Item) -> bool:
    return item.pair.identical


def _stored(results: Path) -> Sequence[Score]:
    path = scores_path(results)
    return read_scores(path).scores if path.exists() else ()
