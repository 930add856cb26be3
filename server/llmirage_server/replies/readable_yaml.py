"""YAML made to be read, and to be reviewed in a diff."""

from __future__ import annotations

import re
from typing import Any

import yaml

_DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
# What a literal block cannot hold, or not for sure: other line breaks, control characters, spaces at the ends of lines.
_NO_BLOCK = re.compile(
    r"[^\n\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]|[ ]+(\n|$)|^[ \n]"
)


def readable_yaml(document: Any) -> str:
    """JSON data as YAML: reading it gives the same data."""
    return yaml.dump(document, Dumper=_ReadableDumper, allow_unicode=True, sort_keys=False, width=10**9)


class _ReadableDumper(_DUMPER):  # type: ignore[misc, valid-type]
    """Texts of several lines are literal blocks; lists of numbers stand on one line."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_str(dumper: Any, text: str) -> Any:
    style = None
    if "\n" in text or len(text) > 80:
        style = '"' if _NO_BLOCK.search(text) else "|" if "\n" in text else None
    elif _NO_BLOCK.search(text):
        style = '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


def _represent_list(dumper: Any, values: list[Any]) -> Any:
    numbers = bool(values) and all(isinstance(value, int | float) for value in values)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", values, flow_style=numbers or not values)


def _represent_float(dumper: Any, value: float) -> Any:
    """As `repr` writes it, so that reading gives the same number. YAML 1.1 wants a point in it."""
    text = repr(value)
    if text in ("inf", "-inf", "nan"):
        text = {"inf": ".inf", "-inf": "-.inf", "nan": ".nan"}[text]
    elif "e" in text and "." not in text:
        text = text.replace("e", ".0e")
    return dumper.represent_scalar("tag:yaml.org,2002:float", text)


_ReadableDumper.add_representer(str, _represent_str)
_ReadableDumper.add_representer(list, _represent_list)
_ReadableDumper.add_representer(float, _represent_float)
