"""Each fault as openai-python meets it, in virtual time: what it raises, returns and waits for."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from faulty import ITL_S, MODEL, TTFT_S, new_app
from sdks import openai

from llmirage_client.simulator.memory import MemoryTransport
from llmirage_server.faults.rule import FAULTS
from llmirage_shared import virtual_time

httpx2 = pytest.importorskip("httpx2")

WORDS = ["To", " improve", " efficiency", ",", " start", " with"]
SAID = "".join(WORDS)
LAST_S = TTFT_S + 5 * ITL_S


@dataclass
class SdkReply:
    """words: the text of each chunk that has one. ends: finish reasons and usages, in order. error: what was raised."""

    words: list[str] = field(default_factory=list)
    ends: list[Any] = field(default_factory=list)
    error: Any = None
    took_s: float = 0.0
    requests: int = 0
    whole: Any = None


def with_sdk(
    use: Callable[[openai.AsyncOpenAI, SdkReply], Awaitable[None]], fault: str, retries: int = 0, **options: Any
) -> SdkReply:
    reply = SdkReply()

    async def main() -> None:
        app, loop = new_app(), asyncio.get_running_loop()
        http = httpx2.AsyncClient(transport=MemoryTransport(app))
        async with openai.AsyncOpenAI(
            base_url="http://test/v1", api_key="x", max_retries=retries, http_client=http, **options
        ) as sdk:
            await sdk.post("http://test/llmirage/faults", body={"faults": [fault]}, cast_to=object)
            sent_s = loop.time()
            try:
                await use(sdk, reply)
            except (openai.OpenAIError, ValueError, RuntimeError) as error:
                reply.error = error
            reply.took_s = loop.time() - sent_s
        reply.requests = app.journal.last

    virtual_time.run(main())
    return reply


def streamed(fault: str, **options: Any) -> SdkReply:
    async def use(sdk: openai.AsyncOpenAI, reply: SdkReply) -> None:
        stream = await sdk.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "Hi"}],
            max_tokens=6,
            stream=True,
            stream_options={"include_usage": True},
        )
        async for chunk in stream:
            if chunk.usage:
                reply.ends.append(chunk.usage.completion_tokens)
            for choice in chunk.choices:
                reply.words += [choice.delta.content] if choice.delta.content else []
                reply.ends += [choice.finish_reason] if choice.finish_reason else []

    return with_sdk(use, fault, **options)


def whole(fault: str, **options: Any) -> SdkReply:
    async def use(sdk: openai.AsyncOpenAI, reply: SdkReply) -> None:
        raw = await sdk.chat.completions.with_raw_response.create(
            model=MODEL, messages=[{"role": "user", "content": "Hi"}], max_tokens=6
        )
        reply.whole = raw
        completion = raw.parse()
        reply.words = [completion.choices[0].message.content or ""]
        reply.ends = [completion.choices[0].finish_reason, completion.usage and completion.usage.completion_tokens]

    return with_sdk(use, fault, **options)


def responded(fault: str) -> SdkReply:
    async def use(sdk: openai.AsyncOpenAI, reply: SdkReply) -> None:
        async with sdk.responses.stream(model=MODEL, input="Hi", max_output_tokens=16) as stream:
            async for event in stream:
                reply.ends.append(event)
            reply.whole = await stream.get_final_response()

    return with_sdk(use, fault)


def test_every_fault_has_a_test_here() -> None:
    tested = {name.removeprefix("test_fault_").partition("__")[0] for name in globals() if name.startswith("test_fault_")}
    assert tested == set(FAULTS)


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, "BadRequestError"),
        (401, "AuthenticationError"),
        (403, "PermissionDeniedError"),
        (404, "NotFoundError"),
        (409, "ConflictError"),
        (422, "UnprocessableEntityError"),
        (429, "RateLimitError"),
        (500, "InternalServerError"),
        (503, "InternalServerError"),
        (529, "InternalServerError"),
    ],
)
def test_fault_status(status: int, error: str) -> None:
    reply = streamed(f"status; status={status}; message=On order; code=ordered")
    assert type(reply.error).__name__ == error
    assert (reply.error.status_code, reply.error.body["message"], reply.error.code) == (status, "On order", "ordered")


def test_fault_status__the_first_two_times() -> None:
    reply = streamed("status; status=429; retry_after_s=7; times=2", retries=5)
    assert (reply.words, reply.requests) == (WORDS, 3)
    assert 14 <= reply.took_s < 16
    assert type(streamed("status; status=429; times=2", retries=1).error) is openai.RateLimitError


def test_fault_rate_limit() -> None:
    async def use(sdk: openai.AsyncOpenAI, reply: SdkReply) -> None:
        for _ in range(2):
            await sdk.embeddings.create(model=MODEL, input="Hi")
            reply.words.append("served")

    reply = with_sdk(use, "rate_limit; requests_per_min=1")
    assert reply.words == ["served"]
    assert type(reply.error) is openai.RateLimitError
    assert reply.error.response.headers["x-ratelimit-limit-requests"] == "1"


def test_fault_ttft() -> None:
    reply = streamed("ttft; added_s=5")
    assert (reply.words, reply.took_s) == (WORDS, pytest.approx(LAST_S + 5))


def test_fault_reset() -> None:
    reply = streamed("reset")
    assert (type(reply.error), type(reply.error.__cause__)) == (openai.APIConnectionError, httpx2.ReadError)
    middle = streamed("reset; after_tokens=2")
    assert (middle.words, type(middle.error)) == (WORDS[:2], openai.APIConnectionError)
    again = whole("reset; times=1", retries=2)
    assert (again.words, again.requests) == ([SAID], 2)


def test_fault_cut() -> None:
    reply = streamed("cut; after_tokens=4")
    assert (reply.words, reply.ends) == (WORDS[:4], [])
    assert (type(reply.error), type(reply.error.__cause__)) == (openai.APIConnectionError, httpx2.RemoteProtocolError)
    assert type(whole("cut").error) is openai.APIConnectionError


def test_fault_cut__clean() -> None:
    reply = streamed("cut; after_tokens=4; clean=true")
    assert (reply.words, reply.ends, reply.error) == (WORDS[:4], [], None)


def test_fault_stall() -> None:
    reply = streamed("stall; after_tokens=3; for_s=60")
    assert (reply.words, reply.took_s) == (WORDS, pytest.approx(TTFT_S + 3 * ITL_S + 60))
    impatient = streamed("stall; after_tokens=3; for_s=60", timeout=10)
    assert (impatient.words, type(impatient.error)) == (WORDS[:3], openai.APITimeoutError)


def test_fault_slow_body() -> None:
    reply = streamed("slow_body; piece_bytes=100; every_s=1")
    assert (reply.words, reply.error) == (WORDS, None)
    assert reply.took_s > 20


def test_fault_malformed() -> None:
    reply = streamed("malformed; after_tokens=3")
    assert (reply.words, type(reply.error)) == (WORDS[:3], json.JSONDecodeError)
    assert type(whole("malformed").error) is json.JSONDecodeError


def test_fault_torn_utf8() -> None:
    reply = streamed("torn_utf8; after_tokens=3")
    assert (reply.words, type(reply.error)) == (WORDS[:3], UnicodeDecodeError)
    assert type(whole("torn_utf8").error) is UnicodeDecodeError


def test_fault_oversized() -> None:
    reply = streamed("oversized; after_tokens=2; extra_bytes=2000000")
    assert [len(word) for word in reply.words] == [2, 8, 11 + 2_000_000, 1, 6, 5]
    assert whole("oversized; extra_bytes=10").words == [SAID + "x" * 10]


def test_fault_duplicate_chunk() -> None:
    assert streamed("duplicate_chunk; after_tokens=1").words == ["To", " improve", *WORDS[1:]]


def test_fault_error_event() -> None:
    reply = streamed("error_event; after_tokens=2; message=Broken")
    assert (reply.words, type(reply.error), reply.error.message) == (WORDS[:2], openai.APIError, "Broken")
    failed = responded("error_event; message=Broken").ends[-1]
    assert (failed.type, failed.response.status, failed.response.error.message) == ("response.failed", "failed", "Broken")
    error = responded("error_event; message=Broken; form=error").ends[-1]
    assert (error.type, error.message) == ("error", "Broken")


def test_fault_missing_done() -> None:
    reply = streamed("missing_done")
    assert (reply.words, reply.ends, reply.error) == (WORDS, ["length", 6], None)
    response = responded("missing_done")
    assert response.ends[-1].type == "response.output_item.done"
    assert "response.completed" in str(response.error)


def test_fault_missing_usage() -> None:
    assert streamed("missing_usage").ends == ["length"]
    assert whole("missing_usage").ends == ["length", None]


def test_fault_finish_reason() -> None:
    assert streamed("finish_reason; reason=tool_calls").ends == ["tool_calls", 6]
    assert whole("finish_reason").ends == ["content_filter", 6]
    assert responded("finish_reason").ends[-1].response.incomplete_details.reason == "content_filter"


def test_fault_empty_reply() -> None:
    reply = streamed("empty_reply")
    assert (reply.words, reply.ends, reply.error) == ([], ["stop", 6], None)
    assert whole("empty_reply").words == [""]
    assert responded("empty_reply").ends[-1].response.output == []


def test_fault_empty_body() -> None:
    reply = streamed("empty_body")
    assert (reply.words, reply.ends, reply.error) == ([], [], None)
    assert type(whole("empty_body").error) is json.JSONDecodeError


def test_fault_content_type() -> None:
    assert whole("content_type; value=text/plain").whole.headers["content-type"] == "text/plain"


def test_fault_crash() -> None:
    reply = streamed("crash; after_tokens=2")
    assert (reply.words, reply.error) == (WORDS, None)
    assert reply.took_s == pytest.approx(LAST_S + TTFT_S, abs=0.03)
