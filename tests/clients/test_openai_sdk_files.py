"""Files, with the official SDK."""

import io
from collections.abc import Callable
from typing import Any

import openai
import pytest


def test_a_file_from_upload_to_deletion(sdk: Any) -> None:
    data = b'{"custom_id": "a"}\n' * 50_000
    made = sdk.files.create(
        file=("in.jsonl", data), purpose="batch", expires_after={"anchor": "created_at", "seconds": 7200}
    )
    assert (made.bytes, made.filename, made.purpose, made.expires_at) == (
        len(data),
        "in.jsonl",
        "batch",
        made.created_at + 7200,
    )
    assert sdk.files.wait_for_processing(made.id, poll_interval=0.01) == made == sdk.files.retrieve(made.id)
    assert sdk.files.content(made.id).read() == data
    deleted = sdk.files.delete(made.id)
    assert (deleted.deleted, deleted.id, deleted.object) == (True, made.id, "file")
    with pytest.raises(openai.NotFoundError, match="No such File object"):
        sdk.files.content(made.id)


def test_the_list_pages_by_itself(sdk: Any) -> None:
    names = [f"{number}.txt" for number in range(5)]
    ids = [sdk.files.create(file=(name, io.BytesIO(b"x")), purpose="user_data").id for name in names]
    listed = [file for file in sdk.files.list(purpose="user_data", limit=2, order="asc") if file.id in ids]
    assert [file.filename for file in listed] == names
    assert sdk.files.list(limit=1).data[0].id == ids[-1]
    for file_id in ids:
        sdk.files.delete(file_id)


def test_refusals(sdk: Any) -> None:
    with pytest.raises(openai.BadRequestError, match="Supported values"):
        sdk.files.create(file=("a", b"x"), purpose="other")
    with pytest.raises(openai.BadRequestError, match="Invalid file format"):
        sdk.files.create(file=("a.jsonl", b"x"), purpose="batch")


def test_the_async_client(base_url: str, wait: Callable[..., Any]) -> None:
    async def use() -> None:
        async with openai.AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0) as client:
            made = await client.files.create(file=("a.txt", b"hello"), purpose="fine-tune")
            assert (await client.files.wait_for_processing(made.id)).status == "processed"
            assert (await client.files.content(made.id)).text == "hello"
            assert [file.id async for file in client.files.list(purpose="fine-tune")] == [made.id]
            assert (await client.files.delete(made.id)).deleted

    wait(use())
