"""A wheel into which compiled modules are put is one that pip installs, for the interpreter that compiled them."""

import subprocess
import sys
import zipfile
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import compiled_wheel as tool
import pytest


@pytest.fixture
def pure(tmp_path: Path) -> Path:
    wheel = tmp_path / "llmirage-1.2-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as into:
        into.writestr("llmirage_shared/hot.py", "speed = 'slow'\n")
        into.writestr("llmirage-1.2.dist-info/METADATA", "Metadata-Version: 2.1\nName: llmirage\nVersion: 1.2\n")
        about = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n\n"
        into.writestr("llmirage-1.2.dist-info/WHEEL", about)
        into.writestr("llmirage-1.2.dist-info/RECORD", "of the pure wheel")
    return wheel


def test_pip_installs_it_with_the_modules_and_their_manifest(pure: Path, tmp_path: Path) -> None:
    tag = tool.platform_tag()
    library = f"llmirage_shared/hot{EXTENSION_SUFFIXES[0]}"
    wheel = tool.with_libraries(pure, {library: b"machine code"}, tag)
    assert wheel.name == f"llmirage-1.2-{tag}.whl"
    target = tmp_path / "there"
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-index",
        "--no-deps",
        "--no-compile",
        "--target",
        str(target),
    ]
    subprocess.run([*command, str(wheel)], check=True, timeout=120)
    assert (target / library).read_bytes() == b"machine code"
    assert (target / "llmirage_shared/compiled.manifest").read_text() == f"{EXTENSION_SUFFIXES[0]}\n"
    assert (target / "llmirage_shared/hot.py").read_text() == "speed = 'slow'\n"
    about = (target / "llmirage-1.2.dist-info/WHEEL").read_text().splitlines()
    assert {"Root-Is-Purelib: false", f"Tag: {tag}"} <= set(about)
    assert not {"Root-Is-Purelib: true", "Tag: py3-none-any"} & set(about)


def test_the_same_modules_make_the_same_wheel(pure: Path) -> None:
    first = tool.with_libraries(pure, {"llmirage_shared/hot.so": b"x"}, "cp312-cp312-linux_x86_64").read_bytes()
    assert tool.with_libraries(pure, {"llmirage_shared/hot.so": b"x"}, "cp312-cp312-linux_x86_64").read_bytes() == first


def test_what_is_recorded_of_its_files_is_so(pure: Path) -> None:
    wheel = zipfile.ZipFile(tool.with_libraries(pure, {"llmirage_shared/hot.so": b"x" * 100}, "cp312-cp312-linux_x86_64"))
    record = [line.split(",") for line in wheel.read("llmirage-1.2.dist-info/RECORD").decode().splitlines()]
    assert [line[0] for line in record] == wheel.namelist()
    assert {path: size for path, _, size in record if size} == {
        each.filename: str(each.file_size) for each in wheel.infolist() if not each.filename.endswith("/RECORD")
    }
