"""Batches, with the official SDK."""

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from batch_lines import CHAT, MODEL, line
from sdks import openai


def jsonl(*lines: Any) -> bytes:
    return "\n".join(map(json.dumps, lines)).encode()


def test_a_batch(sdk: Any) -> None:
    made = sdk.files.create(file=("in.jsonl", jsonl(line("a"), line("b", temperature=9))), purpose="batch")
    batch = sdk.batches.create(
        input_file_id=made.id, endpoint=CHAT, completion_window="24h", metadata={"by": "test"},
        output_expires_after={"anchor": "created_at", "seconds": 3600},
    )  # fmt: skip
    assert batch.status == "validating"
    while (batch := sdk.batches.retrieve(batch.id)).status in ("validating", "in_progress", "finalizing"):
        time.sleep(0.05)
    assert (batch.status, batch.model, batch.metadata) == ("completed", MODEL, {"by": "test"})
    assert (batch.request_counts.completed, batch.request_counts.failed, batch.usage.output_tokens) == (1, 1, 3)
    good = json.loads(sdk.files.content(batch.output_file_id).text)
    assert openai.types.chat.ChatCompletion.model_validate(good["response"]["body"]).usage.completion_tokens == 3
    bad = json.loads(sdk.files.content(batch.error_file_id).text)
    assert bad["response"]["body"]["error"]["param"] == "temperature"
    assert batch.id in [each.id for each in sdk.batches.list(limit=1)]
    with pytest.raises(openai.ConflictError, match="Cannot cancel a batch with status 'completed'"):
        sdk.batches.cancel(batch.id)


def test_a_batch_that_fails(sdk: Any) -> None:
    made = sdk.files.create(file=("in.jsonl", jsonl(line("a"), line("a"))), purpose="batch")
    batch = sdk.batches.create(input_file_id=made.id, endpoint=CHAT, completion_window="24h")
    while (batch := sdk.batches.retrieve(batch.id)).status == "validating":
        time.sleep(0.05)
    assert (batch.status, batch.errors.data[0].code, batch.errors.data[0].line) == ("failed", "duplicate_custom_id", 2)


def test_the_async_client(base_url: str, wait: Callable[..., Any]) -> None:
    async def use() -> None:
        async with openai.AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0) as client:
            lines = [line(str(number), max_tokens=400) for number in range(500)]
            made = await client.files.create(file=("in.jsonl", jsonl(*lines)), purpose="batch")
            batch = await client.batches.create(input_file_id=made.id, endpoint=CHAT, completion_window="24h")
            batch = await client.batches.cancel(batch.id)
            while (batch := await client.batches.retrieve(batch.id)).status == "cancelling":
                await asyncio.sleep(0.05)
            assert (batch.status, batch.cancelled_at is None) == ("cancelled", False)
            assert (await client.batches.cancel(batch.id)).status == "cancelled"
            assert batch.id in [each.id async for each in client.batches.list()]

    wait(use())
