"""The YAML files of this package's data folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml


def read_data(name: str) -> Any:
    """What one of them holds. The C parser is ten times faster; PyYAML is not always built with it."""
    text = (Path(__file__).parent / "data" / name).read_text("utf-8")
    return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
