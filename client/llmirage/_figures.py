"""SummaryFigures by name, as attributes and as a mapping."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from llmirage_shared.settings import did_you_mean


class SummaryFigures(Mapping[str, Any]):
    """What a command's --json prints: `figures.ttft_ms.p99` is `figures["ttft_ms"]["p99"]`."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = {name: SummaryFigures(one) if isinstance(one, Mapping) else one for name, one in values.items()}

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self._values:
            raise AttributeError(f"there is no figure {name!r}{did_you_mean(name, self.__dict__.get('_values', ()))}")
        return self._values[name]

    def __dir__(self) -> list[str]:
        return sorted([*super().__dir__(), *self._values])

    def __repr__(self) -> str:
        return repr(self.as_dict())

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {name: one.as_dict() if isinstance(one, SummaryFigures) else one for name, one in self._values.items()}

    def to_json(self) -> str:
        """As the command prints it, in one line. What is not a number is null."""
        return json.dumps(_finite(self.as_dict()))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
