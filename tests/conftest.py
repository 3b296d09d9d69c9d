"""What every test shares: no network, one thread, and the folder of published data where there is one."""

import os
import signal
import sys
from pathlib import Path

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_DATASETS_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
# Before torch is imported, so that no test pays for the import only to set it, and subprocesses inherit it.
os.environ["OMP_NUM_THREADS"] = "1"
# A background job of a shell ignores Ctrl-C, and so would all that the tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).parent.parent
# Files that take long. xdist would begin with those of many tests, and end with one of these on one worker.
LONG = (
    "test_lowest_versions",
    "test_packaging",
    "test_drop_in",
    "test_sweep_jobs",
    "test_matrix",
    "test_draft_vocabulary",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The long files first."""
    items.sort(key=lambda item: item.path.stem not in LONG)


@pytest.fixture(autouse=True)
def seeded() -> None:
    """What a test draws without a seed does not depend on the tests that its worker ran before."""
    if torch := sys.modules.get("torch"):
        torch.manual_seed(0)


@pytest.fixture(scope="session")
def root() -> Path:
    """The root of the repository."""
    return ROOT


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder beside the repository that holds published data files; without it, tests that need it are skipped."""
    folder = ROOT.parent / "shared"
    if not (folder / "data").is_dir():
        pytest.skip("no ../shared/data here")
    return folder


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tiny models and three prompts, see fixtures_run; only to be read."""
    from fixtures_run import make_folder

    return make_folder(tmp_path_factory.mktemp("run"))


@pytest.fixture
def here(run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder with links to these models and prompts, so that arguments stay short."""
    for name in ("target", "draft", "three.jsonl"):
        (tmp_path / name).symlink_to(run_folder / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def no_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """To load weights fails the test."""
    from benchctl.decoding.model.target import Target

    monkeypatch.setattr(Target, "load", lambda *_, **__: pytest.fail("weights were loaded"))


@pytest.fixture
def raised(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ids of errors, as they come up."""
    from benchctl.errors import UserError

    ids, real = list[str](), UserError.__init__

    def noted(self: UserError, id: str, message: str) -> None:
        ids.append(id)
        real(self, id, message)

    monkeypatch.setattr(UserError, "__init__", noted)
    return ids
