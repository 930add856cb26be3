"""The usage of conversations as agents hold them, recomputed by hand, with the vendors' rules of prompt caching.

A message of n tokens takes n + 2 in the prompt (its role and its end), and the role of the reply 1 more. Replies have 16
tokens here, which the cluster keeps after the prompt: of a prompt of 1505 tokens it then has 1521.
"""

from typing import Any

import numpy as np
import pytest
from event_streams import json_events

from llmirage_server.anthropic.caching import KeptPrefix, WrittenPrompts, fewest_tokens
from llmirage_shared.synthetic_text import SyntheticText
from llmirage_shared.tokenizer_loader import embedded

TEXT = SyntheticText(embedded(), 1)
CACHED = {"type": "ephemeral"}
REPLY = 16
ONE = {"instances": 1, "exact_length": True}
SONNET = "claude-sonnet-4-5-20250929"


def words(tokens: int) -> str:
    return TEXT.text(tokens, tokens)


def post(api: Any, path: str, **body: Any) -> Any:
    answer = api.post(path, body)
    assert answer.status_code == 200, answer.text
    return answer.json()


# --- Codex: Responses, the whole conversation each time -----------------------------------------------------------------


def codex(api: Any, instructions: int, turns: tuple[int, ...]) -> list[tuple[int, int, int, int]]:
    """Input, cached, output and total tokens of each turn."""
    items: list[dict[str, Any]] = []
    told = []
    for tokens in turns:
        items.append({"type": "message", "role": "user", "content": [{"type": "input_text", "text": words(tokens)}]})
        response = post(
            api, "/v1/responses", model="gpt-5", instructions=words(instructions), input=items, store=False,
            max_output_tokens=REPLY,
        )  # fmt: skip
        items += response["output"]
        usage = response["usage"]
        told.append((
            usage["input_tokens"], usage["input_tokens_details"]["cached_tokens"], usage["output_tokens"],
            usage["total_tokens"],
        ))  # fmt: skip
    return told


def test_codex(make_api: Any) -> None:
    told = codex(make_api(**ONE), 1200, (300, 200, 100))
    # 1202 + 302 + 1; then 18 of the reply and 202, then 18 and 102. Cached: 1521 and 1741, in steps of 128.
    assert told == [(1505, 0, 16, 1521), (1725, 1408, 16, 1741), (1845, 1664, 16, 1861)]
    # At 1.25, 0.125 and 10 dollars a million: 1505, 317 and 181 tokens in full, 3072 cached, 48 out.
    cost = sum((input - cached) * 1.25 + cached * 0.125 + output * 10 for input, cached, output, _ in told) / 1e6
    assert cost == pytest.approx((2003 * 1.25 + 3072 * 0.125 + 48 * 10) / 1e6)
    assert round(100 * told[-1][3] / 272_000, 2) == 0.68  # percent of the context, of the last total


def test_engines_report_what_their_cache_has(make_api: Any) -> None:
    assert codex(make_api(**ONE, dialect="vllm"), 1200, (300, 200, 100)) == [
        (1505, 0, 16, 1521), (1725, 1521, 16, 1741), (1845, 1741, 16, 1861),
    ]  # fmt: skip
    assert [cached for _, cached, _, _ in codex(make_api(**ONE, lenient=True), 100, (30, 20))] == [0, 151]


# --- opencode: chat completions, streamed -------------------------------------------------------------------------------


def test_opencode(make_api: Any) -> None:
    api = make_api(**ONE)
    messages: list[dict[str, Any]] = [{"role": "system", "content": words(900)}]
    told = []
    for tokens in (100, 50, 100, 10):
        messages.append({"role": "user", "content": words(tokens)})
        body = {"model": "gpt-5", "messages": messages, "stream": True, "stream_options": {"include_usage": True}}
        events = json_events(api.post("/v1/chat/completions", body | {"max_tokens": REPLY}).text)
        said = "".join(choice["delta"].get("content") or "" for event in events for choice in event["choices"])
        messages.append({"role": "assistant", "content": said})
        usage = events[-1]["usage"]
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        told.append((usage["prompt_tokens"], cached, usage["completion_tokens"], usage["total_tokens"]))
    # 902 + 102 + 1, then 18 + 52, 18 + 102, 18 + 12. In the cache: 1021, which is under 1024, then 1091 and 1211.
    assert told == [(1005, 0, 16, 1021), (1075, 0, 16, 1091), (1195, 1024, 16, 1211), (1225, 1152, 16, 1241)]
    # opencode takes the cached tokens off the input: 1005 + 1075 + 171 + 73 at full price, 2176 read.
    assert sum(prompt - cached for prompt, cached, _, _ in told) == 2324
    assert sum(cached for _, cached, _, _ in told) == 2176


def test_each_prompt_of_a_completion_counts_by_itself(make_api: Any) -> None:
    api = make_api(**ONE)
    prompts = [words(1300), words(900)]
    for cached in (0, 1280):  # 1299 and 899 are in the cache, or one more each
        usage = post(api, "/v1/completions", model="m", prompt=prompts, max_tokens=2, n=2)["usage"]
        assert (usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]) == (2200, cached)


# --- Claude Code: messages with cache_control on the system prompt and the last two turns of the user ----------------------


def claude(api: Any, model: str, system: int, turns: tuple[int, ...], ttl: str = "5m", **fields: Any) -> list[Any]:
    """Input, cache_creation (5 minutes, 1 hour), cache_read and output tokens of each turn."""
    messages: list[dict[str, Any]] = []
    told = []
    for tokens in turns:
        messages.append({"role": "user", "content": [{"type": "text", "text": words(tokens)}]})
        users = [message for message in messages if message["role"] == "user"]
        for message in users:
            message["content"][-1].pop("cache_control", None)
        for message in users[-2:]:
            message["content"][-1]["cache_control"] = CACHED
        prompt = [{"type": "text", "text": words(system), "cache_control": {**CACHED, "ttl": ttl}}]
        reply = post(api, "/v1/messages", model=model, system=prompt, messages=messages, max_tokens=REPLY, **fields)
        messages.append({"role": "assistant", "content": reply["content"]})
        usage = reply["usage"]
        written = usage["cache_creation"]
        assert usage["cache_creation_input_tokens"] == sum(written.values())
        five_minutes, hour = written["ephemeral_5m_input_tokens"], written["ephemeral_1h_input_tokens"]
        told.append((
            usage["input_tokens"], five_minutes, hour, usage["cache_read_input_tokens"], usage["output_tokens"],
        ))  # fmt: skip
    return told


def test_claude_code(make_api: Any) -> None:
    told = claude(make_api(**ONE), SONNET, 2000, (300, 200, 100))
    # 2002 + 302 + 1 are written; then 18 of the reply and 202 more, then 18 and 102, and what was written is read.
    assert told == [(0, 2305, 0, 0, 16), (0, 220, 0, 2305, 16), (0, 120, 0, 2525, 16)]
    # At 3, 3.75, 0.3 and 15 dollars a million.
    cost = sum(plain * 3 + minutes * 3.75 + read * 0.3 + out * 15 for plain, minutes, _, read, out in told) / 1e6
    assert cost == pytest.approx((2645 * 3.75 + 4830 * 0.3 + 48 * 15) / 1e6)
    assert sum(told[-1][:4]) == 2645  # what stands in the context


def test_an_hour_for_the_system_prompt_is_counted_apart(make_api: Any) -> None:
    told = claude(make_api(**ONE), SONNET, 2000, (300, 200), "1h")
    assert told == [(0, 303, 2002, 0, 16), (0, 220, 0, 2305, 16)]


def test_a_model_that_caches_from_4096_tokens_on_caches_nothing_below(make_api: Any) -> None:
    told = claude(make_api(**ONE), "claude-haiku-4-5", 2000, (300, 2000, 100))
    # 2305, 2305 + 18 + 2002 = 4325, 4325 + 18 + 102
    assert told == [(2305, 0, 0, 0, 16), (0, 4325, 0, 0, 16), (0, 120, 0, 4325, 16)]


def test_claude_code_with_an_engine(make_api: Any) -> None:
    told = claude(make_api(**ONE, dialect="vllm"), SONNET, 200, (30, 20))
    assert told == [(0, 235, 0, 0, 16), (0, 24, 0, 251, 16)]  # 202 + 32 + 1; then 18 + 22, of which 16 are in the cache


def test_without_cache_control_nothing_is_read_although_the_cluster_has_it(make_api: Any) -> None:
    api = make_api(**ONE)
    user = {"role": "user", "content": words(3000)}
    for _ in range(2):
        usage = post(api, "/v1/messages", model=SONNET, messages=[user], max_tokens=4)["usage"]
        assert (usage["input_tokens"], usage["cache_read_input_tokens"], usage["cache_creation_input_tokens"]) == (
            3003,
            0,
            0,
        )


def test_what_the_cluster_has_dropped_is_written_again(make_api: Any) -> None:
    api = make_api(**ONE)
    asked = {"model": SONNET, "messages": [{"role": "user", "content": words(3000)}], "cache_control": CACHED}
    read = []
    for drops in (False, False, True):
        if drops:
            assert api.request("POST", "/reset_prefix_cache").status_code == 200
        usage = post(api, "/v1/messages", **asked, max_tokens=4)["usage"]
        read.append((usage["cache_creation_input_tokens"], usage["cache_read_input_tokens"]))
    assert read == [(3003, 0), (0, 3003), (3003, 0)]


def test_five_breakpoints_are_one_too_many(make_api: Any) -> None:
    block = {"type": "text", "text": "a", "cache_control": CACHED}
    body = {"model": SONNET, "max_tokens": 4, "messages": [{"role": "user", "content": [block] * 5}]}
    refused = make_api().post("/v1/messages", body)
    assert refused.status_code == 400
    said = refused.json()["error"]["message"]
    assert said == "A maximum of 4 blocks with cache_control may be provided. Found 5."
    assert make_api(dialect="vllm").post("/v1/messages", body).status_code == 200


IDS = np.arange(5000, dtype=np.int32)


def test_a_breakpoint_finds_what_was_written_within_twenty_blocks_and_its_time() -> None:
    written = WrittenPrompts()
    first = [KeptPrefix(2000, 1, "5m"), KeptPrefix(3000, 4, "1h")]
    assert written.read_and_write("m", IDS, first, 0.0) == []
    assert written.read_and_write("other", IDS, first, 0.0) == []
    assert written.read_and_write("m", IDS + 1, first, 0.0) == []
    assert written.read_and_write("m", IDS, [KeptPrefix(4000, 24, "5m")], 10.0) == [3000]
    assert written.read_and_write("m", IDS, [KeptPrefix(3500, 21, "5m")], 299.0) == [3000, 2000]  # which live on
    assert written.read_and_write("m", IDS, [KeptPrefix(3600, 21, "5m")], 590.0) == [3500, 3000, 2000]
    assert written.read_and_write("m", IDS, [KeptPrefix(2500, 5, "5m")], 3500.0) == []
    assert written.read_and_write("m", IDS, [KeptPrefix(3100, 5, "5m")], 3550.0) == [3000, 2500]
    assert written.read_and_write("m", IDS, [KeptPrefix(3100, 45, "5m")], 3560.0) == []


@pytest.mark.parametrize(
    ("model", "tokens"),
    [
        ("claude-opus-4-5-20251101", 4096), ("anthropic/claude-opus-4.6", 4096), ("claude-haiku-4-5", 4096),
        ("claude-3-5-haiku-20241022", 2048), ("claude-3-haiku-20240307", 2048), ("claude-opus-5", 512),
        ("claude-opus-4-1-20250805", 1024), (SONNET, 1024), ("claude-opus-4-20250514", 1024), ("anything", 1024),
    ],
)  # fmt: skip
def test_the_fewest_tokens_are_the_models(model: str, tokens: int) -> None:
    assert fewest_tokens(model) == tokens
