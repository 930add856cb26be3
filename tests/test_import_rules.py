"""The walls of DESIGN.md hold: who may import whom, and what must not be imported at start-up."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = {name: ROOT / side / name for side, name in [
    ("shared", "llmirage_shared"), ("server", "llmirage_server"), ("client", "llmirage_client")]}  # fmt: skip
HTTP_LIBRARIES = ("starlette", "uvicorn", "sse_starlette", "httpx", "httpx2", "anyio", "httptools", "h11")

SERVER_ROOMS = ("commands", "config", "api", "replies", "cluster", "perf", "drivers", "telemetry", "app")


def server_rooms_but(*known: str) -> tuple[str, ...]:
    return tuple(f"server.{room}" for room in SERVER_ROOMS if room not in known)


# (package, its folder or file, what it must not import; "server." and "client." stand for the packages)
WALLS = [
    ("llmirage_shared", "", ("server", "client")),
    ("llmirage_server", "", ("client",)),
    ("llmirage_server", "api", ("server.perf", "server.app", "server.commands")),
    ("llmirage_server", "replies", (*server_rooms_but("replies"), "HTTP")),
    (
        "llmirage_server",
        "cluster",
        (*server_rooms_but("cluster", "perf"), "shared.tokens", "asyncio", "time", "random", "HTTP"),
    ),
    ("llmirage_server", "perf", (*server_rooms_but("perf"), "asyncio", "HTTP")),
    ("llmirage_server", "config", ("server.commands", "server.app", "server.api", "server.drivers", "HTTP")),
    ("llmirage_server", "drivers", ("server.commands", "server.app", "server.config", "server.perf", "HTTP")),
    ("llmirage_client", "workload", ("client.load", "client.targets", "client.report", "HTTP")),
    ("llmirage_client", "measure", ("client.load", "client.targets", "client.report", "HTTP")),
    ("llmirage_client", "report", ("client.load", "client.targets", "HTTP")),
    ("llmirage_client", "targets", ("client.load", "client.report", "client.simulator")),
    ("llmirage_client", "simulator", ("client.load", "client.report", "client.commands")),
]

# The client knows the server only in simulator/ and, lazily, where the commands show its catalogue and settings.
MAY_KNOW_THE_SERVER = (
    "simulator/",
    "commands/actions/catalog_clusters.py",
    "commands/actions/catalog_hardware.py",
)


def imports(path: Path, package: str) -> Iterator[tuple[str, int]]:
    """Yield (absolute module name, line) for every import anywhere in a file, relative ones resolved."""
    parts = [package, *path.relative_to(PACKAGES[package]).with_suffix("").parts]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(parts[: len(parts) - node.level]) if node.level else ""
            module = ".".join(x for x in (base, node.module or "") if x)
            yield module, node.lineno
            for alias in node.names:
                yield f"{module}.{alias.name}", node.lineno


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


def test_help_loads_nothing_heavy() -> None:
    heavy = {"numpy", "httpx", "starlette", "uvicorn", "tokenizers", "transformers", "rich", "yaml", "llmirage_server"}
    assert not heavy & loaded_after("import llmirage_client.cli")


@pytest.mark.parametrize("module", ["llmirage_server.commands.serve", "llmirage_server.app", "llmirage_client.commands.run"])
def test_start_up_never_loads_transformers(module: str) -> None:
    assert "transformers" not in loaded_after(f"import {module}")
