"""KV pools that vLLM logged, beside ours."""

import sys
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).resolve().parents[2] / "tools")]

from accuracy.logged_memory import LOGGED, LoggedPool  # noqa: E402

from llmirage_server.perf.catalogue.gpus import GIB  # noqa: E402
from llmirage_server.perf.deployment import Deployment  # noqa: E402


@pytest.mark.parametrize("logged", LOGGED, ids=lambda logged: logged.name)
def test_pools_are_those_that_were_logged(logged: LoggedPool) -> None:
    memory = Deployment.create(**logged.deployment).memory
    assert memory.pool_bytes / GIB == pytest.approx(logged.pool_gib, rel=0.04)
