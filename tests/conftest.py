"""Profiles of hypothesis, without deadlines: a slow machine is not a failure. And no tests of what was compiled from other
sources, nor through a proxy of the environment, which knows nothing of servers on this machine.

Bytecode is written even where the environment says otherwise: hundreds of child processes would compile llmirage anew.

Every property is tried on 10 examples; `make test-properties` tries 200.
"""

import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from llmirage_shared.compiled import complaint, is_compiled

if TYPE_CHECKING:
    from browser import Browser

settings.register_profile("quick", deadline=None, max_examples=10)
settings.register_profile("thorough", deadline=None, max_examples=200)
settings.load_profile("quick")

os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
    del os.environ[name]
os.environ.pop("COLUMNS", None)  # of the terminal of pytest-xdist
os.environ.pop("SSL_CERT_FILE", None)
os.environ["SSL_CERT_DIR"] = os.devnull  # no test meets a public authority; to read them takes each client of httpx 40 ms

INTERPRETED = "interpreted: replaces or lists what a compiled module (make compile) does not let be replaced or listed"


def pytest_configure(config: pytest.Config) -> None:
    if said := complaint():
        raise pytest.UsageError(said)
    config.addinivalue_line("markers", INTERPRETED)
    if (worker := os.environ.get("PYTEST_XDIST_WORKER")) and config.args == ["tests"]:
        # Each worker of a whole run compiles another part first, and all find the rest compiled.
        paths = sorted(map(str, Path("tests").rglob("test_*.py")))
        at = len(paths) * int(worker[2:]) // int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
        config.args[:] = paths[at:] + paths[:at]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Keep modules and tests from being walked by the collector of garbage: they stay to the end."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # As each worker has them, wherever it began. The pages first, whose tests take longest: at the end a worker is alone.
    items.sort(key=lambda item: (item.path.parent != Path(__file__).parent, str(item.path)))
    if is_compiled():
        for item in items:
            if item.get_closest_marker("interpreted"):
                item.add_marker(pytest.mark.skip(reason=INTERPRETED))


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator["Browser"]:
    from browser import Browser

    with Browser(tmp_path_factory.mktemp("browser")) as browser:
        yield browser


@pytest.fixture
def own_metrics() -> Iterator[None]:
    """Metrics that the test loads are gone after it."""
    from llmirage_client.measure import catalogue

    before = set(catalogue.PER_REQUEST)
    yield
    for tag in catalogue.PER_REQUEST.keys() - before:
        del catalogue.PER_REQUEST[tag]
