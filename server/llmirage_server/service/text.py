"""The tokenizer, and what depends on it: loaded while the server already listens."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import anyio

from llmirage_server.replies.reply import ANY_OBJECT, ReplyRequest, ReplySource
from llmirage_server.replies.structured.regex_syntax import load_regex
from llmirage_server.service.constraints import schema_problem
from llmirage_shared.prompt_encoder import PromptEncoder
from llmirage_shared.wire import errors, schema

T = TypeVar("T")


@dataclass(slots=True, frozen=True)
class TextTools:
    """The encoder of prompts and the source of replies, with one tokenizer."""

    encoder: PromptEncoder
    replies: ReplySource

    def warm_up(self) -> None:
        """Do once what is slow only the first time, so that no request pays for it."""
        prompt_ids = self.encoder.encode_chat([{"role": "user", "content": "Hello"}])
        self.replies.reply(ReplyRequest(prompt_ids=prompt_ids, last_user_text="Hello", max_tokens=16, limit_tokens=16))


class TextLoader:
    """Loads the tools once: in `load`, or in a thread at the first `get`. tools: None before that."""

    def __init__(self, load: Callable[[], TextTools]) -> None:
        self._load_tools = load
        self.tools: TextTools | None = None
        self._threads = ThreadPoolExecutor(1, "llmirage-text")  # one thread: nothing is done twice at once
        # One thread more: who waits for the text of others shall not wait for schemas, and each thread that computes delays
        # the event loop by five milliseconds when both want the interpreter.
        self._planning = ThreadPoolExecutor(1, "llmirage-plan")
        self._vectors = ThreadPoolExecutor(1, "llmirage-vectors")  # a request may want thousands: for seconds
        self.many_vectors = asyncio.Lock()  # of the request that has them made

    def in_thread(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Do something in the loader's thread, after what it was given before."""
        return _run_in(self._threads, work)

    def plan_in_thread(self, work: Callable[[], T], /) -> asyncio.Future[T]:
        """Do the long part of a reply's planning in a thread of its own, after what was given before."""
        return _run_in(self._planning, work)

    def vectors_in_thread(self, work: Callable[[], T], /) -> asyncio.Future[T]:
        """Compute vectors, scores or judgements in a thread of their own, after what was given before."""
        return _run_in(self._vectors, work)

    def close(self) -> None:
        """Forget what waits for a thread: its requests are cancelled. The threads end when they have done what they do."""
        for threads in (self._threads, self._planning, self._vectors):
            threads.shutdown(wait=False, cancel_futures=True)

    async def get(self) -> TextTools:
        return await self.in_thread(self.load) if self.tools is None else self.tools

    def load(self) -> TextTools:
        """Load now, in this thread, unless it is done. Raises what the loading raises."""
        if self.tools is None:
            self.tools = self._load_tools()
        return self.tools


def _run_in(threads: ThreadPoolExecutor, work: Callable[[], T]) -> asyncio.Future[T]:
    try:
        return asyncio.get_running_loop().run_in_executor(threads, work)
    except RuntimeError:  # closed
        raise errors.shutting_down() from None


def needed_first(text: TextLoader) -> Sequence[Callable[[], object]]:
    """Return what loads all that requests need, in the order of need."""
    return (
        lambda: schema.chat,  # pydantic, and the bodies that all other bodies are made of
        text.load,
        lambda: schema_problem(ANY_OBJECT, ""),  # the validator of JSON Schemas
        # Up to 0.1 s each in the event loop: bodies, and the side of anyio for asyncio, which event streams need.
        lambda: (schema.responses, schema.messages, schema.embeddings, schema.batches, schema.engines),
        partial(anyio.run, anyio.sleep, 0),
        load_regex,  # of classes of characters: 0.1 s where its compiled files are not kept
    )


def warm_up(text: TextLoader) -> None:
    """Begin to load everything, without waiting for it."""
    for load in needed_first(text):
        text.in_thread(load)
