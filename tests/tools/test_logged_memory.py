"""KV pools that vLLM logged, beside ours."""

import pytest
from accuracy.logged_memory import LOGGED, LoggedPool

from llmirage_server.perf.catalogue.gpus import GIB
from llmirage_server.perf.deployment import Deployment


@pytest.mark.parametrize("logged", LOGGED, ids=lambda logged: logged.name)
def test_pools_are_those_that_were_logged(logged: LoggedPool) -> None:
    memory = Deployment.create(**logged.deployment).memory
    assert memory.pool_bytes / GIB == pytest.approx(logged.pool_gib, rel=0.04)
