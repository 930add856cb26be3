"""The parameters of a synthetic workload as a YAML file with their explanations."""

from __future__ import annotations

import json
from typing import Any

from llmirage_client.workload.synthesis.parameters import PARAMETERS, Values


def as_yaml(values: Values) -> str:
    """All parameters; reading the text gives the same values."""
    lines = []
    section = ""
    for name, parameter in PARAMETERS.items():
        group, dot, key = name.rpartition(".")
        if group != section:
            section = group
            if dot:
                lines.append(f"{group}:")
        indent = "  " if dot else ""
        lines.append(f"{indent}{key}: {_shown(values[name])}  # {parameter.help}")
    return "\n".join(lines) + "\n"


def _shown(value: Any) -> str:
    if not isinstance(value, dict):
        return json.dumps(value)
    if value.get("distribution") == "constant":
        return json.dumps(value["value"])
    return "{" + ", ".join(f"{key}: {json.dumps(entry)}" for key, entry in value.items()) + "}"
