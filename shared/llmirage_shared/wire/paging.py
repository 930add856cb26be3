"""Lists with cursors, in the pages of the OpenAI API and of Anthropic's."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from llmirage_shared.wire import errors
from llmirage_shared.wire.errors import ApiError

USUAL, MOST = 20, 100  # of a page


def page(
    items: Sequence[dict[str, Any]],
    query: Callable[[str], str | None],
    order: str = "desc",
    usual: int = USUAL,
    most: int = MOST,
) -> dict[str, Any]:
    """Return a list object of items that are given oldest first. The query has `limit`, `order`, `after` and `before`.

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


def anthropic_page(
    items: Sequence[dict[str, Any]], query: Callable[[str], str | None], usual: int = 20, most: int = 1000
) -> dict[str, Any]:
    """Return a list in Anthropic's form, of items given oldest first. The query has `limit`, `before_id`, `after_id`.

    Raises ApiError for invalid values.
    """
    given = query("limit")
    if given is not None and not re.fullmatch(r"-?[0-9]{1,18}", given):
        raise ApiError("limit: Input should be a valid integer, unable to parse string as an integer")
    limit = usual if given is None else int(given)
    if not 1 <= limit <= most:
        bound = "greater than or equal to 1" if limit < 1 else f"less than or equal to {most}"
        raise ApiError(f"limit: Input should be {bound}")
    before, after = query("before_id"), query("after_id")
    if before and after:
        raise ApiError("Only one of `before_id` and `after_id` can be specified.")
    listed = list(reversed(items))
    ids = [item["id"] for item in listed]
    if before:
        listed = listed[: ids.index(before)] if before in ids else []
        data = listed[-limit:]
    else:
        if after:
            listed = listed[ids.index(after) + 1 :] if after in ids else []
        data = listed[:limit]
    ends = {"first_id": data[0]["id"] if data else None, "last_id": data[-1]["id"] if data else None}
    return {"data": data, "has_more": len(listed) > len(data), **ends}


def integer(name: str, text: str) -> int:
    """Return an integer of a query. Raises ApiError for another text, and for more than 18 digits."""
    if not re.fullmatch(r"-?[0-9]{1,18}", text):
        raise errors.wrong_type(name, "an integer", text)
    return int(text)
