"""The walls of DESIGN.md hold: who may import whom, what must not be imported at start-up."""

import ast
import functools
import importlib
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = {name: ROOT / side / name for side, name in [
    ("shared", "llmirage_shared"), ("server", "llmirage_server"), ("client", "llmirage_client"),
    ("client", "llmirage")]}  # fmt: skip
HTTP_LIBRARIES = ("starlette", "sse_starlette", "uvicorn", "httpx", "httpx2", "anyio", "httptools", "h11", "wsproto")

FAMILIES = ("openai", "anthropic", "engines", "stored", "admin")  # of HTTP endpoints
HTTP_ROOMS = ("http", "service", "state", "batches", "proxy", *FAMILIES)
SERVER_ROOMS = (
    "commands", "config", "replies", "cluster", "perf", "drivers", "faults", "telemetry", "app", "workers", *HTTP_ROOMS,
)  # fmt: skip


def rooms_of(*names: str) -> tuple[str, ...]:
    return tuple(f"server.{name}" for name in names)


def server_rooms_but(*known: str) -> tuple[str, ...]:
    return rooms_of(*(room for room in SERVER_ROOMS if room not in known))


# (package, its folder or file, what it must not import; "server." and "client." stand for the packages)
WALLS = [
    ("llmirage_shared", "", ("server", "client")),
    ("llmirage_server", "", ("client",)),
    *[("llmirage_server", room, ("server.perf", "server.app", "server.commands")) for room in HTTP_ROOMS],
    *[("llmirage_server", name, rooms_of(*(other for other in FAMILIES if other != name))) for name in FAMILIES],
    *[("llmirage_server", name, rooms_of("proxy", *FAMILIES)) for name in ("http", "service", "state", "batches")],
    ("llmirage_server", "http", rooms_of("service", "state", "batches")),
    ("llmirage_server", "replies", (*server_rooms_but("replies"), "HTTP")),
    (
        "llmirage_server",
        "cluster",
        (*server_rooms_but("cluster", "perf"), "shared.tokens", "asyncio", "time", "random", "HTTP"),
    ),
    ("llmirage_server", "perf", (*server_rooms_but("perf"), "asyncio", "HTTP")),
    ("llmirage_server", "config", (*server_rooms_but("config", "replies", "cluster", "perf", "faults"), "HTTP")),
    ("llmirage_server", "faults", (*server_rooms_but("faults"), "HTTP")),
    ("llmirage_server", "drivers", ("server.commands", "server.app", "server.config", "server.perf", "HTTP")),
    ("llmirage_client", "workload", ("client.load", "client.targets", "client.report", "HTTP")),
    ("llmirage_client", "measure", ("client.load", "client.targets", "client.report", "HTTP")),
    ("llmirage_client", "report", ("client.load", "client.targets", "HTTP")),
    ("llmirage_client", "targets", ("client.load", "client.report", "client.simulator")),
    ("llmirage_client", "simulator", ("client.load", "client.report", "client.commands")),
    ("llmirage", "", ("server", "HTTP")),
]

# The client knows the server only in simulator/ and, lazily, where the commands show its catalogue and settings.
MAY_KNOW_THE_SERVER = ("simulator/", "commands/actions/catalog_server.py")


class Statements(NamedTuple):
    """A file: the modules that it imports, with lines, imports within its functions, its classes."""

    imports: tuple[tuple[str, int], ...]
    import_when_called: bool
    classes: tuple[str, ...]


@functools.cache
def statements(path: Path, package: str) -> Statements:
    """Read a file; names of relative imports are absolute. Expressions are not looked into."""
    parts = [package, *path.relative_to(PACKAGES[package]).with_suffix("").parts]
    found: list[tuple[str, int]] = []
    classes = []
    when_called = False
    ahead: list[tuple[ast.AST, bool]] = [(ast.parse(path.read_text()), False)]
    while ahead:
        node, called = ahead.pop()
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno) for alias in node.names]
            when_called |= called
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(parts[: len(parts) - node.level]) if node.level else ""
            module = ".".join(x for x in (base, node.module or "") if x)
            found += [(module, node.lineno), *((f"{module}.{alias.name}", node.lineno) for alias in node.names)]
            when_called |= called
        elif isinstance(node, ast.ClassDef):
            classes.append(node.name)
        called |= isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        blocks = [getattr(node, block, ()) for block in ("body", "orelse", "finalbody", "handlers", "cases")]
        ahead += [(inner, called) for block in blocks if isinstance(block, list) for inner in block]
    return Statements(tuple(found), when_called, tuple(classes))


def imports(path: Path, package: str) -> tuple[tuple[str, int], ...]:
    return statements(path, package).imports


def expand(name: str) -> tuple[str, ...]:
    if name == "HTTP":
        return HTTP_LIBRARIES
    side = name.split(".")[0]
    return (f"llmirage_{name}",) if side in ("shared", "server", "client") else (name,)


def below(module: str, prefix: str) -> bool:
    return module == prefix or module.startswith(prefix + ".")


@pytest.mark.parametrize(("package", "room", "forbidden"), WALLS, ids=lambda x: x if isinstance(x, str) else "")
def test_no_room_imports_what_it_must_not_know(package: str, room: str, forbidden: tuple[str, ...]) -> None:
    files = list((PACKAGES[package] / room).rglob("*.py"))
    assert files, f"no files in {package}/{room}: the rule guards nothing"
    broken = {
        f"{path.relative_to(ROOT)}:{line} imports {module}"
        for path in files
        for module, line in imports(path, package)
        for name in forbidden
        for prefix in expand(name)
        if below(module, prefix)
    }
    assert not broken


def test_the_client_meets_the_server_only_in_the_simulator_room() -> None:
    client = PACKAGES["llmirage_client"]
    broken = {
        f"{path.relative_to(ROOT)}:{line}"
        for path in client.rglob("*.py")
        if not path.relative_to(client).as_posix().startswith(MAY_KNOW_THE_SERVER)
        for module, line in imports(path, "llmirage_client")
        if below(module, "llmirage_server")
    }
    assert not broken


def loaded_after(statement: str) -> set[str]:
    """Return the names of the modules that a fresh interpreter holds after a statement."""
    code = f"import sys\n{statement}\nprint('\\n'.join(sys.modules))"
    return set(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split())


# The modules that import inside functions, and why. Everywhere else imports stand at the top.
IMPORTS_WHEN_CALLED = {
    "llmirage_client.load.runner": "uvloop is optional",
    "llmirage_client.load.variation": "tokenizer and prose take 15 ms to import, and few repeats have texts to be written",
    "llmirage_client.operations.one_run": "a run in one process needs neither worker processes nor Ray",
    "llmirage_client.report.screen": "rich takes 30 ms to import, and a run sends its first request without waiting for it",
    "llmirage_client.simulate.simulation": "lengths need neither the server's app and httpx, nor a tokenizer and prose",
    "llmirage_client.workers.ray_cluster": "Ray is optional",
    "llmirage_server.admin.endpoints": "pydantic's models of all bodies take 120 ms to import, for the first request",
    "llmirage_server.app": "the families of endpoints take 70 ms to import, and replies' expressions 40 ms to compile",
    "llmirage_server.cluster.routers": "a router of the user's own brings a module that others do not need",
    "llmirage_server.engines.endpoints": "importlib.metadata takes 6 ms to import, and few ask a server for its version",
    "llmirage_server.perf.catalogue.lookup": "few models come from a config.json, and its families take 4 ms to import",
    "llmirage_server.perf.deployment": "the module of measured tables brings logging, and few deployments ask for it",
    "llmirage_server.replies.structured.regex_syntax": "regex takes 8 ms to import, and few patterns name properties",
    "llmirage_shared.command_line": "only a shell that completes a word needs click.shell_completion",
    "llmirage_shared.compiled": "hashlib loads OpenSSL, and only a build and a fresh checkout hash their sources",
    "llmirage_shared.settings": "difflib takes 3 ms to import, and only a refusal of a name needs it",
    "llmirage_shared.tokenizer_loader": "the libraries of tokenizers, for those who need one; transformers takes seconds",
}


def modules() -> dict[str, Path]:
    found = {}
    for package, folder in PACKAGES.items():
        for path in folder.rglob("*.py"):
            parts = [package, *path.relative_to(folder).with_suffix("").parts]
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def test_only_named_modules_import_within_functions() -> None:
    found = {name for name, path in modules().items() if statements(path, name.split(".")[0]).import_when_called}
    assert found == IMPORTS_WHEN_CALLED.keys()


def test_what_is_imported_by_name_is_there() -> None:
    """Texts such as "package.module:function", by which commands and settings name what they need only when it is used."""
    named = {
        place for path in modules().values() for place in re.findall(r'"(llmirage_\w+(?:\.\w+)+:\w+)"', path.read_text())
    }
    assert len(named) > 20
    for place in named:
        module, _, name = place.partition(":")
        assert callable(getattr(importlib.import_module(module), name)), place


def import_cycles(graph: dict[str, set[str]]) -> set[frozenset[str]]:
    """The groups of modules that reach each other."""
    reached = {}
    for start in graph:
        seen: set[str] = set()
        ahead = [start]
        while ahead:
            for other in graph[ahead.pop()] - seen:
                seen.add(other)
                ahead.append(other)
        reached[start] = seen
    groups = (frozenset(m for m in reached[start] if start in reached[m]) | {start} for start in graph)
    return {group for group in groups if len(group) > 1}


def test_no_modules_import_each_other() -> None:
    """Imports within functions and for type checking count, too: types that both need stand in a module below both."""
    everything = modules()
    graph: dict[str, set[str]] = {}
    for name, path in everything.items():
        graph[name] = {module for module, _ in imports(path, name.split(".")[0]) if module in everything} - {name}
    assert import_cycles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == {frozenset("abc")}
    assert not import_cycles(graph)


def test_a_class_name_means_one_thing() -> None:
    meant: dict[str, set[str]] = {}
    for name, path in modules().items():
        for each in statements(path, name.split(".")[0]).classes:
            meant.setdefault(each, set()).add(name)
    assert len(meant) > 300
    assert not {name for name, places in meant.items() if len(places) > 1}


def test_help_loads_nothing_heavy() -> None:
    heavy = {"numpy", "httpx", "starlette", "uvicorn", "tokenizers", "transformers", "rich", "yaml", "llmirage_server"}
    assert not heavy & loaded_after("import llmirage_client.cli")


@pytest.mark.parametrize("module", ["llmirage_server.commands.serve", "llmirage_server.app", "llmirage_client.commands.run"])
def test_start_up_never_loads_transformers(module: str) -> None:
    assert "transformers" not in loaded_after(f"import {module}")


def test_a_server_is_made_without_what_only_requests_need() -> None:
    libraries = {"pydantic", "tokenizers", "jsonschema", "transformers", "httpx", "sqlite3"}
    own = {
        "replies.compose",
        "openai.chat",
        "batches",
        "openai.responses.endpoint",
        "faults.rule",
        "faults.fault",
        "telemetry.live_page",
        "replies.structured.grammar",
    }
    late = libraries | {f"llmirage_server.{name}" for name in own} | {"llmirage._requests"}
    assert not late & loaded_after("import llmirage; llmirage.Server()")
    assert not late & loaded_after("from llmirage_server.app import create_app; create_app()")
