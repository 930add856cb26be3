"""The interface of a store of objects."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any, Literal, Protocol

from llmirage_server.state.contents import Contents
from llmirage_shared.settings import at_call
from llmirage_shared.wire.errors import ApiError

# running: a background response in progress; events: what was sent of one that has ended.
Kind = Literal["response", "conversation", "completion", "thread", "item", "running", "events", "batch", "container"]

_to_json = at_call("pydantic_core:to_json")  # takes 25 ms to import


class State(Protocol):
    """JSON objects by kind and id, bounded in bytes and in age. Each method may raise ApiError (503)."""

    @property
    def contents(self) -> Contents:
        """Files, which are not among the objects and have a room of their own."""
        ...

    def get(self, kind: Kind, key: str) -> dict[str, Any] | None:
        """Return a copy of an object, None if there is none."""
        ...

    def put(self, kind: Kind, key: str, value: dict[str, Any]) -> None:
        """Keep an object, in place of the one with this id. The oldest go where there is no more room."""
        ...

    def delete(self, kind: Kind, key: str) -> bool:
        """Return whether there was an object."""
        ...

    def each(self, kind: Kind) -> Iterator[dict[str, Any]]:
        """All objects of a kind, in the order in which they were first put; each is read when it is asked for."""
        ...

    def keys(self, kind: Kind) -> list[str]:
        """Return the ids of all objects of a kind."""
        ...

    def together(self) -> AbstractContextManager[None]:
        """Keep all that is put and deleted in this context, or nothing of it if an exception ends it."""
        ...

    def bytes_kept(self) -> int:
        """Return the bytes of the objects and of their index."""
        ...

    def close(self) -> None: ...


def written(value: dict[str, Any]) -> bytes:
    """Write an object as JSON: one with much text in a third of the time that Python's encoder takes."""
    try:
        data: bytes = _to_json(value, fallback=list)
    except ValueError:  # half a pair of surrogates
        data = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=list).encode("utf-8", "surrogatepass")
    return data


def stored(state: State, kind: Kind, key: str) -> dict[str, Any]:
    """Return an object. Raises ApiError (404) if there is none."""
    value = state.get(kind, key)
    if value is None:
        raise ApiError(f"{kind.capitalize()} with id '{key}' not found.", status=404, param=f"{kind}_id")
    return value
