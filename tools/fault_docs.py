"""Write the tables of docs/faults.md from what the server knows: its faults, the conditions of faults.

Usage: python tools/fault_docs.py docs/faults.md          (make docs)
       python tools/fault_docs.py --check docs/faults.md  (exit 1 when the file is out of date)

A table stands between `<!-- NAME -->` and `<!-- end -->`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from llmirage_server.faults.registry import FAULTS, described, parameter_texts
from llmirage_server.faults.rule import Conditions

_TABLE = re.compile(r"(<!-- (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def faults() -> Iterable[str]:
    yield from ("| fault | what happens | parameters |", "|---|---|---|")
    for fault in map(described, FAULTS.values()):
        streams = " Streams only." if fault.streams_only else ""
        parameters = "<br>".join(f"`{name}`: {text}" for name, text in fault.parameters)
        yield _row(f"`{fault.kind}`", f"{fault.summary}{streams}<br>`{fault.example}`", parameters)


def conditions() -> Iterable[str]:
    yield from ("| condition | which requests |", "|---|---|")
    yield from (_row(f"`{name}`", text) for name, text in parameter_texts(Conditions))


TABLES: Mapping[str, Callable[[], Iterable[str]]] = {"faults": faults, "conditions": conditions}


def _row(*cells: str) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def document(text: str) -> str:
    """The page with its tables as they are now."""
    return _TABLE.sub(lambda found: found[1] + "\n".join(TABLES[found[2]]()) + "\n" + found[3], text)


if __name__ == "__main__":
    path = Path(sys.argv[-1])
    page = path.read_text(encoding="utf-8")
    if "--check" in sys.argv:
        sys.exit(0 if page == document(page) else f"{path} is out of date: make docs")
    path.write_text(document(page), encoding="utf-8")
