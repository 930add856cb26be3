"""Writes client/llmirage/_options.py: the keyword arguments of the Python API, for type checkers and editors.

They are the settings that the server and the commands declare. `make docs` runs it; a test holds the file to them.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args, get_origin

from llmirage._commands import COMMANDS, options_of
from llmirage_client.simulator.cluster_flags import NOT_HERE
from llmirage_server.config import ClusterConfig
from llmirage_shared.settings import About, settings_of

_IN_MORE_FORMS = ("script", "faults")  # which Server declares itself

_HEAD = '''"""Keyword arguments of the Python API. Made by `make docs` from the settings of server and commands."""

# ruff: noqa: UP013, E501
# fmt: off

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Literal, TypedDict
'''


def python_options() -> str:
    """The file's text."""
    of_server = {name: about for name, about in settings_of(ClusterConfig).items() if name not in _IN_MORE_FORMS}
    of_commands = [
        _typed_dict(f"{name.capitalize()}Options", {one: option.about for one, option in options_of(name).items()})
        for name in COMMANDS
    ]
    of_cluster = {name: about for name, about in settings_of(ClusterConfig).items() if name not in NOT_HERE}
    of_classes = [_typed_dict("ServerOptions", of_server), _typed_dict("ClusterOptions", of_cluster)]
    return "\n".join([_HEAD, *of_classes, *of_commands])


def _typed_dict(name: str, settings: Mapping[str, About]) -> str:
    entries = []
    for setting, about in settings.items():
        names = dict.fromkeys([about.flag or setting, setting, *[one for one in _other_names(about) if len(one) > 1]])
        entries += [f'"{one.replace("-", "_")}": "{_type(about)} | None",' for one in names]
    lines = textwrap.wrap(
        " ".join([entry.replace(" ", "\0") for entry in entries]), 150, break_on_hyphens=False, break_long_words=False
    )
    body = "\n".join([f"    {line}" for line in lines]).replace("\0", " ")
    return f'{name} = TypedDict("{name}", {{\n{body}\n}}, total=False)\n'


def _other_names(about: About) -> tuple[str, ...]:
    return (*([about.short] if about.short else []), *about.aliases)


def _type(about: About) -> str:
    lists = about.several or any(get_origin(kind) is tuple for kind in about.kinds)
    if about.choices:
        one = f"Literal[{', '.join(map(repr, about.choices))}]"
    else:
        listed = [kind for each in about.kinds for kind in (get_args(each) or (each,))]
        kinds = list(dict.fromkeys([kind.__name__ for kind in listed if kind in (int, float, bool, str)]))
        kinds = [kind for kind in kinds if not (kind == "int" and "float" in kinds)]
        if about.read is not None and not about.repeated and not lists:
            kinds = list(dict.fromkeys([*kinds, "float", "str"]))
        one = " | ".join(kinds) or ("float | str" if Any in about.kinds else "str")
    if about.metavar in ("FILE", "DIR") and not about.repeated:
        one += " | PathLike[str]"
    if lists and not about.repeated:
        one += f" | Sequence[{one}]"
    if not about.repeated:
        return one
    if "@" in (about.metavar or ""):
        return "str | Sequence[str | tuple[int, int]]"
    return "str | Sequence[str]" + (" | Mapping[str, object]" if "=" in (about.metavar or "") else "")


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(python_options(), encoding="utf-8")
