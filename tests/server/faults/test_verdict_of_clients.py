"""Clients under the same faults, in virtual time: a careless one breaks each rule of the verdict, the SDKs none."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest
from faulty import CHAT, MODEL, new_app
from sdks import anthropic, openai

from llmirage_client.simulator.memory import MemoryTransport

httpx2 = pytest.importorskip("httpx2")

FAULTS = {  # by the rule that they put to the test
    "retry_after": "status; status=429; retry_after_s=5; times=2",
    "no_retry": "status; status=404; times=2",
    "back_off": "status; status=503; times=2",
    "cut_stream": "cut; after_tokens=3",
    "cut_stream cleanly": "cut; after_tokens=3; clean=true",
    "cut_stream with an error": "error_event; after_tokens=3",
    "cut_stream by a crash": "crash; after_tokens=3",
}
Turn = Callable[[list[Any]], Awaitable[str | None]]
"""Asks for the reply to a conversation; None: there is none."""


class Session:
    """A server with one fault, a conversation of two turns with it, and the verdict."""

    def __init__(self, fault: str) -> None:
        self.app = new_app(on_crash="fail")
        self.fault = fault
        self.transport = MemoryTransport(self.app)

    async def judged(self, turn: Turn) -> dict[str, Any]:
        async with httpx.AsyncClient(transport=self.transport, base_url="http://test") as admin:
            (await admin.post("/llmirage/faults", json={"faults": [self.fault]})).raise_for_status()
            messages: list[Any] = [{"role": "user", "content": "Hi"}]
            if (said := await turn(messages)) is not None:
                await admin.delete("/llmirage/faults")
                await turn([*messages, {"role": "assistant", "content": said}, {"role": "user", "content": "And then?"}])
            answer = await admin.get("/llmirage/verdict")
        assert answer.status_code == 200, answer.text
        verdict: dict[str, Any] = answer.json()
        return verdict

    async def careless(self, messages: list[Any]) -> str | None:
        """Tries again at once whatever happened, and takes what came for the reply."""
        body = {"model": MODEL, "messages": messages, "max_tokens": 10, "stream": True}
        for _ in range(5):
            said = ""
            async with httpx.AsyncClient(transport=self.transport, base_url="http://test") as client:
                try:
                    async with client.stream("POST", CHAT, json=body) as response:
                        async for line in response.aiter_lines():
                            if response.status_code == 200 and '"content":"' in line:
                                said += line.partition('"content":"')[2].partition('"')[0]
                except httpx.HTTPError:
                    pass
            if said:
                return said
        return None

    async def with_openai(self, messages: list[Any]) -> str | None:
        http = httpx2.AsyncClient(transport=MemoryTransport(self.app))
        async with openai.AsyncOpenAI(base_url="http://test/v1", api_key="x", http_client=http) as sdk:
            said, reason = "", None
            try:
                chunks = await sdk.chat.completions.create(model=MODEL, messages=messages, max_tokens=10, stream=True)
                async for chunk in chunks:
                    said += chunk.choices[0].delta.content or ""
                    reason = chunk.choices[0].finish_reason
            except openai.APIError:
                return None
            return said if reason is not None else None

    async def with_anthropic(self, messages: list[Any]) -> str | None:
        http = httpx2.AsyncClient(transport=MemoryTransport(self.app))
        async with anthropic.AsyncAnthropic(base_url="http://test", api_key="x", http_client=http) as sdk:
            try:
                async with sdk.messages.stream(model=MODEL, messages=messages, max_tokens=10) as stream:
                    message = await stream.get_final_message()
            except (anthropic.APIError, httpx2.HTTPError):
                return None
            return message.content[0].text if message.stop_reason is not None else None  # type: ignore[union-attr]


def verdicts(told: dict[str, Any]) -> dict[str, str]:
    return {rule["rule"]: rule["verdict"] for rule in told["rules"]}


@pytest.mark.parametrize("case", FAULTS)
async def test_a_careless_client_is_flagged_by_the_rule(case: str) -> None:
    session = Session(FAULTS[case])
    told = await session.judged(session.careless)
    rule = case.split()[0]
    assert [name for name, verdict in verdicts(told).items() if verdict == "fail"] == [rule]
    assert not told["passed"]


@pytest.mark.parametrize("sdk", ["with_openai", "with_anthropic"])
@pytest.mark.parametrize("case", FAULTS)
async def test_the_official_sdks_pass_under_the_same_faults(case: str, sdk: str) -> None:
    session = Session(FAULTS[case])
    told = await session.judged(getattr(session, sdk))
    assert verdicts(told)[case.split()[0]] == "pass"
    assert told["passed"]


async def test_the_findings_name_the_requests() -> None:
    session = Session(FAULTS["retry_after"])
    rule = (await session.judged(session.careless))["rules"][0]
    assert (rule["rule"], rule["seen"], rule["broken"]) == ("retry_after", 2, 2)
    assert [finding["requests"] for finding in rule["findings"]] == [[1, 2], [2, 3]]
    assert rule["findings"][0]["why"] == "429 with Retry-After 5 s, and the same request after 0.00 s"


@pytest.mark.parametrize("field", [5, "Hi", [7], [None, {"role": "assistant"}], {"role": "assistant"}])
async def test_a_conversation_of_another_form_is_refused_after_a_cut_as_before(field: Any) -> None:
    session = Session("cut; after_tokens=3; times=1")
    await session.judged(session.careless)
    async with httpx.AsyncClient(transport=session.transport, base_url="http://test") as client:
        assert [(await client.post(CHAT, json={"model": MODEL, "messages": field})).status_code] == [400]


async def test_a_text_to_be_continued_is_not_taken_as_whole() -> None:
    session = Session("cut; after_tokens=3; times=1")

    async def resume(messages: list[Any]) -> str | None:
        said = await session.careless(messages)
        await session.careless([*messages, {"role": "assistant", "content": said}])
        return None

    assert verdicts(await session.judged(resume))["cut_stream"] == "pass"


async def test_the_server_s_own_refusals_are_judged_too() -> None:
    session = Session("cut")
    session.app = new_app(api_key=("right",))
    async with httpx.AsyncClient(transport=MemoryTransport(session.app), base_url="http://test") as client:
        for path, body in ((CHAT, {"model": MODEL, "messages": []}), ("/v1/nowhere", {"a": 1})):
            for key in ("wrong", "wrong", "right", "right"):
                await client.post(path, json=body, headers={"authorization": f"Bearer {key}"})
                await asyncio.sleep(1)
        answer = await client.get("/llmirage/verdict", headers={"authorization": "Bearer right"})
    findings: list[dict[str, Any]] = answer.json()["rules"][1]["findings"]
    assert [(one["requests"], one["why"][:3]) for one in findings] == [
        ([1, 2], "401"), ([3, 4], "400"), ([5, 6], "401"), ([7, 8], "404"),
    ]  # fmt: skip


async def test_a_large_body_of_a_refused_request_is_not_read() -> None:
    app = new_app(api_key=("right",))
    async with httpx.AsyncClient(transport=MemoryTransport(app), base_url="http://test") as client:
        for _ in range(2):
            status = (await client.post(CHAT, json={"prompt": "x" * 2_000_000})).status_code
        verdict = await client.get("/llmirage/verdict", headers={"authorization": "Bearer right"})
    assert (status, verdict.json()["rules"][1]["verdict"]) == (401, "pass")


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ({"since": "-1"}, "expected a whole number"),
        ({"unused_s": "0"}, "expected seconds above 0"),
        ({"unused_s": "nan"}, "expected seconds above 0"),
        ({"unused_s": "soon"}, "expected seconds above 0"),
        ({"unsued_s": "1"}, "did you mean 'unused_s'?"),
    ],
)
async def test_a_wrong_parameter_is_refused(query: dict[str, str], said: str) -> None:
    async with httpx.AsyncClient(transport=MemoryTransport(new_app()), base_url="http://test") as client:
        answer = await client.get("/llmirage/verdict", params=query)
    assert answer.status_code == 400
    assert said in answer.json()["error"]["message"]


async def test_since_and_what_was_forgotten() -> None:
    app, told = new_app(), []
    async with httpx.AsyncClient(transport=MemoryTransport(app), base_url="http://test") as client:
        for _ in range(1005):
            await client.post(CHAT, json={"model": 1})
        for since in ("0", "3", "1004", "2000"):
            answer = await client.get("/llmirage/verdict", params={"since": since})
            told.append(answer.json())
        await client.delete("/llmirage/journal")
        told.append((await client.get("/llmirage/verdict")).json())
    assert [(one["requests"], one["forgotten"]) for one in told] == [(1000, 5), (1000, 2), (1, 0), (0, 0), (0, 0)]
    assert [one["passed"] for one in told] == [False, False, True, True, True]
