"""Compiles the modules in which simulations spend their time, beside their sources, where Python prefers what is compiled.

    python tools/compile.py              # build: needs mypy (with mypyc) and a C compiler
    python tools/compile.py --clean      # remove: everything runs from the sources again

What is computed stays the same to the last bit: Python's own arithmetic, and a C compiler that may not fuse a product and a
sum into one rounding. The sources are copied to a temporary folder and built there, so that no C file comes near them. A
manifest beside the shared library says of which sources it was made; `llmirage` and pytest refuse to go on with others
(llmirage_shared/compiled.py).
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from llmirage_shared import compiled

ROOT = compiled.ROOT
SIDES = {"llmirage_shared": "shared", "llmirage_server": "server", "llmirage_client": "client"}
LIBRARY = "llmirage_shared.hot"  # the one shared library; the files beside the sources only point to it

# By what asks for them at every request, or every few: what is not here is asked too seldom, or spends its time in numpy.
# A name may end in *: all modules of that package but its __init__.
NAMES = (
    # The cluster's clock, and who is where.
    "llmirage_server.cluster.cluster",
    "llmirage_server.cluster.lifecycle.pools",
    "llmirage_server.cluster.request",
    "llmirage_server.drivers.virtual",
    # The choice of an instance: not the routers themselves, whose docstrings `llmirage catalog` shows.
    "llmirage_server.cluster.routers.prefix_index",
    # An instance: its batch, its memory, the times of its steps.
    "llmirage_server.cluster.instances.*",
    "llmirage_server.cluster.kv.*",
    "llmirage_server.cluster.schedulers.*",
    "llmirage_server.cluster.snapshots",
    "llmirage_server.perf.steps.steady",
    # The client: who sends what when, and a row for each request.
    "llmirage_client.load.arrivals",
    "llmirage_client.load.conversation",
    "llmirage_client.load.phase",
    "llmirage_client.load.rules",
    "llmirage_client.simulate.event_queue",
    "llmirage_client.simulate.token_rows",
    "llmirage_client.simulate.token_streams",
)

# Types are taken from our own modules, numpy and the standard library: to check all of the rest takes ten times as long.
_UNKNOWN = """anyio click httptools httpx jinja2 jsonschema pydantic ray rich sse_starlette starlette tokenizers transformers
uvicorn uvloop yaml llmirage_server.admin llmirage_server.anthropic llmirage_server.app llmirage_server.batches
llmirage_server.engines llmirage_server.http llmirage_server.openai llmirage_server.proxy llmirage_server.replies
llmirage_server.service llmirage_server.state llmirage_server.stored"""
_MYPY_SETTINGS = f"""\
[mypy]
mypy_path = shared:server:client
explicit_package_bases = True
[mypy-{",".join(f"{name}.*" for name in _UNKNOWN.split())}]
follow_imports = skip
ignore_missing_imports = True
"""


# CPU seconds of a simulation of 2,000 requests on eight instances, the best of three, after a short one that loads modules.
_MEASURED = """
import time, llmirage
def take(requests):
    begun_s = time.process_time()
    cluster = {"model": "llama-3.1-8b", "gpu": "h100_sxm", "instances": 8}
    llmirage.simulate(**cluster, isl=2000, osl=500, request_rate=40, requests=requests)
    return time.process_time() - begun_s
take(20)
print(min(take(2000) for _ in range(3)))
"""


class CannotBuildError(Exception):
    """Says in one line what is missing or went wrong."""


def source(module: str) -> str:
    """The path of a module from the repository's root."""
    return f"{SIDES[module.partition('.')[0]]}/{module.replace('.', '/')}.py"


def expanded(names: Iterable[str]) -> list[str]:
    """Those that end in * replaced by the modules that there are."""
    modules = []
    for name in names:
        package = name.removesuffix(".*")
        if package == name:
            modules.append(name)
        else:
            files = sorted((ROOT / source(package)).with_suffix("").glob("*.py"))
            modules += [f"{package}.{path.stem}" for path in files if path.stem != "__init__"]
    return modules


MODULES = expanded(NAMES)


class ClassNames(NamedTuple):
    """stored: what objects of the class have; given: what its body gives a value, a slot or a method."""

    bases: set[str]
    stored: set[str]
    given: set[str]


def classes_of(path: Path) -> dict[str, ClassNames]:
    """The classes of a file."""
    found = {}
    for each in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(each, ast.ClassDef):
            methods = {line.name for line in each.body if isinstance(line, ast.FunctionDef)}
            stored, valued = set(), set()
            for line in each.body:
                if isinstance(line, ast.Assign) and ast.unparse(line.targets[0]) == "__slots__":
                    valued |= set(ast.literal_eval(line.value))
                elif isinstance(line, ast.Assign):
                    valued |= {ast.unparse(target) for target in line.targets}
                elif isinstance(line, ast.AnnAssign):
                    (valued if line.value else stored).add(ast.unparse(line.target))
            for inner in ast.walk(each):
                if isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store):
                    stored |= {inner.attr} if isinstance(inner.value, ast.Name) and inner.value.id == "self" else set()
            bases = {ast.unparse(base) for base in each.bases}  # one with a dot is a library's
            found[each.name] = ClassNames(bases, stored | valued, valued | methods)
    return found


def open_classes() -> set[str]:
    """From which somebody else inherits: modules that stay as they are, and tests.

    Raises CannotBuildError where such a class would give a value, or a slot, to a name that objects of one that it inherits
    from have: what is compiled would go on with its own.
    """
    inside = {ROOT / source(module) for module in MODULES}
    outside = [path for folder in (*SIDES.values(), "tests") for path in (ROOT / folder).rglob("*.py") if path not in inside]
    compiled_classes: dict[str, ClassNames] = {}
    for path in inside:
        compiled_classes |= classes_of(path)
    opened: set[str] = set()
    heirs = re.compile(rf"\bclass \w+\([^:]*\b(?:{'|'.join(compiled_classes)})\b")
    for path in outside:
        for name, names in classes_of(path).items() if heirs.search(path.read_text(encoding="utf-8")) else ():
            above, left = set(), list(names.bases & compiled_classes.keys())
            while left:  # a class is open only if all above it are
                if (base := left.pop()) not in above:
                    above.add(base)
                    left += compiled_classes[base].bases & compiled_classes.keys()
            if unseen := names.given & {value for base in above for value in compiled_classes[base].stored}:
                raise CannotBuildError(f"{path.relative_to(ROOT)}: {name}.{min(unseen)} would not be seen: compile it too")
            opened |= above
    return opened


def check_hashes(path: Path) -> None:
    """Raises CannotBuildError for a class that compares and has no `__hash__`: compiled, its objects have none at all."""
    for each in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(each, ast.ClassDef):
            methods = {method.name for method in each.body if isinstance(method, ast.FunctionDef)}
            if methods & {"__lt__", "__le__", "__gt__", "__ge__"} and not methods & {"__eq__", "__hash__"}:
                raise CannotBuildError(f"{path.relative_to(ROOT)}: {each.name} compares: give it a __hash__ too")


def opened(text: str, classes: set[str]) -> str:
    """A module of which modules that are not compiled may inherit from these classes."""
    begins = re.compile(rf"^class (?:{'|'.join(sorted(classes))})\b", re.MULTILINE)
    if not begins.search(text):
        return text
    future = "from __future__ import annotations\n"
    shown = f"{future}import typing\nif typing.TYPE_CHECKING:\n    from mypy_extensions import mypyc_attr\n"
    return begins.sub(r"@mypyc_attr(allow_interpreted_subclasses=True)\n\g<0>", text.replace(future, shown, 1))


def copy_sources(folder: Path) -> None:
    for package, side in SIDES.items():
        for path in (ROOT / side / package).rglob("*.py"):
            target = folder / path.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
    classes = open_classes()
    for module in MODULES:
        check_hashes(ROOT / source(module))
        path = folder / source(module)
        path.write_text(opened(path.read_text(encoding="utf-8"), classes), encoding="utf-8")


def build(folder: Path, level: str) -> Path:
    """Build copies of the sources in a folder; return the folder of what came out. Raises CannotBuildError."""
    try:
        from mypyc.build import mypycify
    except ImportError:
        raise CannotBuildError("mypy is not installed, whose mypyc compiles: pip install -e '.[dev]'") from None
    try:
        from setuptools import Distribution  # type: ignore[import-untyped]
    except ImportError:
        raise CannotBuildError("setuptools is not installed, which calls the C compiler: pip install setuptools") from None
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "")
    if compiler and shutil.which(compiler[0]) is None:
        raise CannotBuildError(f"there is no C compiler: {compiler[0]} is not on the path (or set CC)")
    copy_sources(folder)
    (folder / "mypy.ini").write_text(_MYPY_SETTINGS)
    said = io.StringIO()
    with contextlib.chdir(folder):
        try:
            with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
                extensions: list[Any] = mypycify(
                    ["--config-file=mypy.ini", "--cache-dir=cache", *map(source, MODULES)],
                    opt_level=level,
                    debug_level="0",
                    target_dir="c",
                    group_name=LIBRARY,
                )
        except SystemExit:
            raise CannotBuildError(f"mypyc refuses the sources:\n{said.getvalue().rstrip()}") from None
        for extension in extensions:
            arguments = [each for each in extension.extra_compile_args if each != "-Werror"]
            extension.extra_compile_args = arguments + ([] if os.name == "nt" else ["-ffp-contract=off", "-fno-fast-math"])
        command: Any = Distribution({"name": "llmirage", "ext_modules": extensions}).get_command_obj("build_ext")
        command.build_lib, command.build_temp = "built", "objects"
        command.ensure_finalized()
        try:
            command.run()
        except Exception as error:  # the compiler has said on standard error what it wants
            raise CannotBuildError(f"the C compiler failed, are Python's own headers installed? {error}") from None
    return folder / "built"


def libraries(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.suffix in (".so", ".pyd"))


def simulation_s() -> float:
    """Return the CPU time of a simulation with the modules as they are now."""
    done = subprocess.run([sys.executable, "-c", _MEASURED], capture_output=True, text=True, check=True)
    return float(done.stdout)


def clean() -> int:
    """Remove what was built here, by any interpreter; return how many files."""
    compiled.MANIFEST.unlink(missing_ok=True)
    found = [
        path
        for package, side in SIDES.items()
        for path in (ROOT / side / package).rglob("*")
        if path.suffix in (".so", ".pyd")
    ]
    for path in found:
        path.unlink()
    return len(found)


def main() -> int:
    arguments = argparse.ArgumentParser(description="Compiles the modules in which simulations spend their time.")
    arguments.add_argument("--clean", action="store_true", help="remove what was built")
    arguments.add_argument("--level", default="2", choices=["0", "1", "2", "3"], help="optimization of the C compiler")
    arguments.add_argument("--unmeasured", action="store_true", help="do not simulate before and after")
    given = arguments.parse_args()
    if given.clean:
        print(f"{clean()} compiled files removed")
        return 0
    begun_s = time.perf_counter()
    print(f"compiling {len(MODULES)} modules, a minute or two", flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        stamps = compiled.stamps([source(module) for module in MODULES])  # before the copies: edits meanwhile are seen
        try:
            built = build(folder, given.level)
        except CannotBuildError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        clean()
        sources_s = 0.0 if given.unmeasured else simulation_s()
        size = 0
        for path in libraries(built):
            package = path.relative_to(built).parts[0]
            target = ROOT / SIDES[package] / path.relative_to(built)
            shutil.copy(path, target)
            size += target.stat().st_size
            if package == "llmirage_shared":
                print(f"  {target.relative_to(ROOT)}  {target.stat().st_size:,} bytes, what all the others point to")
        compiled.write_manifest(stamps)
    for module in MODULES:
        print(f"  {module}")
    took_s = time.perf_counter() - begun_s
    print(f"{len(MODULES)} modules compiled, {size / 1e6:.1f} MB, {took_s:.0f} s; make uncompile undoes it")
    if given.unmeasured:
        return 0
    compiled_s = simulation_s()
    gain = f"{sources_s:.2f} s of CPU from the sources, {compiled_s:.2f} s compiled: {sources_s / compiled_s:.1f} x"
    print(f"measured here, a simulation of 2,000 requests: {gain}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
