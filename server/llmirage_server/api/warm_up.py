"""What the first requests would wait for, loaded after the server listens."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from llmirage_server.api import generation
from llmirage_server.api.constraints import schema_problem
from llmirage_server.api.text import TextLoader
from llmirage_server.replies.reply import ANY_OBJECT
from llmirage_shared.wire import schema


def start(text: TextLoader) -> Awaitable[object]:
    """Begin to load everything, without waiting for it. Await the result before the loop closes."""
    text.in_thread(lambda: (schema.chat, schema.completions))  # pydantic, and the bodies that all other bodies are made of
    text.start()
    text.in_thread(lambda: schema_problem(ANY_OBJECT))  # the validator of JSON Schemas
    return asyncio.ensure_future(generation.warm_up())
