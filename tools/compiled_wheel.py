"""Puts compiled modules into a wheel of pure Python, and says for which interpreter and platform it is then."""

from __future__ import annotations

import base64
import hashlib
import re
import sysconfig
import zipfile
from collections.abc import Mapping
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

MANIFEST = "llmirage_shared/compiled.manifest"  # llmirage_shared/compiled.py reads it


def platform_tag() -> str:
    """The tag of this interpreter and platform: cp312-cp312-linux_x86_64."""
    from packaging import tags  # here: a build brings it, a checkout need not have it

    platform = re.sub(r"[^\w]", "_", sysconfig.get_platform())
    return str(next(tags.cpython_tags(platforms=[platform])))


def with_libraries(pure: Path, libraries: Mapping[str, bytes], tag: str) -> Path:
    """A new wheel beside the pure one. libraries: by their paths in the wheel."""
    name, version = pure.name.split("-")[:2]
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(pure) as wheel:
        files = {each.filename: wheel.read(each) for each in wheel.infolist() if not each.is_dir()}
    del files[f"{info}/RECORD"]
    about = files[f"{info}/WHEEL"].decode()
    about = re.sub(r"^Root-Is-Purelib: true$", "Root-Is-Purelib: false", about, flags=re.MULTILINE)
    files[f"{info}/WHEEL"] = re.sub(r"^Tag: .*$", f"Tag: {tag}", about, count=1, flags=re.MULTILINE).encode()
    files |= libraries | {MANIFEST: f"{EXTENSION_SUFFIXES[0]}\n".encode()}
    record = "".join([f"{path},sha256={_digest(data)},{len(data)}\n" for path, data in files.items()])
    files[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    new = pure.with_name(f"{name}-{version}-{tag}.whl")
    with zipfile.ZipFile(new, "w", zipfile.ZIP_DEFLATED) as wheel:
        for path, data in files.items():
            entry = zipfile.ZipInfo(path)  # of 1980: the same sources make the same wheel
            entry.external_attr = 0o644 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            wheel.writestr(entry, data)
    return new


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
