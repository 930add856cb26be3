"""Typed access to the keys of a config.json: what is missing or wrong is collected, to be told all at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MOST_LAYERS = 10_000


class Fields:
    """The keys of one config. Every accessor returns something usable; `problems` says what was not in the file."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        """Take the config's top level, or that of its text model."""
        self._values = values
        self.problems: list[str] = []

    def get(self, name: str) -> Any:
        """Return the raw value, None where there is none."""
        return self._values.get(name)

    def problem(self, text: str) -> None:
        """Note what is wrong, once."""
        if text not in self.problems:
            self.problems.append(text)

    def positive(self, *names: str, default: int | None = None) -> int:
        """Return the first of these keys that is there: a positive integer. 1 stands in for a bad one."""
        value = next((v for name in names if (v := self.get(name)) is not None), default)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
        self.problem(f"{' or '.join(names)} must be a positive integer")
        return 1

    def count(self, *names: str) -> int:
        """Return the first of these keys that is there: an integer of 0 or more; 0 where there is none."""
        value = next((v for name in names if (v := self.get(name)) is not None), 0)
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return value
        self.problem(f"{' or '.join(names)} must be an integer of 0 or more")
        return 0

    def flag(self, name: str, default: bool = False) -> bool:
        """Return a true or false key; `default` where there is none."""
        value = self.get(name)
        if value is not None and not isinstance(value, bool):
            self.problem(f"{name} must be true or false")
        return value if isinstance(value, bool) else default

    def mapping(self, name: str) -> Mapping[str, Any]:
        """Return an object; an empty one where there is none."""
        value = self.get(name)
        if value is not None and not isinstance(value, dict):
            self.problem(f"{name} must be an object")
        return value if isinstance(value, dict) else {}

    def per_layer(self, name: str, layers: int) -> list[Any] | None:
        """Return a list with one value a layer, None where there is none. Lists may go on with prediction (MTP) layers."""
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, list) or len(value) < layers:
            self.problem(f"{name} must be a list of {layers} values, one for each layer")
            return None
        return value[:layers]

    def indices(self, name: str) -> frozenset[int] | None:
        """Return a list of numbers of layers, None where there is none."""
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(i, int) for i in value):
            self.problem(f"{name} must be a list of numbers of layers")
            return None
        return frozenset(value)

    @property
    def layers(self) -> int:
        """Number of layers."""
        layers = self.positive("num_hidden_layers")
        if layers > MOST_LAYERS:
            self.problem(f"num_hidden_layers must be at most {MOST_LAYERS:,}")
            return 1
        return layers

    @property
    def hidden(self) -> int:
        """Width of the residual stream."""
        return self.positive("hidden_size")
