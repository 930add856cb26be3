"""The keys of a script, read from its JSON Schema: editors complete them by that file, the reader knows them by it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

SCHEMA_FILE = Path(__file__).with_name("script.schema.json")
SCHEMA: Mapping[str, Any] = json.loads(SCHEMA_FILE.read_text(encoding="utf-8"))

FILE_KEYS: Sequence[str] = list(SCHEMA["properties"])
KEYS: Mapping[str, Sequence[str]] = {name: list(kind["properties"]) for name, kind in SCHEMA["$defs"].items()}
"""The keys of the mappings below the top, by the schema's names for these."""
FINISH_REASONS: Sequence[str] = SCHEMA["$defs"]["reply"]["properties"]["finish_reason"]["enum"]
MOST_RULES: int = SCHEMA["properties"]["rules"]["maxItems"]
MOST_TOKENS: int = SCHEMA["$defs"]["reply"]["properties"]["tokens"]["maximum"]
