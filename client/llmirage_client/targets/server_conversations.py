"""Conversations that a server keeps (POST /conversations): each is made before the first request that belongs to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmirage_client.measure.record import Exchange
from llmirage_client.targets.reply import ReplyReader
from llmirage_client.targets.target import Askable, Call

KEY = "conversation"  # of a body: our name for the conversation until it has the server's


class ServerConversations:
    """Puts the server's id in the place of ours. Making a conversation is no part of the request that is measured; where it
    fails, its failure is the request's.
    """

    def __init__(self, target: Askable) -> None:
        self._target = target
        self._ids: dict[str, str] = {}

    def now(self) -> float:
        return self._target.now()

    async def send(self, call: Call) -> Exchange:
        own_id = call.body.get(KEY)
        if isinstance(own_id, str) and isinstance(call.body, dict):
            if own_id not in self._ids:
                made = await self._target.send(_creation(call))
                if made.error is not None or made.response_id is None:
                    return made
                self._ids[own_id] = made.response_id
            call.body[KEY] = self._ids[own_id]
        return await self._target.send(call)

    async def get(self, path: str) -> tuple[int, bytes]:
        return await self._target.get(path)

    async def close(self) -> None:
        await self._target.close()


class _Created(ReplyReader):
    may_be_empty = True

    def _read_whole(self, stamp_s: float, value: Mapping[str, Any]) -> None:
        self.response_id = value.get("id")
        self._note_arrival(stamp_s, True)


def _creation(call: Call) -> Call:
    headers = {**call.headers, "Accept": "application/json"}
    return Call("/conversations", {}, headers, stream=False, new_reply=_Created, api=call.api, affinity_id=call.affinity_id)
