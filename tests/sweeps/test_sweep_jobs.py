"""A sweep plans the same runs each time, gives each its device alone, and loses no row when workers die."""

import json
import os
import random
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from command import cli, ok
from fixtures_records import RUN, baseline_row, failed
from fixtures_run import make_folder
from refusals import refused

from benchctl.records.schema import Row
from benchctl.records.writer import Writer, read
from benchctl.sweeps import on, work
from benchctl.sweeps.folder import finished_of, read_commands, status, write_commands
from benchctl.sweeps.spec import Unit, read_spec, units
from benchctl.sweeps.work import Place, Settings, exclusive, places

REPEATS = 60  # long enough to be killed in the middle
TINY: dict[str, Any] = {
    "models": [{"model": "target", "draft-model": "draft"}],
    "families": {"drafting": ["two_model[draft_tokens=2]"], "looking": ["prompt_lookup"]},
    "run": {"suite": "three.jsonl", "max-new-tokens": 5, "warm-up": 1, "repeats": REPEATS, "watch": False},
}


sweep = partial(cli, "sweep")


def spec_of(folder: Path, **changes: Any) -> Path:
    path = folder / "sweep.yaml"  # JSON is YAML
    path.write_text(json.dumps({**TINY, **changes}))
    return path


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a tiny target, and lock files of its own: other tests may sweep at the same time."""
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.chdir(make_folder(tmp_path))
    return tmp_path


def test_a_thousand_runs_have_names_of_their_own_and_are_the_same_in_every_plan(tmp_path: Path) -> None:
    models = [{"model": f"m{number}", "threads": 2} for number in range(25)]
    spec = read_spec(spec_of(tmp_path, models=models, devices=["cpu", "cuda"], sessions=10))
    planned = units(spec, tmp_path)
    assert len({unit.name for unit in planned}) == len(planned) == 1000
    assert planned == units(spec, tmp_path)
    write_commands(tmp_path, planned)
    assert read_commands(tmp_path) == planned
    assert {(unit.on_gpu, unit.threads) for unit in planned} == {(False, 2), (True, 2)}
    with refused("other_sweep", "commands.txt"):
        write_commands(tmp_path, planned[:5])


def test_what_is_off_is_left_out_or_has_a_flag_that_exists(tmp_path: Path) -> None:
    (unit, *_) = units(read_spec(spec_of(tmp_path, run={"replay": False, "watch": False, "limit": 2})), tmp_path)
    assert "--no-watch" in unit.command and not any("replay" in word for word in unit.command)


def test_a_line_of_commands_ends_at_a_line_feed_alone(tmp_path: Path) -> None:
    planned = units(read_spec(spec_of(tmp_path, models=[{"model": "a\u2028b"}])), tmp_path)
    write_commands(tmp_path, planned)
    assert read_commands(tmp_path) == planned


@pytest.mark.parametrize(
    ("changes", "id"),
    [
        ({"models": []}, "no_sweep"),
        ({"families": {"own": []}}, "no_sweep"),
        ({"sessions": 0}, "no_sweep"),
        ({"sessions": "many"}, "no_sweep"),
        ({"machines": 3}, "no_sweep"),
        ({"models": [{"model": "a"}, {"model": "a"}]}, "same_unit_twice"),
        ({"run": {"out": "x.jsonl"}}, "option_of_sweep"),
        ({"run": {"estimate": True}}, "option_of_sweep"),
        ({"run": {"colour": "red"}}, "bad_run_option"),
        ({"devices": ["auto"]}, "no_sweep"),
        ({"models": [{"model": "a", "device": "cuda"}]}, "option_of_sweep"),
        ({"run": {"limit": 0}}, "bad_run_option"),
        ({"run": {"limit": False}}, "bad_run_option"),
        ({"run": {"soruce": False}}, "bad_run_option"),
        ({"families": {"a": ["no_such_method"]}}, "unknown_method"),
        ({"families": {"a": ["two_model[tokens=2]"]}}, "unknown_option"),
    ],
)
def test_a_wrong_description_is_refused_before_anything_is_written(
    changes: Mapping[str, Any], id: str, tmp_path: Path, raised: list[str]
) -> None:
    result = sweep("plan", str(spec_of(tmp_path, **changes)), "--out", str(tmp_path / "jobs"))
    assert (result.exit_code, raised[-1], (tmp_path / "jobs").exists()) == (2, id, False)


@pytest.mark.slow
def test_from_a_description_to_one_table_and_a_second_run_has_nothing_to_do(here: Path) -> None:
    assert sweep("plan", str(spec_of(here)), "--out", "jobs").exit_code == 0
    before = sweep("status", "jobs", "--json")
    assert before.exit_code == 1 and json.loads(before.stdout)["missing"] == 2
    ok(sweep("run", "jobs"))
    assert json.loads(sweep("status", "jobs", "--json").stdout)["done"] == 2
    contents = [path.read_bytes() for path in sorted((here / "jobs" / "results").iterdir())]
    assert sweep("run", "jobs").exit_code == 0
    assert contents == [path.read_bytes() for path in sorted((here / "jobs" / "results").iterdir())]
    table = ok(cli("compare", "jobs/results/*.jsonl", "--format", "json"))
    assert "two_model[draft_tokens=2]" in table.stdout and "prompt_lookup" in table.stdout


@pytest.mark.slow
def test_a_run_that_is_killed_goes_on_where_it_was(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (unit,) = units(read_spec(spec_of(here, families={"f": ["prompt_lookup"]})), here)
    write_commands(here, [unit])
    with _killing(unit) as killed:
        (ended,) = on.local([unit], Settings(here, here))
    assert ended.code == 0 and killed
    _check_complete(unit)


def test_an_engine_is_a_family_like_any_other(tmp_path: Path) -> None:
    families = {"engine": ["llama_cpp[ngram=3]"], "loop": ["prompt_lookup"]}
    result = sweep("plan", str(spec_of(tmp_path, families=families)), "--out", str(tmp_path / "jobs"))
    assert result.exit_code == 0 and len(read_commands(tmp_path / "jobs")) == 2


def test_warm_up_and_errors_are_no_finished_prompts(tmp_path: Path) -> None:
    (unit,) = units(read_spec(spec_of(tmp_path, families={"f": ["prompt_lookup"]})), tmp_path)
    warm_up = [replace(ROWS[0], repeat=-1), replace(ROWS[0], repeat=-2)]
    write_commands(tmp_path, [unit])
    with Writer(unit.out, replace(ONE, suites=(replace(ONE.suites[0], prompts=1),)), resume=True) as writer:
        for row in (*warm_up, ROWS[0]):
            writer.append(row)
    assert status(tmp_path, unit)[1:4] == ("started", 0, 1)
    unit.out.unlink()
    with Writer(unit.out, ONE, resume=True) as writer:
        for row in ROWS:
            writer.append(replace(failed(row), repeat=row.repeat))
    assert status(tmp_path, unit).state == "failed"


INTERRUPTIBLE = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from benchctl.cli import main
main()
"""


def test_a_worker_that_waited_starts_no_run_after_an_interrupt(here: Path) -> None:
    (unit,) = units(read_spec(spec_of(here, families={"f": ["prompt_lookup"]})), here)
    work.STOPPING.set()
    try:
        assert work.run_unit(unit, Settings(here, here)) < 0
    finally:
        work.STOPPING.clear()
    assert not unit.out.exists() and not finished_of(here, unit).exists()


@pytest.mark.slow
def test_an_interrupt_ends_the_runs_and_the_sweep(here: Path) -> None:
    (unit,) = units(read_spec(spec_of(here, families={"f": ["prompt_lookup"]})), here)
    write_commands(here, [unit])
    command = [sys.executable, "-c", INTERRUPTIBLE, "sweep", "run", str(here)]

    def runs() -> str:
        return subprocess.run(["pgrep", "-f", f"session.. run .*{unit.out}"], capture_output=True, text=True).stdout

    with subprocess.Popen(
        command, cwd=here, stderr=subprocess.PIPE, env={**os.environ, "TMPDIR": str(here)}
    ) as process:
        for _ in range(1200):
            if unit.out.exists():
                break
            time.sleep(0.05)
        assert runs()
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
    assert not runs()


@contextmanager
def _killing(unit: Unit, parent: bool = False) -> Iterator[list[int]]:
    """Kills the run, or the ``parent`` that started it, as soon as its file has three lines; the niceness it had."""
    killed, over = list[int](), threading.Event()

    def kill() -> None:
        while not killed and not over.wait(0.02):
            if unit.out.exists() and unit.out.read_bytes().count(b"\n") >= 3:
                found = subprocess.run(["pgrep", "-f", f"session.. run .*{unit.out}"], capture_output=True, text=True)
                for pid in map(int, found.stdout.split()):
                    with suppress(OSError):  # it ended just now
                        if parent:
                            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
                        niceness = os.getpriority(os.PRIO_PROCESS, pid)
                        os.kill(pid, signal.SIGKILL)
                        killed.append(niceness)

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield killed
    finally:
        over.set()
        thread.join()


def _check_complete(unit: Unit) -> None:
    file = read(unit.out)
    seen = Counter((row.prompt_id, row.turn, row.label, row.repeat) for row in file.rows if row.repeat >= 0)
    assert set(seen.values()) == {1}
    assert len(seen) == 4 * 2 * REPEATS  # turns of all prompts, labels, repeats


@pytest.mark.slow
def test_ray_starts_a_task_again_whose_worker_died(here: Path) -> None:
    ray = pytest.importorskip("ray")
    planned = units(read_spec(spec_of(here)), here)
    write_commands(here, planned)
    ended = on.ray(planned, Settings(here, here, attempts=3, per_host=2))
    with _killing(planned[0], parent=True) as killed:
        codes = [each.code for each in ended]
    assert codes == [0, 0] and not ray.is_initialized()
    assert killed == [os.nice(0)], "other programs come before a run"
    for unit in planned:
        _check_complete(unit)


@pytest.mark.slow
def test_submitit_runs_an_array(here: Path) -> None:
    pytest.importorskip("submitit")
    (unit,) = units(read_spec(spec_of(here, families={"f": ["prompt_lookup"]})), here)
    write_commands(here, [unit])
    assert [each.code for each in on.slurm([unit], Settings(here, here), cluster="local")] == [0]
    _check_complete(unit)


def test_without_slurm_or_a_gpu_one_sentence_says_so(here: Path) -> None:
    pytest.importorskip("submitit")
    (unit,) = units(read_spec(spec_of(here, families={"f": ["prompt_lookup"]}, devices=["cuda"])), here)
    write_commands(here, [unit])
    with refused("no_slurm", "srun"):
        list(on.slurm([unit], Settings(here, here)))
    if not places(True, 1):
        with refused("no_gpu", "visible"):
            list(on.local([unit], Settings(here, here)))


ROWS = [replace(baseline_row(prompt), repeat=repeat) for repeat in range(2) for prompt in ("p0", "p1", "p2", "p3")]
ONE = replace(RUN, methods=RUN.methods[:1], suites=(replace(RUN.suites[0], prompts=4),), repeats=2)


def test_256_workers_that_fail_lose_no_row_and_write_none_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers die at random rows, some while they write; a run is given up after five lives and continued later."""
    lives, guard = Counter[str](), threading.Lock()
    spec = read_spec(
        spec_of(tmp_path, models=[{"model": f"m{number}"} for number in range(256)], families={"f": ["a"]})
    )
    planned = units(spec, tmp_path)
    write_commands(tmp_path, planned)
    monkeypatch.setattr(
        work, "places", lambda on_gpu, per_host: [Place((f"core-{n}",), cores=(0,)) for n in range(per_host)]
    )
    monkeypatch.setattr(on, "places", work.places)
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))

    def measure(unit: Unit, place: Place, settings: Settings) -> int:
        with guard:
            lives[unit.name] += 1
            drawn = random.Random(f"{unit.name} {lives[unit.name]}")  # whichever thread comes first
            dies_at, torn = drawn.randrange(len(ROWS) + 4), drawn.random() < 0.5
        with Writer(unit.out, ONE, resume=True) as writer:
            known = {(row.prompt_id, row.repeat) for row in writer.stored.rows}
            for number, row in enumerate(row for row in ROWS if (row.prompt_id, row.repeat) not in known):
                if number == dies_at:
                    break
                writer.append(row)
            else:
                return 0
        if torn:
            with unit.out.open("ab") as file:
                file.write(b'{"kind":"row","suite":"ko')
        return -signal.SIGKILL

    monkeypatch.setattr(work, "measure", measure)
    settings = Settings(tmp_path, tmp_path, attempts=2, per_host=256)
    given_up = [each.unit for each in on.local(planned, settings) if each.code]
    assert 0 < len(given_up) < len(planned)
    assert all((status(tmp_path, unit).state == "done") == (unit not in given_up) for unit in planned)
    for _ in range(40):
        given_up = [each.unit for each in on.local(given_up, settings) if each.code]
    assert not given_up and max(lives.values()) > 4
    for unit in planned:
        assert Counter(map(_key, read(unit.out).rows)) == Counter(map(_key, ROWS))


def _key(row: Row) -> tuple[str, int]:
    return row.prompt_id, row.repeat


@pytest.mark.parametrize(("prompts", "done"), [(4, True), (5, False)])
def test_a_run_that_lacked_memory_is_done_when_all_its_generations_were_tried(
    prompts: int, done: bool, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each `sweep run` executed it again, which measured nothing."""
    (unit,) = units(read_spec(spec_of(here, families={"f": ["prompt_lookup"]})), here)
    write_commands(here, [unit])

    def lack(unit: Unit, place: Place, settings: Settings) -> int:
        with Writer(unit.out, replace(ONE, suites=(replace(ONE.suites[0], prompts=prompts),))) as writer:
            writer.append(*ROWS[:-1], failed(ROWS[-1], "out_of_memory: no room"))
        return 1

    monkeypatch.setattr(work, "measure", lack)
    result = sweep("run", str(here))
    assert (result.exit_code == 0, finished_of(here, unit).exists()) == (done, done)
    assert (f"{unit.name}  done" in result.stderr) == done


HOLDER = """
import sys, time, tempfile
from pathlib import Path
tempfile.gettempdir = lambda: sys.argv[1]
from benchctl.sweeps.work import exclusive, places
with exclusive(places(False, 1)):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_place_is_held_by_one_process_until_it_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE)
    assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
    waited = list[int]()

    def wait() -> None:
        waited.append(1)
        if len(waited) == 2:
            holder.kill()
            holder.wait()

    with exclusive(places(False, 1), wait) as place:
        assert place.locks and len(waited) >= 2
    holder.stdout.close()


def test_more_threads_than_cores_are_refused(here: Path) -> None:
    (unit,) = units(read_spec(spec_of(here, families={"f": ["a"]}, models=[{"model": "a", "threads": 500}])), here)
    with refused("too_few_cores", "500"):
        list(on.local([unit], Settings(here, here)))


def test_cpu_runs_have_cores_of_their_own() -> None:
    cores = os.sched_getaffinity(0)
    sets = [set(place.cores) for place in places(False, 2)]
    assert sum(map(len, sets)) == len(set.union(*sets)) and set.union(*sets) <= cores
    assert set(places(False, 1)[0].cores) == cores


def test_gpus_are_those_that_the_scheduler_left_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,GPU-7f")
    assert [place.gpu for place in places(True, 1)] == ["3", "GPU-7f"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,-1,1")
    assert [place.gpu for place in places(True, 1)] == ["0"]
    for hidden in ("", "-1"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
        assert places(True, 1) == []


def test_jobs_of_slurm_do_not_wait_for_each_others_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each may see its own GPU as number 0: all jobs of a host had the same lock, and ran one after the other."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    found = places(True, 1)
    for job in ("71", "72"):
        monkeypatch.setenv("SLURM_JOB_ID", job)
        found += places(True, 1)
    assert len({place.locks for place in found}) == 3 and {place.gpu for place in found} == {"0"}


def test_the_commands_can_be_run_by_a_shell(tmp_path: Path) -> None:
    spec = read_spec(spec_of(tmp_path, families={"f": ["early_exit[threshold=0.5,exits=1+2]"]}))
    path = write_commands(tmp_path / "with space", units(spec, tmp_path / "with space"))
    (line,) = path.read_text().splitlines()
    said = subprocess.run(["bash", "-c", f"printf '%s\\n' {line}"], capture_output=True, text=True).stdout.splitlines()
    assert said == shlex.split(line) and f"--out={tmp_path}/with space/results/target-draft-f-cpu-1.jsonl" in said
