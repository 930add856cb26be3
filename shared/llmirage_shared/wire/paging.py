"""Lists with cursors, in the pages of the OpenAI API."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from llmirage_shared.wire import errors

MOST = 100


def page(
    items: Sequence[dict[str, Any]],
    query: Callable[[str], str | None],
    order: str = "desc",
    usual: int = 20,
    most: int = MOST,
) -> dict[str, Any]:
    """A list object of items that are given oldest first. The query has `limit`, `order`, `after` and `before`.

    usual, most: limits. Raises ApiError for invalid values.
    """
    limit, given = query("limit"), query("order")
    wanted = order if given is None else given
    if wanted not in ("asc", "desc"):
        raise errors.not_a_choice("order", wanted, ("asc", "desc"))
    count = usual if limit is None else integer("limit", limit)
    if count < 1:
        raise errors.below_minimum("limit", "integer", 1, count)
    if count > most:
        raise errors.above_maximum("limit", "integer", most, count)
    listed = list(items) if wanted == "asc" else list(reversed(items))
    ids = [item["id"] for item in listed]
    if after := query("after"):
        listed = listed[ids.index(after) + 1 :] if after in ids else []
    if (before := query("before")) and before in (ids := [item["id"] for item in listed]):
        listed = listed[: ids.index(before)]
    data = listed[:count]
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": len(listed) > count,
    }


def integer(name: str, text: str) -> int:
    """An integer in a query. Raises ApiError for another text, and for more than 18 digits."""
    if not re.fullmatch(r"-?[0-9]{1,18}", text):
        raise errors.wrong_type(name, "an integer", text)
    return int(text)
