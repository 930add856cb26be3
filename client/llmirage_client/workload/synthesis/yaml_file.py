"""YAML files of parameters, with the line of each."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import yaml

from llmirage_client.workload.files import fault

_COLON_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")


class _Loader(yaml.SafeLoader):
    """Without YAML 1.1's numbers to the base of 60: 7:9 is a range here, not 429."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in _COLON_NUMBERS]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(_COLON_NUMBERS[0], re.compile(r"^[-+]?[0-9]+$"), list("-+0123456789"))
_Loader.add_implicit_resolver(
    _COLON_NUMBERS[1],
    re.compile(r"^[-+]?([0-9]+\.[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?$|^[-+]?[0-9]+[eE][-+]?[0-9]+$"),
    list("-+0123456789."),
)


def read_yaml(path: Path, name: str) -> tuple[dict[str, Any], dict[str, int]]:
    """The mapping in a YAML file, and the line of every dotted name in it. Raises WorkloadError when there is none."""
    try:
        text = path.read_text("utf-8")
        node = yaml.compose(text, _Loader)
        tree = yaml.load(text, _Loader)
        json.dumps(tree, default=str, skipkeys=True)  # raises where an alias is within what it stands for
    except (OSError, UnicodeDecodeError) as error:
        raise fault(name, f"cannot be read: {getattr(error, 'strerror', None) or 'is not UTF-8 text'}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        what = getattr(error, "problem", None) or str(error).splitlines()[0] if str(error) else "nested too deeply"
        raise fault(name, f"invalid YAML: {what}", None if mark is None else mark.line + 1) from None
    if tree is None:
        return {}, {}
    if not isinstance(tree, dict):
        raise fault(name, "must hold parameters as NAME: VALUE")
    return {str(key): value for key, value in tree.items()}, dict(_lines(node))


def _lines(node: Any, prefix: str = "") -> list[tuple[str, int]]:
    found: list[tuple[str, int]] = []
    for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
        name = f"{prefix}{key.value}"
        found.append((name, key.start_mark.line + 1))
        if isinstance(value, yaml.MappingNode):
            found += _lines(value, f"{name}.")
    return found
