"""What the Messages API refuses beyond the form of its fields, in its own words; engines take most of it."""

import re
from typing import Any

import pytest

from llmirage_server.anthropic.refusals import is_signed, signed

MODEL = "Qwen/Qwen3-30B-A3B-Instruct-2507"
THINKING = {"type": "enabled", "budget_tokens": 1024}
TOOL = {"name": "get_weather", "input_schema": {"type": "object"}}
HELLO = {"role": "user", "content": "Hello"}


def said(*blocks: Any, role: str = "assistant") -> dict[str, Any]:
    return {"role": role, "content": list(blocks)}


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


def thought(value: str, signature: str) -> dict[str, Any]:
    return {"type": "thinking", "thinking": value, "signature": signature}


def body(*messages: Any, **fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "max_tokens": 2000, "messages": list(messages or (HELLO,)), **fields}


USE = {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "sunny"}
SEARCH = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "a"}}
FOUND = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (body(thinking={"type": "enabled", "budget_tokens": 1023}),
         "thinking.enabled.budget_tokens: Input should be greater than or equal to 1024"),
        (body(thinking={"type": "enabled", "budget_tokens": 2000}),
         "`max_tokens` must be greater than `thinking.budget_tokens`."),
        (body(thinking={"type": "enabled"}), "thinking.enabled.budget_tokens: Field required"),
        (body(thinking=THINKING, temperature=0.5), "`temperature` may only be set to 1 when thinking is enabled."),
        (body(thinking=THINKING, top_p=0.9), "`top_p` must be greater than or equal to 0.95 or unset"),
        (body(thinking=THINKING, top_k=3), "`top_k` must be unset when thinking is enabled."),
        (body(thinking=THINKING, tools=[TOOL], tool_choice={"type": "any"}),
         "Thinking may not be enabled when tool_choice forces tool use."),
        (body(thinking={"type": "adaptive"}, tools=[TOOL], tool_choice={"type": "tool", "name": "get_weather"}),
         "Thinking may not be enabled when tool_choice forces tool use."),
        (body(HELLO, said(text("Hm."), USE), said(RESULT, role="user"), tools=[TOOL], thinking=THINKING),
         "messages.1.content.0.type: Expected `thinking` or `redacted_thinking`, but found `text`."),
        (body(HELLO, said(text("Sure:")), thinking=THINKING), "messages.1.content.0.type: Expected `thinking`"),
        (body(HELLO, said(thought("a", "forged"), text("b")), HELLO),
         "messages.1.content.0: Invalid `signature` in `thinking` block"),
        (body(HELLO, said(thought("altered", signed("a")), text("b")), HELLO),
         "messages.1.content.0: Invalid `signature` in `thinking` block"),
        (body(HELLO, said({"type": "thinking", "thinking": "a"}), HELLO),
         "messages.1.content.0.thinking.signature: Field required"),
        (body(HELLO, said({"type": "redacted_thinking", "data": "c"}), HELLO),
         "messages.1.content.0: Invalid `data` in `redacted_thinking` block"),
        (body({"role": "system", "content": "Be brief."}, HELLO), 'messages: Unexpected role "system".'),
        (body(HELLO, {"role": "system", "content": "Be brief."}), 'messages: Unexpected role "system".'),
        (body({"role": "user", "content": ""}),
         "messages.0: all messages must have non-empty content except for the optional final assistant message"),
        (body(HELLO, {"role": "assistant", "content": []}, HELLO), "messages.1: all messages must have non-empty content"),
        (body(said(text(""), role="user")), "messages: text content blocks must be non-empty"),
        (body(said(text(" \n"), role="user")), "messages: text content blocks must contain non-whitespace text"),
        (body(system=[text("")]), "system: text content blocks must be non-empty"),
        (body(HELLO, {"role": "assistant", "content": "I say "}),
         "messages: final assistant content cannot end with trailing whitespace"),
        (body(HELLO, said(USE), HELLO, tools=[TOOL]),
         "messages.1: `tool_use` ids were found without `tool_result` blocks immediately after: toolu_1."),
        (body(HELLO, said(text("So")), said(text("?"), RESULT, role="user"), tools=[TOOL]),
         "messages.2.content.1: unexpected `tool_use_id` found in `tool_result` blocks: toolu_1."),
        (body(HELLO, said(SEARCH), HELLO),
         "messages.1.content.0: `web_search` tool use with id `srvtoolu_1` was found without a corresponding "
         "`web_search_tool_result` block"),
        (body(HELLO, said(text("a"), FOUND), HELLO), "messages.1.content.1: unexpected `tool_use_id` found in `web_"),
        (body(said(USE, role="user"), tools=[TOOL]), "messages.0: `tool_use` blocks can only be in `assistant` messages"),
        (body(tool_choice={"type": "any"}), "may only be specified while providing `tools`"),
        (body(container={"skills": [{"type": "anthropic", "skill_id": "pdf"}]}), "code execution tool"),
        (body(context_management={"edits": []}), "context_management: Extra inputs are not permitted"),
    ],
)  # fmt: skip
def test_what_the_api_refuses(api: Any, given: Any, says: str) -> None:
    counted = {key: value for key, value in given.items() if key not in ("max_tokens", "temperature", "top_p", "top_k")}
    of_the_reply = set(given) & {"temperature", "top_p", "top_k"} or "max_tokens" in says
    for path, sent in (("/v1/messages", given), ("/v1/messages/count_tokens", counted)):
        answer = api.post(path, sent)
        if path.endswith("count_tokens") and of_the_reply:
            assert answer.status_code == 200, answer.text
            continue
        error = answer.json()
        assert (answer.status_code, error["error"]["type"]) == (400, "invalid_request_error"), says
        assert error["error"]["message"].startswith(says) or says in error["error"]["message"]


@pytest.mark.parametrize(
    "given",
    [
        body(HELLO, said(thought("a", "forged"), text("b")), HELLO),
        body({"role": "system", "content": "Be brief."}, HELLO),
        body(said(text(""), role="user")),
        body(HELLO, {"role": "assistant", "content": "I say "}),
        body(thinking=THINKING, temperature=0.5),
        body(tools=[{"type": "web_search_20990101", "name": "w"}]),
    ],
)
def test_engines_take_it(make_api: Any, given: Any) -> None:
    for dialect in ("vllm", "sglang", "trtllm"):
        answer = make_api(dialect=dialect).post("/v1/messages", given)
        assert answer.status_code == 200, answer.text


def test_valid_neighbours_are_taken(api: Any) -> None:
    for given in (
        body(HELLO, {"role": "assistant", "content": ""}),
        body(HELLO, {"role": "assistant", "content": "I say"}),
        body(thinking=THINKING, temperature=1, top_p=0.95),
        body(thinking={"type": "adaptive"}, tools=[TOOL], tool_choice={"type": "auto"}),
        body(HELLO, said(thought("", signed("left out")), text("b")), HELLO),  # as `display: omitted` gives it
        body(HELLO, said(thought("a", signed("a")), USE), said(RESULT, role="user"), said(USE), said(RESULT, role="user"),
             tools=[TOOL], thinking=THINKING),
    ):  # fmt: skip
        answer = api.post("/v1/messages", given)
        assert answer.status_code == 200, answer.text


def test_instructions_may_follow_a_user_with_the_beta(api: Any) -> None:
    beta = {"anthropic-beta": "mid-conversation-system-2026-04-07"}
    system = {"role": "system", "content": "Be brief."}
    assert api.request("POST", "/v1/messages", json=body(HELLO, system), headers=beta).status_code == 200
    for wrong in (body(system, HELLO), body(HELLO, system, HELLO)):
        answer = api.request("POST", "/v1/messages", json=wrong, headers=beta)
        assert "Unexpected role" in answer.json()["error"]["message"]


def test_thoughts_come_back_as_they_were_given(api: Any, make_api: Any) -> None:
    answer = api.post("/v1/messages", body(thinking=THINKING)).json()
    more = body(HELLO, {"role": "assistant", "content": answer["content"]}, HELLO, thinking=THINKING)
    assert make_api().post("/v1/messages", more).status_code == 200  # of another server, too
    answer["content"][0]["thinking"] += "."
    assert api.post("/v1/messages", more).status_code == 400
    hidden = api.post("/v1/messages", body(thinking={**THINKING, "display": "omitted"})).json()["content"][0]
    assert hidden["thinking"] == ""
    assert is_signed("", hidden["signature"])


# --- the context window -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [1200, 40_000])
def test_a_prompt_that_is_too_long_is_counted(make_api: Any, words: int) -> None:
    api = make_api(max_model_len=1000)
    given = body({"role": "user", "content": "tea " * words}, max_tokens=10)
    counted = api.post("/v1/messages/count_tokens", {key: given[key] for key in ("model", "messages")}).json()
    message = api.post("/v1/messages", given).json()["error"]["message"]
    assert message == f"prompt is too long: {counted['input_tokens']} tokens > 1000 maximum"
    for dialect in ("vllm", "sglang"):
        engine = make_api(dialect=dialect, max_model_len=1000).post("/v1/messages", given).json()["error"]["message"]
        assert engine.startswith("This model's maximum context length is 1000 tokens.")


@pytest.mark.parametrize("stream", [False, True])
def test_a_reply_that_does_not_fit_beside_its_prompt_says_all_three_numbers(make_api: Any, stream: bool) -> None:
    answer = make_api(max_model_len=1000).post("/v1/messages", body(max_tokens=999, stream=stream))
    message = answer.json()["error"]["message"]
    found = re.fullmatch(
        r"input length and `max_tokens` exceed context limit: (\d+) \+ 999 > 1000, decrease input length or `max_tokens` "
        "and try again",
        message,
    )
    assert found is not None, message
    fits = body(max_tokens=1000 - int(found[1]))
    assert make_api(max_model_len=1000).post("/v1/messages", fits).status_code == 200


# --- context management -------------------------------------------------------------------------------------------------

BETA = {"anthropic-beta": "context-management-2025-06-27"}
LONG = "The harbour is quiet in the morning. " * 50


def tool_loop(count: int) -> list[Any]:
    messages: list[Any] = [HELLO]
    for number in range(count):
        use = {**USE, "id": f"toolu_{number}", "input": {"city": LONG}, "name": ("get_weather", "look")[number % 2]}
        messages += [said(thought(f"t{number}", signed(f"t{number}")), use)]
        messages += [said({**RESULT, "tool_use_id": use["id"], "content": LONG}, role="user")]
    return messages


def managed(api: Any, path: str, *edits: Any, **fields: Any) -> Any:
    tools = [TOOL, {**TOOL, "name": "look"}]
    given = {
        "model": MODEL,
        "messages": tool_loop(6),
        "tools": tools,
        "context_management": {"edits": list(edits)},
        **fields,
    }
    return api.request("POST", path, json=given, headers=BETA)


CLEAR: dict[str, Any] = {"type": "clear_tool_uses_20250919", "trigger": {"type": "input_tokens", "value": 1000}}


@pytest.mark.parametrize(
    ("more", "cleared"),
    [
        ({}, 3), ({"keep": {"type": "tool_uses", "value": 1}}, 5), ({"trigger": {"type": "tool_uses", "value": 6}}, 0),
        ({"trigger": {"type": "tool_uses", "value": 5}}, 3), ({"exclude_tools": ["look"]}, 0),
        ({"exclude_tools": ["look"], "keep": {"type": "tool_uses", "value": 0}}, 3),
        ({"clear_at_least": {"type": "input_tokens", "value": 100_000}}, 0),
    ],
)  # fmt: skip
def test_old_results_of_tools_are_cleared(api: Any, more: Any, cleared: int) -> None:
    plain = managed(api, "/v1/messages/count_tokens").json()["input_tokens"]
    counted = managed(api, "/v1/messages/count_tokens", CLEAR | more).json()
    assert counted["context_management"] == {"original_input_tokens": plain}
    answer = managed(api, "/v1/messages", CLEAR | more, max_tokens=20).json()
    edits = answer["context_management"]["applied_edits"]
    saved = plain - counted["input_tokens"]
    assert edits == (
        [{"type": CLEAR["type"], "cleared_tool_uses": cleared, "cleared_input_tokens": saved}] if cleared else []
    )
    usage = answer["usage"]
    shown = usage["input_tokens"] + usage["cache_read_input_tokens"] + usage["cache_creation_input_tokens"]
    assert shown == counted["input_tokens"]
    if cleared:
        assert saved > cleared * 300


def test_inputs_of_tools_are_cleared_where_that_is_asked_for(api: Any) -> None:
    def tokens(**more: Any) -> int:
        found: int = managed(api, "/v1/messages/count_tokens", CLEAR | more).json()["input_tokens"]
        return found

    assert tokens() > tokens(clear_tool_inputs=["look"]) + 300 > tokens(clear_tool_inputs=True) + 600


def test_old_thoughts_are_cleared_and_a_stream_says_so(api: Any) -> None:
    thinking = {"type": "enabled", "budget_tokens": 1024}
    edit = {"type": "clear_thinking_20251015", "keep": {"type": "thinking_turns", "value": 2}}
    answer = managed(api, "/v1/messages", edit, CLEAR, max_tokens=1200, thinking=thinking).json()
    first, second = answer["context_management"]["applied_edits"]
    assert (first["type"], first["cleared_thinking_turns"]) == ("clear_thinking_20251015", 4)
    assert second["cleared_tool_uses"] == 3
    streamed = managed(api, "/v1/messages", edit, CLEAR, max_tokens=1200, thinking=thinking, stream=True).text
    [delta] = [line for line in streamed.splitlines() if line.startswith("data: ") and '"message_delta"' in line]
    assert '"applied_edits":[{"type":"clear_thinking_20251015","cleared_thinking_turns":4' in delta
    kept = managed(api, "/v1/messages", {**edit, "keep": "all"}, max_tokens=1200, thinking=thinking).json()
    assert kept["context_management"] == {"applied_edits": []}


@pytest.mark.parametrize(
    ("edits", "says"),
    [
        ([{"type": "clear_all"}],
         "context_management.edits.0: Input tag 'clear_all' found using 'type' does not match any of the expected tags"),
        ([{"type": "compact_20260112"}], "not simulated by llmirage"),
        ([{"type": "clear_thinking_20251015"}], "requires `thinking` to be enabled"),
        ([{**CLEAR, "keep": 3}], "context_management.edits.0.clear_tool_uses_20250919.keep: "),
        ([{**CLEAR, "kept": 3}], "context_management.edits.0.clear_tool_uses_20250919.kept: Extra inputs"),
        ([CLEAR, CLEAR], "once only"),
    ],
)  # fmt: skip
def test_wrong_edits_are_refused(api: Any, edits: Any, says: str) -> None:
    answer = managed(api, "/v1/messages", *edits, max_tokens=20)
    assert answer.status_code == 400
    assert says in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"model": None}, "model: Input should be a valid string"),
        ({"max_tokens": "x"}, "max_tokens: Input should be a valid integer"),
        ({"max_tokens": 0}, "max_tokens: Input should be greater than or equal to 1"),
        ({"temperature": 1.5}, "temperature: Input should be less than or equal to 1"),
        ({"stop_sequences": "a"}, "stop_sequences: Input should be a valid list"),
        ({"messages": [HELLO, {"role": "user"}]}, "messages.1.content: Field required"),
        ({"messages": [{**HELLO, "role": "bot"}]}, "messages.0.role: Input should be 'user', 'assistant' or 'system'"),
        ({"messages": [{**HELLO, "content": [{"type": "text"}]}]}, "messages.0.content.0.text.text: Field required"),
        (
            {"messages": [{**HELLO, "content": [{"type": "nope"}]}]},
            "messages.0.content.0: Input tag 'nope' found using 'type' ",
        ),
        ({"tool_choice": {"type": "tools"}}, "tool_choice.type: Input should be 'auto', 'any', 'tool' or 'none'"),
    ],
)
def test_a_body_of_the_wrong_form(api: Any, wrong: dict[str, Any], message: str) -> None:
    error = api.post("/v1/messages", {"model": MODEL, "max_tokens": 3, "messages": [HELLO], **wrong}).json()["error"]
    assert (error["type"], error["message"][: len(message)]) == ("invalid_request_error", message)


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens", "/v1/messages/batches"])
def test_a_body_without_what_is_required(api: Any, path: str) -> None:
    answer = api.post(path, {}, headers={"anthropic-version": "2023-06-01"})
    missing = "requests" if path.endswith("batches") else "model"
    assert (answer.status_code, answer.json()["error"]["message"]) == (400, f"{missing}: Field required")
