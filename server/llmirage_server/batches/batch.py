"""One batch: what the API shows of it, its input and output files, and what it has come to.

A batch of messages (Anthropic's) is one whose endpoint is `MESSAGES`: its files are never shown, and its lines may name any
models.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any, Literal

from llmirage_server.batches.lines import Problem
from llmirage_server.state.files import FileStore
from llmirage_server.state.state import Breaks, State
from llmirage_shared.wire import schema
from llmirage_shared.wire.output import new_id

WINDOW_S = 86_400
ENDED = ("failed", "completed", "expired", "cancelled")
Kind = Literal["output", "error"]
MESSAGES = "/v1/messages"
_MOMENTS = ("in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled")
UNSENT_CODES = ("batch_cancelled", "batch_expired")
_USAGE_NAMES = (("input", "prompt", "cached"), ("output", "completion", "reasoning"))

Shown = dict[str, Any]


class Batch:
    """object: what the API shows. files: the hidden files that are being written, by kind. why: it is to stop.

    unsent: how many lines were never run.
    """

    def __init__(self, kept: dict[str, Any], state: State, files: FileStore) -> None:
        """kept: as in the state."""
        self.object: Shown = kept["object"]
        self.files: dict[Kind, str] = kept["files"]
        self.unsent: int = kept.get("unsent", 0)
        self.lifetime_s: int | None = kept["lifetime_s"]
        self.why: Literal["cancelled", "expired", "failed"] | None = None
        self.task: asyncio.Task[None] | None = None
        self._state = state
        self._store = files

    @classmethod
    def created(cls, request: schema.batches.BatchRequest, state: State, files: FileStore) -> Batch:
        """Create a batch. Raises ApiError if it cannot be stored."""
        now = int(files.now_s())
        expires = request.output_expires_after
        shown: Shown = {
            "id": new_id("batch_"),
            "object": "batch",
            "endpoint": request.endpoint,
            "model": None,
            "errors": None,
            "input_file_id": request.input_file_id,
            "completion_window": request.completion_window,
            "status": "validating",
            "output_file_id": None,
            "error_file_id": None,
            "created_at": now,
            "expires_at": now + WINDOW_S,
            **{f"{moment}_at": None for moment in _MOMENTS},
            "request_counts": {"total": 0, "completed": 0, "failed": 0},
            "usage": None,
            "metadata": request.metadata,
        }
        batch = cls({"object": shown, "files": {}, "lifetime_s": expires and expires.seconds}, state, files)
        batch.keep()
        return batch

    @classmethod
    def of_messages(cls, input_file_id: str, total: int, state: State, files: FileStore) -> Batch:
        """Create a batch of messages, whose lines were checked. Raises ApiError if it cannot be stored."""
        now = int(files.now_s())
        shown: Shown = {
            "id": new_id("msgbatch_"),
            "endpoint": MESSAGES,
            "model": None,
            "errors": None,
            "input_file_id": input_file_id,
            "status": "in_progress",
            "created_at": now,
            "expires_at": now + WINDOW_S,
            **{f"{moment}_at": None for moment in _MOMENTS},
            "in_progress_at": now,
            "request_counts": {"total": total, "completed": 0, "failed": 0},
            "usage": None,
        }
        batch = cls({"object": shown, "files": {}, "lifetime_s": None}, state, files)
        batch.keep()
        return batch

    @property
    def has_messages(self) -> bool:
        return bool(self.object["endpoint"] == MESSAGES)

    @property
    def hidden_files(self) -> list[str]:
        """Files that nobody sees and that must stay."""
        needed = [] if self.has_ended else [self.object["input_file_id"]]
        return [*needed, *self.files.values()]

    @property
    def id(self) -> str:
        return str(self.object["id"])

    @property
    def status(self) -> str:
        return str(self.object["status"])

    @property
    def has_ended(self) -> bool:
        return self.status in ENDED

    def keep(self) -> None:
        """Store it as it is now. Raises ApiError."""
        kept = {"object": self.object, "files": self.files, "lifetime_s": self.lifetime_s, "unsent": self.unsent}
        self._state.put("batch", self.id, kept)

    def becomes(self, status: str) -> None:
        """Change the status, and store the batch. Raises ApiError; the status has changed then, too."""
        self.object |= {"status": status, f"{status}_at": int(self._store.now_s())}
        self.keep()

    def fails(self, problems: list[Problem]) -> None:
        self.object["errors"] = {"object": "list", "data": problems}
        self.becomes("failed")

    def write(self, kind: Kind, line: bytes, usage: Any) -> None:
        """Add the result of one line. usage: what its response counts. Raises ApiError."""
        if kind not in self.files:
            self.files[kind] = self._store.create(f"{self.id}_{kind}.jsonl", "batch_output")
            self.keep()
        self._store.append(self.files[kind], line)
        self._count(kind, usage)

    def publish(self) -> None:
        """Let the API show the files. Raises ApiError."""
        if self.has_messages:
            return
        for kind, file_id in self.files.items():
            self._store.publish(file_id, self.lifetime_s)
            self.object[f"{kind}_file_id"] = file_id
        self.files = {}

    async def drop_files(self) -> None:
        """Delete what was written."""
        while self.files:
            await self._store.drop(self.files.popitem()[1])

    async def already_written(self) -> set[str]:
        """Return the custom_ids of lines whose results were written by a server before this one; they are counted now."""
        breaks, done = Breaks(), set()
        counts = self.object["request_counts"]
        counts["completed"], counts["failed"], self.object["usage"], self.unsent = 0, 0, None, 0
        for kind, file_id in self.files.items():
            size = 0
            for part in self._store.parts(file_id):
                size += len(part)
                result = json.loads(part)
                self._count(kind, usage_in((result["response"] or {}).get("body")))
                self.unsent += (result["error"] or {}).get("code") in UNSENT_CODES
                done.add(result["custom_id"])
                await breaks.maybe()
            self._store.found_size(file_id, size)
        return done

    def _count(self, kind: Kind, usage: Any) -> None:
        self.object["request_counts"]["completed" if kind == "output" else "failed"] += 1
        if not isinstance(usage, dict):
            return
        total = self.object["usage"] = self.object["usage"] or {
            "input_tokens": 0, "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": 0, "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 0,
        }  # fmt: skip
        for name, chat_name, detail in _USAGE_NAMES:
            tokens = usage.get(f"{name}_tokens", usage.get(f"{chat_name}_tokens", 0))
            details = usage.get(f"{name}_tokens_details", usage.get(f"{chat_name}_tokens_details")) or {}
            total[f"{name}_tokens"] += tokens
            total["total_tokens"] += tokens
            total[f"{name}_tokens_details"][f"{detail}_tokens"] += details.get(f"{detail}_tokens", 0)


def usage_in(body: Any) -> Any:
    """Return the usage of a response, None for one without."""
    return body.get("usage") if isinstance(body, dict) else None
