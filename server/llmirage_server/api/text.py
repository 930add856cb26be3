"""Prompts to tokens: everything that needs the tokenizer, which is loaded while the server already listens."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from llmirage_server.replies.reply import ReplyRequest, ReplySource
from llmirage_shared.chat_template import Ending
from llmirage_shared.prompt_encoder import PromptEncoder
from llmirage_shared.prompt_form import shown_tools, with_schema
from llmirage_shared.wire import errors

# Text that costs more than some milliseconds to tokenize must not hold up the streams of others.
LONG_CHARACTERS = 8_000


@dataclass(slots=True, frozen=True)
class TextTools:
    """What reads prompts and what writes replies, sharing one tokenizer."""

    encoder: PromptEncoder
    replies: ReplySource

    def warm_up(self) -> None:
        """Do once what is slow only the first time, so that no request pays for it."""
        prompt_ids = self.encoder.encode_chat([{"role": "user", "content": "Hello"}])
        self.replies.reply(ReplyRequest(prompt_ids=prompt_ids, last_user_text="Hello", max_tokens=16, limit_tokens=16))


class TextLoader:
    """Loads the tools once: at `load`, or in a thread at the first call of `start` or `get`."""

    def __init__(self, load: Callable[[], TextTools]) -> None:
        self._load_tools = load
        self._tools: TextTools | None = None
        self._threads = ThreadPoolExecutor(1, "llmirage-text")  # one thread: what it does is never done twice at once

    def start(self) -> None:
        """Begin to load, without waiting for it."""
        asyncio.get_running_loop().run_in_executor(self._threads, self.load)

    def later(self, work: Callable[[], object]) -> None:
        """Do something in the same thread, after what it has been given before."""
        asyncio.get_running_loop().run_in_executor(self._threads, work)

    async def get(self) -> TextTools:
        if self._tools is None:
            return await asyncio.get_running_loop().run_in_executor(self._threads, self.load)
        return self._tools

    def load(self) -> TextTools:
        """Load now, in this thread, unless it is done. Raises what the loading raises."""
        if self._tools is None:
            self._tools = self._load_tools()
        return self._tools

    async def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        ending: Ending = "reply",
        *,
        schema: Any = None,
    ) -> npt.NDArray[np.int32]:
        """The prompt's token ids, int32, shape (prompt_tokens,), ending as `ending` says. Raises ApiError.

        schema: the JSON Schema of the answer, where the request gives one.
        """
        encoder = (await self.get()).encoder
        if schema is not None:
            messages = with_schema(messages, schema)
        try:
            text = encoder.render(messages, shown_tools(tools) if tools else None, ending)
        except ValueError as error:  # a model's own template refuses, for instance, roles that do not alternate
            raise errors.invalid_value("messages", str(error)) from None
        return await self._encode(encoder, text)

    async def encode_text(self, text: str) -> npt.NDArray[np.int32]:
        """Token ids of a text without any template."""
        return await self._encode((await self.get()).encoder, text)

    async def _encode(self, encoder: PromptEncoder, text: str) -> npt.NDArray[np.int32]:
        if len(text) > LONG_CHARACTERS and encoder.uncached_characters(text) > LONG_CHARACTERS:
            return await asyncio.get_running_loop().run_in_executor(self._threads, encoder.encode, text)
        return encoder.encode(text)
