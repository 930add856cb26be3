"""CSV files of measurements, gzipped where the name ends in .gz; equal rows make equal files."""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Iterable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

Row = dict[str, str]
T = TypeVar("T")


def read_csv(path: Path) -> list[Row]:
    """Return the rows by the names of the header."""
    raw = path.read_bytes()
    text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode()
    return list(csv.DictReader(io.StringIO(text)))


def read_as(kind: type[T], path: Path) -> list[T]:
    """Return the rows as objects of a dataclass, whose fields are texts and numbers under the names of the header."""
    kinds = {field.name: {"str": str, "int": int, "float": float}[str(field.type)] for field in fields(kind)}  # type: ignore[arg-type]
    return [kind(**{name: of(row[name]) for name, of in kinds.items()}) for row in read_csv(path)]


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Iterable[Any]]) -> None:
    """Write what `read_csv` reads, without a time stamp."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    data = buffer.getvalue().encode()
    path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)
