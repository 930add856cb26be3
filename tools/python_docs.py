"""Write docs/python-api.md: every name of `import llmirage`, from signatures and docstrings.

Usage: python tools/python_docs.py docs/python-api.md          (make docs)
       python tools/python_docs.py --check docs/python-api.md  (exit 1 when the file is out of date)
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import llmirage

_HEAD = """# Python: names and signatures

`make docs` writes this page from the code. [A server in a test](python.md) and [Simulations, sizes, runs](python-studies.md)
show how to use these names; nothing else of the packages is promised to stay.
"""
_PAGE = re.compile(r"\bdocs/([\w-]+)\.md")


def document() -> str:
    names = sorted(llmirage.__all__, key=lambda name: (inspect.isclass(getattr(llmirage, name)), name.lower()))
    lines = [_HEAD, "## Functions", ""]
    kind = False
    for name in names:
        value = getattr(llmirage, name)
        if inspect.isclass(value) and not kind:
            kind = True
            lines += ["## Classes", ""]
        lines += _class(name, value) if kind else _callable(f"### {name}", name, value)
    return "\n".join(lines).rstrip() + "\n"


def _class(name: str, value: type) -> Iterator[str]:
    bases = [base.__name__ for base in value.__bases__ if base is not object and not base.__name__.startswith("_")]
    yield from (f"### {name}", "")
    if bases:
        yield from (f"{'An' if bases[0][0] in 'AEIOU' else 'A'} `{'`, `'.join(bases)}`.", "")
    if "__init__" in vars(value) and issubclass(value, (llmirage.Server, llmirage.Cluster)):
        yield from _callable("", name, value, vars(value)["__init__"].__doc__)
    else:
        yield from _said(value.__doc__)
    if dataclasses.is_dataclass(value):
        yield from ("| field | type |", "|---|---|")
        yield from (f"| `{each.name}` | `{_escaped(each.type)}` |" for each in dataclasses.fields(value))
        yield ""
    for member, what in vars(value).items():
        if member.startswith("_") or not (isinstance(what, property) or inspect.isfunction(what)):
            continue
        if isinstance(what, property):
            kind = inspect.signature(what.fget).return_annotation if what.fget else Any
            yield from (f"#### {name}.{member}", "", "```pyi", f"{member}: {_plain(str(kind))}", "```", "")
            yield from _said(what.__doc__)
        else:
            yield from _callable(f"#### {name}.{member}", member, what)


def _callable(heading: str, name: str, value: Any, more: str | None = None) -> Iterator[str]:
    if heading:
        yield from (heading, "")
    signature = inspect.signature(value)
    own = [one for one in signature.parameters.values() if one.name != "self"]
    end = "" if inspect.isclass(value) else f" -> {_plain(str(signature.return_annotation))}"
    given = _plain(str(inspect.Signature(own)))
    if inspect.iscoroutinefunction(value):
        name = f"async {name}"
    line = f"{name}{given}{end}"
    if len(line) > 100:
        parts = [_plain(str(inspect.Signature([one])))[1:-1].removesuffix(", /") for one in own]
        stars = [one.kind for one in own]
        if inspect.Parameter.KEYWORD_ONLY in stars and inspect.Parameter.VAR_POSITIONAL not in stars:
            parts.insert(stars.index(inspect.Parameter.KEYWORD_ONLY), "*")
        parts = [part.removeprefix("*, ") if part != "*" else part for part in parts]
        line = f"{name}(\n    " + ",\n    ".join(parts) + f",\n){end}"
    yield from ("```pyi", line, "```", "")
    yield from _said(inspect.getdoc(value))
    if more:
        yield from _said(more)


def _said(docstring: str | None) -> Iterator[str]:
    """The docstring's paragraphs; the arguments it explains, a list."""
    if not docstring:
        return
    own, _, _ = inspect.cleandoc(docstring).partition("\n\nSettings:\n")  # docs/settings.md has these
    text = _PAGE.sub(r"[\1](\1.md)", own)
    for paragraph in re.split(r"\n\s*\n", text):
        yield from (" ".join(line.strip() for line in paragraph.splitlines()), "")


def _plain(text: str) -> str:
    """Return an annotation without the quotes of postponed evaluation."""
    for quote in "'\"":
        inner = f"{quote}([^{quote}]*){quote}"
        text = re.sub(rf"(?<=: |> ){inner}", r"\1", re.sub(rf"{inner}$", r"\1", text))
    return text.replace("typing.", "").replace("PathName", "str | os.PathLike[str]")


def _escaped(text: Any) -> str:
    return str(text).replace("|", "\\|")


if __name__ == "__main__":
    path = Path(sys.argv[-1])
    if "--check" in sys.argv:
        sys.exit(0 if path.read_text(encoding="utf-8") == document() else f"{path} is out of date: make docs")
    path.write_text(document(), encoding="utf-8")
