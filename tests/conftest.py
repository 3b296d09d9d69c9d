"""What every test shares: no network, one thread, and the folder of published data where there is one."""

import os
from pathlib import Path

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_DATASETS_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
# Before torch is imported, so that no test pays for the import only to set it, and subprocesses inherit it.
os.environ["OMP_NUM_THREADS"] = "1"

ROOT = Path(__file__).parent.parent


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
