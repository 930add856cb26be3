"""The pytest plugin: a server for a test, recordings, and what the server was asked in the report of a failed test.

pytest loads it at every start, so it imports nothing that pytest has not loaded already; a fixture loads the server.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import pytest

import llmirage
from llmirage_shared.plural import plural

_MOST_SHOWN = 20  # requests in a report
_UPSTREAM_KEY = "LLMIRAGE_UPSTREAM_KEY"  # as of `llmirage record`
_UNMATCHED = ("generate", "fail")
_MARKER = (
    "llmirage(**settings): of llmirage_server in this test, as llmirage.Server takes them: script, model, faults, ...; \
recorded=True replays what --llmirage-record=URL recorded; unmatched='fail': each request must fit a rule"
)


@dataclass
class _Watched:
    """A server that tests use. seen: the number of the last request that was looked at."""

    name: str
    server: llmirage.Server
    recorded: bool
    strict: bool
    seen: int = 0


_WATCHED = pytest.StashKey[list[_Watched]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("llmirage")
    group.addoption(
        "--llmirage-record",
        metavar="URL",
        help=f"Record what this endpoint answers to tests marked llmirage(recorded=True). Its key: {_UPSTREAM_KEY}.",
    )
    group.addoption(
        "--llmirage-unmatched",
        choices=_UNMATCHED,
        help="What a request leads to that no rule of a script fits: a generated reply (default), or a failed test, too.",
    )
    parser.addini("llmirage_unmatched", "The default of --llmirage-unmatched.", default="generate")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", _MARKER)


# --- fixtures -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def llmirage_settings() -> dict[str, Any]:
    """Return settings of all servers of the fixtures: override it in conftest.py. Markers come before them."""
    return {}


@pytest.fixture
def llmirage_server(request: pytest.FixtureRequest, llmirage_settings: dict[str, Any]) -> Iterator[llmirage.Server]:
    """Start a llmirage.Server for this test, in virtual time, with the settings of @pytest.mark.llmirage(...)."""
    given = llmirage_settings | _marked(request.node)
    recorded = given.pop("recorded", False)
    if not isinstance(recorded, bool):
        _refuse(f"recorded must be True or False, not {recorded!r}")
    strict = _strict(request.config, given.pop("unmatched", None))
    if not recorded:
        yield from _serve("llmirage_server", request.node, given, strict=strict)
        return
    if taken := given.keys() & {"replay", "on_miss", "upstream", "upstream_key"}:
        _refuse(f"{min(taken)} is what recorded=True sets")
    folder = _recordings(request.node)
    url = request.config.getoption("llmirage_record")
    if url is None:
        if not folder.is_dir():
            pytest.fail(f"this test has no recordings. {_how_to_record(request.node)}", pytrace=False)
        yield from _serve("llmirage_server", request.node, given | {"replay": folder}, recorded=True)
        return
    with _made_anew(folder) as new:
        source = {"replay": new, "on_miss": "record", "upstream": url, "upstream_key": os.environ.get(_UPSTREAM_KEY)}
        yield from _serve("llmirage_server", request.node, given | source, recorded=True)


@pytest.fixture(scope="session")
def llmirage_session_server(request: pytest.FixtureRequest, llmirage_settings: dict[str, Any]) -> Iterator[llmirage.Server]:
    """One llmirage.Server for all tests, in virtual time, with the settings of the fixture llmirage_settings."""
    strict = _strict(request.config, None)
    yield from _serve("llmirage_session_server", request.node, dict(llmirage_settings), strict=strict)


def _serve(
    name: str, node: pytest.Item | pytest.Session, given: dict[str, Any], *, recorded: bool = False, strict: bool = False
) -> Iterator[llmirage.Server]:
    given.setdefault("virtual_time", given.get("speed") is None)
    if strict and given.get("script") is None:
        given["script"] = []
    try:
        server = llmirage.Server(**given)
    except llmirage.ConfigError as error:
        _refuse(str(error))
    with server:
        node.stash.setdefault(_WATCHED, []).append(_Watched(name, server, recorded, strict))
        yield server


def _marked(item: pytest.Item) -> dict[str, Any]:
    """Return the settings of the item's markers: those of the function before those of its class and module.

    Files of a script and of faults are looked for beside the test's file first.
    """
    given: dict[str, Any] = {}
    for marker in reversed(list(item.iter_markers("llmirage"))):
        if marker.args:
            _refuse("its settings have names: script=..., model=..., faults=...")
        given |= marker.kwargs
    for name in ("script", "faults", "cluster"):
        value = given.get(name)
        if isinstance(value, str | os.PathLike) and (beside := item.path.parent / value).is_file():
            given[name] = beside
    return given


def _strict(config: pytest.Config, marked: Any) -> bool:
    way = marked or config.getoption("llmirage_unmatched") or config.getini("llmirage_unmatched")
    if way not in _UNMATCHED:
        _refuse(f"unmatched must be {' or '.join(_UNMATCHED)}, not {way!r}")
    return bool(way == "fail")


def _refuse(problem: str) -> NoReturn:
    pytest.fail(f"@pytest.mark.llmirage: {problem}", pytrace=False)


# --- recordings -----------------------------------------------------------------------------------------------------------


def _recordings(item: pytest.Item) -> Path:
    """Return the folder of a test's recordings: `recordings/MODULE/TEST` beside its file."""
    names = item.nodeid.split("::")[1:]
    name = re.sub(r"[^\w.-]+", "-", ".".join(names)).strip("-")
    if name.replace("-", "") != re.sub(r"[\[\]-]", "", ".".join(names)):  # two tests may have that name
        name += f"-{hashlib.sha256(item.nodeid.encode()).hexdigest()[:8]}"
    return item.path.parent / "recordings" / item.path.stem / name


@contextlib.contextmanager
def _made_anew(folder: Path) -> Iterator[Path]:
    """Yield a folder that takes the place of another one if it has got files."""
    new = Path(tempfile.mkdtemp(prefix="llmirage-recordings-"))
    try:
        yield new
    finally:
        if any(new.iterdir()):
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(new, folder)
        shutil.rmtree(new)


def _how_to_record(item: pytest.Item) -> str:
    command = f"pytest '{item.nodeid}' --llmirage-record=URL"
    return f"Record what a real endpoint answers, with its key in {_UPSTREAM_KEY}:\n  {command}"


# --- reports --------------------------------------------------------------------------------------------------------------


def _watched(item: pytest.Item) -> list[_Watched]:
    return item.stash.get(_WATCHED, []) + item.session.stash.get(_WATCHED, [])


def pytest_runtest_setup(item: pytest.Item) -> None:
    names = getattr(item, "fixturenames", ())
    if "llmirage_session_server" in names and "llmirage_server" not in names and item.get_closest_marker("llmirage"):
        _refuse("llmirage_session_server has the settings that the fixture llmirage_settings returns, not those of a marker")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    for each in _watched(item):
        each.seen = max([request.number for request in each.server.requests], default=0)
    result = yield
    for each in _watched(item):
        if problem := _problem(item, each):
            pytest.fail(problem, pytrace=False)
    return result


def _problem(item: pytest.Item, watched: _Watched) -> str | None:
    """Describe the requests that no rule or recording answered."""
    asked = [request for request in watched.server.requests if request.number > watched.seen]
    if watched.recorded:
        missed = [request for request in asked if request.error.startswith("No recording answers")]
        what, then = "no recording fits", [_how_to_record(item)]
    elif watched.strict:
        missed = [request for request in asked if request.rule.startswith("fallback: ")]
        what, then = "no rule of the script fits", []
    else:
        return None
    if not missed:
        return None
    lines = [f"{watched.name}: {what} {plural(len(missed), 'request')}:"]
    for request in missed[:_MOST_SHOWN]:
        lines += [f"  {request}"] + [f"    {request.error}"] * bool(request.error)
    return "\n".join(lines + then)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if call.when == "call" and report.failed:
        for each in _watched(item):
            if asked := [request for request in each.server.requests if request.number > each.seen]:
                lines = [str(request) for request in asked[:_MOST_SHOWN]]
                lines += [f"... and {more} more"] if (more := len(asked) - _MOST_SHOWN) > 0 else []
                report.sections.append((f"requests to {each.name}", "\n".join(lines)))
    return report
