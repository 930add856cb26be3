"""The tokenizer, and what depends on it: loaded while the server already listens."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from llmirage_server.api import generation
from llmirage_server.api.constraints import schema_problem
from llmirage_server.replies.reply import ANY_OBJECT, ReplyRequest, ReplySource
from llmirage_shared.prompt_encoder import PromptEncoder
from llmirage_shared.wire import schema

T = TypeVar("T")


@dataclass(slots=True, frozen=True)
class TextTools:
    """What reads prompts and what writes replies, with one tokenizer."""

    encoder: PromptEncoder
    replies: ReplySource

    def warm_up(self) -> None:
        """Do once what is slow only the first time, so that no request pays for it."""
        prompt_ids = self.encoder.encode_chat([{"role": "user", "content": "Hello"}])
        self.replies.reply(ReplyRequest(prompt_ids=prompt_ids, last_user_text="Hello", max_tokens=16, limit_tokens=16))


class TextLoader:
    """Loads the tools once: in `load`, or in a thread at the first `start` or `get`. tools: None before that."""

    def __init__(self, load: Callable[[], TextTools]) -> None:
        self._load_tools = load
        self.tools: TextTools | None = None
        self._threads = ThreadPoolExecutor(1, "llmirage-text")  # one thread: nothing is done twice at once

    def start(self) -> None:
        """Begin to load, without waiting for it."""
        self.in_thread(self.load)

    def in_thread(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Do something in the loader's thread, after what it was given before."""
        return asyncio.get_running_loop().run_in_executor(self._threads, work)

    async def get(self) -> TextTools:
        return await self.in_thread(self.load) if self.tools is None else self.tools

    def load(self) -> TextTools:
        """Load now, in this thread, unless it is done. Raises what the loading raises."""
        if self.tools is None:
            self.tools = self._load_tools()
        return self.tools


def warm_up(text: TextLoader) -> Awaitable[object]:
    """Begin to load everything, without waiting for it. Await the result before the loop closes."""
    text.in_thread(lambda: (schema.chat, schema.completions))  # pydantic, and the bodies that all other bodies are made of
    text.start()
    text.in_thread(lambda: schema_problem(ANY_OBJECT))  # the validator of JSON Schemas
    return asyncio.ensure_future(generation.warm_up())
