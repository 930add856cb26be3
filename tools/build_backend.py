"""The build backend of pyproject.toml: setuptools. With LLMIRAGE_COMPILE=1 wheels have the compiled modules inside.

LLMIRAGE_COMPILE=1 python -m build --wheel
"""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

from setuptools import build_meta
from setuptools.build_meta import (
    build_editable,
    build_sdist,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

__all__ = [
    "build_editable", "build_sdist", "build_wheel", "get_requires_for_build_editable", "get_requires_for_build_sdist",
    "get_requires_for_build_wheel", "prepare_metadata_for_build_editable", "prepare_metadata_for_build_wheel",
]  # fmt: skip

ROOT = Path(__file__).resolve().parents[1]
# Its advice on folders beside an editable package would be the first that a newcomer reads.
warnings.filterwarnings("ignore", module=r"setuptools\.command\.editable_wheel")
COMPILES = os.environ.get("LLMIRAGE_COMPILE", "0") not in ("", "0")


def get_requires_for_build_wheel(settings: Any = None) -> list[str]:
    needed = list(build_meta.get_requires_for_build_wheel(settings))
    if COMPILES:  # with the versions that the tests passed with
        pinned = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
        needed += [line for line in pinned if line.partition("==")[0] in ("mypy", "numpy", "packaging")]
    return needed


def build_wheel(folder: str, settings: Any = None, metadata: str | None = None) -> str:
    name = build_meta.build_wheel(folder, settings, metadata)
    return _compiled(Path(folder) / name).name if COMPILES else str(name)


def _compiled(pure: Path) -> Path:
    """A wheel with the compiled modules in the place of one without."""
    sys.path[:0] = [str(ROOT / "shared"), str(ROOT / "tools")]
    import compile as compiling  # here: a wheel without compiled modules needs neither mypy nor a C compiler
    from compiled_wheel import platform_tag, with_libraries

    with tempfile.TemporaryDirectory() as temporary:
        built = compiling.build(Path(temporary), "2")
        libraries = {path.relative_to(built).as_posix(): path.read_bytes() for path in compiling.libraries(built)}
        wheel = with_libraries(pure, libraries, platform_tag())
    pure.unlink()
    return wheel
