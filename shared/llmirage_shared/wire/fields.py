"""Typed reading of one JSON object's fields; every refusal names the field by its path."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from llmirage_shared.wire import errors


class Fields:
    """Readers over one object. An absent field and a null both give the default, as in the OpenAI API."""

    __slots__ = ("_path", "_values")

    def __init__(self, values: Mapping[str, Any], path: str = "") -> None:
        self._values = values
        self._path = path

    def name(self, key: str) -> str:
        return f"{self._path}.{key}" if self._path else key

    def raw(self, key: str) -> Any:
        return self._values.get(key)

    def required_string(self, key: str) -> str:
        if key not in self._values:
            raise errors.missing(self.name(key))
        value = self._values[key]
        if not isinstance(value, str):
            raise errors.wrong_type(self.name(key), "a string", value)
        return value

    def string(self, key: str) -> str | None:
        value = self._values.get(key)
        if value is not None and not isinstance(value, str):
            raise errors.wrong_type(self.name(key), "a string", value)
        return value

    def boolean(self, key: str, default: bool = False) -> bool:
        value = self._values.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise errors.wrong_type(self.name(key), "a boolean", value)
        return value

    def integer(self, key: str, minimum: int, maximum: int | None = None) -> int | None:
        value = self._values.get(key)
        if value is None:
            return None
        if type(value) is float and value.is_integer():  # 16.0 is an integer in JSON
            value = int(value)
        if type(value) is not int:
            raise errors.wrong_type(self.name(key), "an integer", value)
        self._check_range(key, "integer", value, minimum, maximum)
        return value

    def number(self, key: str, minimum: float, maximum: float) -> float | None:
        value = self._values.get(key)
        if value is None:
            return None
        if type(value) is not int and type(value) is not float:
            raise errors.wrong_type(self.name(key), "a decimal", value)
        self._check_range(key, "decimal", value, minimum, maximum)
        return float(value)

    def mapping(self, key: str) -> Fields | None:
        value = self._values.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise errors.wrong_type(self.name(key), "an object", value)
        return Fields(value, self.name(key))

    def choice(self, key: str, choices: Sequence[str]) -> str | None:
        value = self.string(key)
        if value is not None and value not in choices:
            raise errors.not_a_choice(self.name(key), value, choices)
        return value

    def _check_range(self, key: str, kind: str, value: float, minimum: float, maximum: float | None) -> None:
        if value < minimum:
            raise errors.below_minimum(self.name(key), kind, minimum, value)
        if maximum is not None and value > maximum:
            raise errors.above_maximum(self.name(key), kind, maximum, value)
