"""Write the tables of reference in docs/ from what the code knows: settings, keys of scripts, faults, metrics.

Usage: python tools/table_docs.py docs/faults.md docs/scripts.md ...          (make docs)
       python tools/table_docs.py --check docs/faults.md docs/scripts.md ...  (exit 1 when one is out of date)

A table stands between `<!-- NAME -->` and `<!-- end -->`; NAME may have an argument, such as `<!-- settings KV cache -->`.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import click
import httpx

import llmirage
from llmirage_client.cli import main
from llmirage_client.commands.actions import catalog
from llmirage_client.measure.catalogue import OVER_TIME, PER_CONVERSATION, PER_REQUEST, WHOLE_RUN
from llmirage_server.faults.rule import FAULTS, Conditions, described, parameter_texts
from llmirage_server.replies.scripts.rule import SCHEMA_FILE

_TABLE = re.compile(r"(<!-- (\w+)(?: ([^>]+?))? -->\n).*?(<!-- end -->)", re.DOTALL)
_PAGE = re.compile(r"docs/([\w-]+)\.md")


def faults() -> Iterable[str]:
    yield from ("| fault | what happens | parameters |", "|---|---|---|")
    for fault in map(described, FAULTS.values()):
        streams = " Streams only." if fault.streams_only else ""
        parameters = "<br>".join(f"`{name}`: {text}" for name, text in fault.parameters)
        yield _row(f"`{fault.kind}`", f"{fault.summary}{streams}<br>`{fault.example}`", parameters)


def conditions() -> Iterable[str]:
    yield from ("| condition | which requests |", "|---|---|")
    yield from (_row(f"`{name}`", text) for name, text in parameter_texts(Conditions))


def _links(text: str) -> str:
    return _PAGE.sub(r"[\1](\1.md)", text)


def every_setting() -> Iterable[str]:
    """The settings of the commands that take --set, a table for each heading of their help."""
    with click.Context(main):
        rows = catalog.settings()
    for heading in dict.fromkeys(row["heading"] for row in rows):
        yield from ("", f"## {heading.partition(' (')[0]}", "", "| setting | of | flag | meaning |", "|---|---|---|---|")
        for row in rows:
            if row["heading"] == heading:
                others = f" ({', '.join(f'`{key}`' for key in row['also'])})" if row["also"] else ""
                flag = f"`{row['flag']}`" if row["flag"] else ""
                meaning = _links(" ".join(row["meaning"].split()))
                yield _row(f"`{row['name']}`{others}", ", ".join(row["of"]), flag, meaning)


def script(part: str) -> Iterable[str]:
    """The keys of a part of script files, as their JSON Schema has them."""
    schema = json.loads(SCHEMA_FILE.read_text(encoding="utf-8"))
    keys: Mapping[str, Any] = (schema if part == "file" else schema["$defs"][part])["properties"]
    yield from ("| key | meaning |", "|---|---|")
    yield from (_row(f"`{name}`", key["description"].replace("*", r"\*")) for name, key in keys.items())


def metrics() -> Iterable[str]:
    """The metrics of a run: tag, the name in CSV files, the unit."""
    yield from ("| metric | name in CSV files | unit | of |", "|---|---|---|---|")
    parts = {"a request": PER_REQUEST, "a conversation": PER_CONVERSATION, "a moment": OVER_TIME, "the run": WHOLE_RUN}
    for of, specs in parts.items():
        yield from (_row(f"`{spec.tag}`", spec.title, spec.unit, of) for spec in specs.values())


def prometheus(whose: str) -> Iterable[str]:
    """What a server says under /metrics: the families of an engine, by its dialect, or those of llmirage itself."""
    yield from ("| family | type | meaning |", "|---|---|---|")
    with (
        llmirage.Server(virtual_time=True, dialect="vllm" if whose == "llmirage" else whose) as server,
        httpx.Client(transport=server.transport, base_url=server.url) as client,
    ):
        text = client.get("/metrics").text
    kinds = dict(re.findall(r"# TYPE (\S+) (\S+)", text))
    for name, meaning in re.findall(r"# HELP (\S+) (.*)", text):
        if name.startswith("llmirage:") == (whose == "llmirage"):
            yield _row(f"`{name}`", kinds[name], meaning)


TABLES: Mapping[str, Callable[..., Iterable[str]]] = {
    "faults": faults, "conditions": conditions,
    "every_setting": every_setting, "script": script, "metrics": metrics, "prometheus": prometheus,
}  # fmt: skip


def _row(*cells: str) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def document(text: str) -> str:
    """The page with its tables as they are now."""

    def fresh(found: re.Match[str]) -> str:
        arguments = [found[3]] if found[3] else []
        return found[1] + "\n".join(TABLES[found[2]](*arguments)) + "\n" + found[4]

    return _TABLE.sub(fresh, text)


if __name__ == "__main__":
    for path in [Path(name) for name in sys.argv[1:] if not name.startswith("--")]:
        page = path.read_text(encoding="utf-8")
        if "--check" not in sys.argv:
            path.write_text(document(page), encoding="utf-8")
        elif page != document(page):
            sys.exit(f"{path} is out of date: make docs")
