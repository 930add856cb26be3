"""Keeps docs/what-if.md true: runs the commands in it and writes what they print below them.

    python tools/what_if_docs.py docs/what-if.md              # run all, rewrite the page
    python tools/what_if_docs.py docs/what-if.md --check      # run all, exit 1 and say so where the page differs
    python tools/what_if_docs.py docs/what-if.md --check --only bundled:pools

A block to run is a ```console block that begins with `$ llmirage `. What is written is standard output up to the first line
that tells the machine's time or the sources of prices; of `simulate`, the table of the cluster's instances. Every
**bold figure** of the page must stand in an output of its section.
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

_BLOCK = re.compile(r"```console\n\$ llmirage ((?:[^\n]*\\\n)*[^\n]*)\n(.*?)```", re.DOTALL)
_REST = re.compile(r"^(Prices: |[\d.,]+ (ms|s|min|h)\b.* CPU s|\d[\d,]* simulations? of )")
_FIGURE = re.compile(r"\*\*(\d[\d,.]*\d|\d)(?: ?(?:%|ms|s|USD|GPUs?|x))?\*\*")


def output_of(command: str) -> str:
    """What the command prints, without what differs from machine to machine. Raises RuntimeError when it fails."""
    words = shlex.split(command.replace("\\\n", " "))
    code = "from llmirage_client.cli import main; main()"
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-c", code, *words],
            cwd=folder,
            env={**os.environ, "COLUMNS": "100"},
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        raise RuntimeError(f"llmirage {command}: exit status {done.returncode}\n{done.stdout}{done.stderr}")
    lines: list[str] = []
    printed = done.stdout
    if words[0] == "simulate":
        printed = "\nCluster, " + printed.partition("\nCluster, ")[2].partition("\nTime of steps")[0]
    for line in printed.splitlines():
        if _REST.match(line):
            break
        lines.append(line.rstrip())
    return "\n".join(lines).strip("\n") + "\n"


def rewritten(page: str, only: str = "") -> str:
    """The page with fresh outputs. only: leave the commands without this text as they are."""

    def fresh(match: re.Match[str]) -> str:
        command, old = match.groups()
        return f"```console\n$ llmirage {command}\n{output_of(command) if only in command else old}```"

    return _BLOCK.sub(fresh, page)


def unfounded(page: str) -> list[str]:
    """Bold figures that no output of their section (from one `## ` to the next) has."""
    missing = []
    for section in re.split(r"(?m)^## ", page)[1:]:
        printed = set(re.findall(r"\d[\d,.]*\d|\d", " ".join(output for _, output in _BLOCK.findall(section))))
        words = _BLOCK.sub("", section)
        title = section.partition("\n")[0]
        missing += [f"{title}: {figure} is in no output" for figure in _FIGURE.findall(words) if figure not in printed]
    return missing


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", type=Path)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if the page is not what is printed")
    parser.add_argument("--only", default="", metavar="TEXT", help="only the commands with this text")
    options = parser.parse_args()
    page = options.page.read_text(encoding="utf-8")
    new = rewritten(page, options.only)
    problems = unfounded(new)
    if options.check:
        problems += difflib.unified_diff(page.splitlines(), new.splitlines(), "the page", "the commands", lineterm="")
    else:
        options.page.write_text(new, encoding="utf-8")
    print("\n".join(problems), end="\n" if problems else "")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
