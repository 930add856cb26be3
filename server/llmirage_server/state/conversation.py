"""Conversations as they are stored: the newest items beside the conversation, the older ones in objects of their own.

So a turn, or a page of a long conversation, costs what it adds or shows, not what there was before.
"""

from __future__ import annotations

import json
import os
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from llmirage_server.state.state import Breaks, ReadKept, State, written
from llmirage_shared.wire.errors import ApiError

Item = dict[str, Any]

_ID_PREFIX = {
    "message": "msg_", "reasoning": "rs_", "compaction": "cmp_",
    "function_call": "fc_", "function_call_output": "fco_", "custom_tool_call": "ctc_", "custom_tool_call_output": "ctco_",
    "web_search_call": "ws_", "file_search_call": "fs_", "code_interpreter_call": "ci_", "image_generation_call": "ig_",
    "mcp_list_tools": "mcpl_", "mcp_call": "mcp_", "mcp_approval_request": "mcpr_", "mcp_approval_response": "mcpa_",
    "computer_call": "cu_", "computer_call_output": "cuo_", "shell_call": "sh_", "shell_call_output": "sho_",
    "local_shell_call": "lsh_", "local_shell_call_output": "lsho_",
    "apply_patch_call": "ap_", "apply_patch_call_output": "apo_",
}  # fmt: skip
MOST_PARTS = 40_000  # of items, that one prompt is made of


def new_item_id(kind: str) -> str:
    """Return a new id of an item of this type."""
    return _ID_PREFIX.get(kind, "item_") + os.urandom(24).hex()


def listed_items(items: Sequence[Mapping[str, Any]]) -> list[Item]:
    """Input items as they are listed: with type, id and status, content as parts."""
    return [_listed(item) for item in items]


def _listed(item: Mapping[str, Any]) -> Item:
    kind = item.get("type") or "message"
    kept: Item = {"id": item.get("id") or new_item_id(kind), "type": kind, **{k: v for k, v in item.items() if k != "id"}}
    if kind == "message":
        kept["type"] = "message"
        kept.setdefault("status", "completed")
        if isinstance(kept["content"], str):
            part: Item = {"type": "input_text", "text": kept["content"]}
            if kept["role"] == "assistant":
                part = {"type": "output_text", "text": kept["content"], "annotations": [], "logprobs": []}
            kept["content"] = [part]
    elif kind in ("function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output"):
        kept.setdefault("status", "completed")
    elif kind == "reasoning":
        kept["summary"] = kept.get("summary") or []
    return kept


def size_of(items: Sequence[Mapping[str, Any]]) -> int:
    """Return the number of items and of the parts of their contents."""
    return sum([1 + len(content) if isinstance(content := item.get("content"), list) else 1 for item in items])


def check_size(size: int, param: str, most: int) -> None:
    """Raise ApiError (400) for more items and parts of them than that. param: what adds to them."""
    if size > most:
        raise ApiError(f"The conversation has too many items: {size} with their parts, of {most}.", param=param)


MOST_SIZE = 400_000  # of a conversation, see size_of
_PART_ITEMS = 200  # read or written in a millisecond
_PART_BYTES = 1 << 20  # of the newest items, after which all become parts
_KNOWN_ENDS = 1000


class PageEnds:
    """The parts of conversations in which the last items of pages are: the next pages begin there."""

    def __init__(self) -> None:
        self._parts: OrderedDict[tuple[str, str], int] = OrderedDict()  # the last noted last

    def note(self, conversation: str, item: str, part: int) -> None:
        self._parts[conversation, item] = part
        if len(self._parts) > _KNOWN_ENDS:
            self._parts.popitem(last=False)

    def get(self, conversation: str, item: str) -> int:
        """Return the part in which the item was; -1: unknown."""
        return self._parts.get((conversation, item), -1)


async def _plain(data: bytes | None) -> dict[str, Any] | None:
    return None if data is None else json.loads(data)


class StoredConversation:
    """One conversation as it was when it was read. shown: its object in the API."""

    def __init__(self, state: State, record: dict[str, Any], kept: ReadKept = _plain) -> None:
        """kept: decodes the parts."""
        self._state = state
        self._record = record
        self._kept = kept
        self._last_read: tuple[bytes | None, list[Item]] = None, []  # a part, as JSON and decoded

    @classmethod
    def begun(cls, state: State, shown: Item) -> StoredConversation:
        """Return a new conversation, which `put` and `append` store."""
        return cls(state, {"object": shown, "items": [], "parts": 0, "size": 0})

    @classmethod
    def find(cls, state: State, key: str, kept: ReadKept = _plain) -> StoredConversation | None:
        record = state.get("conversation", key)
        return None if record is None else cls(state, {"parts": 0, "size": 0} | record, kept)

    @property
    def shown(self) -> Item:
        found: Item = self._record["object"]
        return found

    @property
    def size(self) -> int:
        return int(self._record["size"]) + size_of(self._record["items"])

    def put(self) -> None:
        self._state.put("conversation", self.shown["id"], self._record)

    def append(self, items: Sequence[Item]) -> None:
        """Add items, and store it."""
        record = self._record
        record["items"] += items
        record["bytes"] = record.get("bytes", 0) + len(written({"items": items}))
        most = 2 * _PART_ITEMS if record["bytes"] <= _PART_BYTES else 1
        with self._state.together():
            while len(record["items"]) >= most:
                older, record["items"] = record["items"][:_PART_ITEMS], record["items"][_PART_ITEMS:]
                self._put_part(record["parts"], older)
                record["parts"] += 1
                record["size"] += size_of(older)
                record["bytes"] = 0 if most == 1 else len(written({"items": record["items"]}))
            self.put()

    def delete(self) -> None:
        key = self.shown["id"]
        with self._state.together():
            for part in range(self._record["parts"]):
                self._state.delete("part", f"{key}/{part}")
            self._state.delete("conversation", key)

    async def newest(self, most_size: int) -> list[Item]:
        """Return the newest items, in order, of at most that size."""
        parts: list[list[Item]] = []
        left = most_size
        async for _, items in self._parts(range(self._record["parts"], -1, -1)):
            left -= size_of(items)
            parts.append(items)
            if left <= 0:
                break
        found = [item for items in reversed(parts) for item in items]
        while left < 0:
            left += size_of(found[:1])
            del found[0]
        return found

    async def window(self, after: str | None, count: int, newest_first: bool, ends: PageEnds) -> list[Item]:
        """Return a run of items, in order, that has that one and as many after it among them; [] if there is no such item.

        after: None: from the beginning. newest_first: the end is the beginning, and after is before.
        """
        last = self._record["parts"]
        first = last if newest_first else 0
        if after is not None:
            if (part := await self._part_of(after, ends)) is None:
                return []
            first = part
        seen: list[tuple[Item, int]] = []
        start = 0
        async for part, items in self._parts(range(first, -1, -1) if newest_first else range(first, last + 1)):
            seen += [(item, part) for item in (reversed(items) if newest_first else items)]
            if part == first and after is not None:
                start = next((place for place, (item, _) in enumerate(seen) if item["id"] == after), -1) + 1
            if len(seen) > start + count:
                end, of_end = seen[start + count - 1]
                ends.note(self.shown["id"], end["id"], of_end)  # after which the next page comes
                break
        found = [item for item, _ in seen]
        return found[::-1] if newest_first else found

    async def item(self, key: str, ends: PageEnds) -> Item | None:
        part = await self._part_of(key, ends)
        return None if part is None else next((item for item in await self._items(part) if item["id"] == key), None)

    async def remove(self, key: str, ends: PageEnds) -> bool:
        """Remove an item, and store that; return False if there is none."""
        first = await self._part_of(key, ends)
        if first is None:
            return False
        now = self.find(self._state, self.shown["id"])  # others may have changed it meanwhile
        if now is None:
            return False
        record = self._record = now._record
        for part in range(first, record["parts"] + 1):  # items only move to later parts
            items = record["items"] if part == record["parts"] else self._items_now(part)
            kept = [item for item in items if item["id"] != key]
            if len(kept) < len(items):
                with self._state.together():
                    if part < record["parts"]:
                        self._put_part(part, kept)
                        record["size"] -= size_of(items) - size_of(kept)
                    else:
                        record["items"] = kept
                    self.put()
                return True
        return False

    async def _part_of(self, key: str, ends: PageEnds) -> int | None:
        """Return the part that has an item."""
        known: int = min(ends.get(self.shown["id"], key), self._record["parts"])
        if known >= 0 and any(item["id"] == key for item in await self._items(known)):
            return known
        async for part, items in self._parts(range(self._record["parts"], -1, -1)):
            if any(item["id"] == key for item in items):
                return part
        return None

    async def _parts(self, parts: range) -> AsyncIterator[tuple[int, list[Item]]]:
        """Yield the number and the items of each part; others have the event loop between two of them."""
        breaks = Breaks()
        for part in parts:
            yield part, await self._items(part)
            await breaks.maybe()

    async def _items(self, part: int) -> list[Item]:
        """Return the items of a part; the last one is in the record. Raises ApiError (404) if it is no longer stored."""
        found: list[Item] = self._record["items"]
        if part < self._record["parts"]:
            data = self._state.read("part", self._key(part))
            found = self._there(await self._kept(data))
            self._last_read = data, found
        return found

    def _items_now(self, part: int) -> list[Item]:
        """As `_items`, without others between: what was decoded is not decoded again."""
        data = self._state.read("part", self._key(part))
        known, found = self._last_read
        return found if data is not None and data == known else self._there(None if data is None else json.loads(data))

    def _key(self, part: int) -> str:
        return f"{self.shown['id']}/{part}"

    def _there(self, part: dict[str, Any] | None) -> list[Item]:
        if part is None:
            problem = "has lost items: the store had no room for all of them (--set state_mib=N)."
            raise ApiError(f"Conversation '{self.shown['id']}' {problem}", status=404, param="conversation_id")
        found: list[Item] = part["items"]
        return found

    def _put_part(self, part: int, items: Sequence[Item]) -> None:
        self._state.put("part", self._key(part), {"items": items})
