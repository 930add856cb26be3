"""LoRA adapters as vLLM's --lora-modules names them: NAME=PATH, or a JSON object with these and base_model_name."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_FIELDS = {"name", "path", "base_model_name", "is_3d_lora_weight"}  # the last has no effect here


@dataclass(frozen=True, slots=True)
class LoraModule:
    """An adapter and where its weights are. base: the served name of its model; None: the first."""

    name: str
    path: str
    base: str | None = None

    def rank(self, most: int) -> int:
        """Return the rank in the folder's adapter_config.json; without one, the largest there may be.

        Raises ValueError for one above that.
        """
        try:
            found = json.loads((Path(self.path) / "adapter_config.json").read_text("utf-8"))["r"]
        except (OSError, ValueError, KeyError, TypeError):
            return most
        if not isinstance(found, int) or found < 1:
            raise ValueError(f"{self.path}/adapter_config.json: r must be a whole number of at least 1, not {found!r}")
        if found > most:
            raise ValueError(f"LoRA rank {found} is greater than max_lora_rank {most}.")
        return found


def read_modules(given: Any) -> tuple[str, ...]:
    """Return each adapter as text, of a list, of one, or of a text with commas between them. Raises ValueError."""
    if isinstance(given, str):
        text = given.strip()
        given = json.loads(text) if text.startswith("[") else [text] if text.startswith("{") else text.split(",")
    parts = given if isinstance(given, list | tuple) else [given]
    return tuple([part if isinstance(part, str) else json.dumps(part) for part in parts])


def lora_module(text: str) -> LoraModule:
    """Return the adapter that a text names. Raises ValueError."""
    if text.lstrip().startswith("{"):
        try:
            given = json.loads(text)
        except ValueError:
            raise ValueError(f"{text!r} is not valid JSON") from None
        if unknown := given.keys() - _FIELDS:
            raise ValueError(f"{text!r} has the unknown field {min(unknown)!r}; known: {', '.join(sorted(_FIELDS))}")
        found = LoraModule(given.get("name", ""), given.get("path", ""), given.get("base_model_name"))
    else:
        name, _, path = text.partition("=")
        found = LoraModule(name.strip(), path.strip())
    if not all(isinstance(part, str) and part for part in (found.name, found.path)):
        raise ValueError(f'{text!r} is neither NAME=PATH nor {{"name": ..., "path": ...}}')
    return found


def modules_problem(texts: tuple[str, ...]) -> str | None:
    """Return the end of a sentence about adapters that cannot be read, or have one name; None: they are fine."""
    try:
        names = [lora_module(text).name for text in texts]
    except ValueError as error:
        return f"cannot be read: {error}"
    return next((f"name {name!r} twice" for name in names if names.count(name) > 1), None)
