"""Compaction of conversations: by the endpoint, and by an item at the end of the input, as Codex asks for it."""

from typing import Any

import pytest
from event_streams import json_events

MODEL = "Qwen/Qwen3-30B-A3B-Instruct-2507"
TRIGGER = {"type": "compaction_trigger"}
RUN: dict[str, Any] = {
    "type": "function",
    "name": "exec_command",
    "description": "Runs a command.",
    "parameters": {"type": "object", "properties": {"cmd": {"type": "string"}}, "required": ["cmd"]},
}
TOOLS = [RUN, {"type": "apply_patch"}]
SHOWN = [
    {"type": "message", "role": "user", "content": "Use exec_command to run `cat main.py`"},
    {"type": "function_call", "call_id": "call_1", "name": "exec_command", "arguments": '{"cmd":"cat main.py"}'},
    {"type": "function_call_output", "call_id": "call_1", "output": "Output:\ndef f():\n    return 1\n"},
]


def asked(api: Any, given: Any, **more: Any) -> Any:
    answer = api.post("/v1/responses", {"model": MODEL, "input": given, "tools": TOOLS, "store": False, **more})
    assert answer.status_code == 200, answer.text
    return answer.json()


def said(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": text}


@pytest.mark.parametrize("effort", [None, "low"])
def test_a_trigger_makes_exactly_one_compaction_item(api: Any, effort: str | None) -> None:
    body = {"reasoning": {"effort": effort, "context": "all_turns"}, "include": ["reasoning.encrypted_content"]}
    response = asked(api, [*SHOWN, TRIGGER], **body, tool_choice="auto")
    [item] = response["output"]
    assert item.keys() == {"id", "type", "encrypted_content"}
    assert (item["type"], item["encrypted_content"][:5]) == ("compaction", "gAAAA")
    assert response["status"] == "completed"
    assert response["usage"]["output_tokens"] > 20


def test_a_streamed_compaction_is_one_item(api: Any) -> None:
    answer = api.post("/v1/responses", {"model": MODEL, "input": [*SHOWN, TRIGGER], "tools": TOOLS, "stream": True})
    events = json_events(answer.text)
    assert [event["type"] for event in events] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.output_item.done",
        "response.completed",
    ]
    assert events[2]["item"] == {**events[3]["item"], "encrypted_content": ""}
    assert events[4]["response"]["output"] == [events[3]["item"]]


def test_later_turns_accept_it_and_know_the_files(api: Any) -> None:
    """Twice in a row, and with nothing left of the calls that showed the file."""
    [first] = asked(api, [*SHOWN, TRIGGER])["output"]
    [second] = asked(api, [SHOWN[0], first, TRIGGER])["output"]
    wish = said("Use apply_patch to replace 'return 1' by 'return 2' in main.py")
    [call] = asked(api, [SHOWN[0], second, wish])["output"]
    assert call["operation"] == {
        "type": "update_file",
        "path": "main.py",
        "diff": "@@\n def f():\n-    return 1\n+    return 2\n",
    }


def test_a_request_that_was_begun_before_the_compaction_calls_no_tool(api: Any) -> None:
    [item] = asked(api, [*SHOWN, TRIGGER])["output"]
    again = [kind["type"] for kind in asked(api, [SHOWN[0], item])["output"]]
    assert again == ["message"]
    assert asked(api, [SHOWN[0], item], tool_choice="required")["output"][0]["type"] == "function_call"
    assert asked(api, [SHOWN[0], item, SHOWN[0]])["output"][0]["type"] == "function_call"


def test_what_it_stands_for_is_no_longer_in_the_prompt(api: Any) -> None:
    long = [*SHOWN, {"type": "message", "role": "assistant", "content": "word " * 2000}]
    whole = asked(api, [*long, TRIGGER])
    [item] = whole["output"]
    after = asked(api, [*long, item, said("Hello")])
    assert after["usage"]["input_tokens"] < whole["usage"]["input_tokens"] - 1500


def test_a_stored_conversation_goes_on_after_a_compaction(api: Any) -> None:
    first = asked(api, SHOWN, store=True)
    compacted = asked(api, [TRIGGER], store=True, previous_response_id=first["id"])
    assert [item["type"] for item in compacted["output"]] == ["compaction"]
    after = asked(api, "Hello", store=True, previous_response_id=compacted["id"])
    assert [item["type"] for item in after["output"]] == ["message"]
    assert asked(api, [{"type": "item_reference", "id": compacted["output"][0]["id"]}, said("Hello")])


def test_a_trigger_stands_last(api: Any) -> None:
    answer = api.post("/v1/responses", {"model": MODEL, "input": [TRIGGER, said("Hello")]})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "input[0]")


def test_the_endpoint_keeps_the_files_too(api: Any) -> None:
    answer = api.post("/v1/responses/compact", {"model": MODEL, "input": SHOWN}).json()
    assert [item["type"] for item in answer["output"]] == ["message", "compaction"]
    wish = said("Use apply_patch to replace 'return 1' by 'return 2' in main.py")
    [call] = asked(api, [*answer["output"], wish])["output"]
    assert call["operation"]["type"] == "update_file"


@pytest.mark.parametrize("foreign", ["gAAAAABo", "x", "gAAAA" + "A" * 50])
def test_a_compaction_item_of_another_server_is_accepted(api: Any, foreign: str) -> None:
    item = {"type": "compaction", "encrypted_content": foreign}
    assert [one["type"] for one in asked(api, [said("Hi"), item, said("Hello")])["output"]] == ["message"]


def test_a_summary_asked_for_in_words_keeps_the_files(api: Any) -> None:
    wish = (
        "Create a handoff summary for another LLM that will resume the task. " + "Include all that it needs to know. " * 10
    )
    [message] = asked(api, [*SHOWN, said(wish)])["output"]
    assert message["content"][0]["text"].startswith("`main.py`\n```\ndef f():\n    return 1\n```\n")


def test_a_hosted_search_cites_a_file_that_exists(api: Any) -> None:
    tool = {"type": "file_search", "vector_store_ids": ["vs_1"]}
    body = {"model": MODEL, "input": "file_search: policy", "tools": [tool], "include": ["file_search_call.results"]}
    call, message = api.post("/v1/responses", body).json()["output"]
    [cited] = message["content"][0]["annotations"]
    assert cited["file_id"] in {result["file_id"] for result in call["results"]}
    for result in call["results"]:
        file = api.request("GET", f"/v1/files/{result['file_id']}").json()
        assert (file["id"], file["filename"]) == (result["file_id"], result["filename"])
    listed = {file["id"] for file in api.request("GET", "/v1/files").json()["data"]}
    assert cited["file_id"] not in listed


def test_a_grammar_is_checked_where_it_is_declared(api: Any) -> None:
    form = {"type": "grammar", "syntax": "lark", "definition": 'start: "a"\n%import common.NONE\n'}
    tool = {"type": "custom", "name": "write", "format": form}
    error = api.post("/v1/responses", {"model": MODEL, "input": "Hello", "tools": [tool]}).json()["error"]
    assert error["param"] == "tools[0].format.definition"
    assert error["message"].startswith("Invalid grammar for custom tool 'write': line 2 of the grammar")
    nested = {
        "type": "custom",
        "custom": {"name": "write", "format": {"type": "grammar", "grammar": {**form, "type": None}}},
    }
    nested["custom"]["format"]["grammar"].pop("type")  # type: ignore[index]
    error = api.chat("Hello", tools=[nested]).json()["error"]
    assert error["param"] == "tools[0].custom.format.grammar.definition"


MODEL_LEN = 300
TOOL = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}


@pytest.fixture
def small(make_api: Any) -> Any:
    return make_api(max_model_len=MODEL_LEN)


def respond(api: Any, given: Any, **fields: Any) -> Any:
    return api.post("/v1/responses", {"model": "m", "input": given, "max_output_tokens": 30, **fields})


def test_a_conversation_over_previous_response_id_stays_within_the_window(small: Any) -> None:
    before: dict[str, Any] = {}
    counts = []
    for turn in range(8):
        response = respond(small, f"turn {turn} " + "word " * 60, truncation="auto", **before).json()
        assert response["error"] is None
        counts.append(response["usage"]["input_tokens"])
        before = {"previous_response_id": response["id"]}
    assert max(counts) <= MODEL_LEN - 30
    assert min(counts[2:]) > MODEL_LEN - 30 - 100  # one turn has less than 100: no more went than had to
    refused = respond(small, "word " * 150, **before)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "context_length_exceeded")


def test_the_newest_input_is_never_left_out(small: Any) -> None:
    first = respond(small, "word " * 200).json()
    refused = respond(small, "word " * 400, truncation="auto", previous_response_id=first["id"])
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "context_length_exceeded")
    call = respond(small, "Call look. " + "word " * 100, tools=[TOOL]).json()
    [item] = call["output"]
    for words, status in ((150, 200), (400, 400)):
        output = {"type": "function_call_output", "call_id": item["call_id"], "output": "word " * words}
        answer = respond(small, [output], truncation="auto", previous_response_id=call["id"], tools=[TOOL])
        assert answer.status_code == status
        if status == 200:
            assert answer.json()["usage"]["input_tokens"] > words


def test_a_long_conversation_is_cut_with_few_looks(small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    await_tools = small.app.service.encode_chat
    looks = []

    async def counted(*args: Any, **fields: Any) -> Any:
        looks.append(len(args[1]))
        return await await_tools(*args, **fields)

    monkeypatch.setattr(small.app.service, "encode_chat", counted)
    items = [{"role": role, "content": f"{turn} words"} for turn in range(500) for role in ("user", "assistant")]
    response = respond(small, [*items, {"role": "user", "content": "And now?"}], truncation="auto")
    assert response.status_code == 200
    assert 200 < response.json()["usage"]["input_tokens"] <= MODEL_LEN - 30
    assert len(looks) < 20


MANAGED = {"context_management": [{"type": "compaction", "compact_threshold": 1000}]}


@pytest.mark.parametrize("stream", [False, True])
def test_a_long_prompt_is_compacted_before_its_reply(api: Any, stream: bool) -> None:
    long = [*SHOWN, {"type": "message", "role": "assistant", "content": "word " * 3000}, said("Hello")]
    body = {"model": MODEL, "input": long, "stream": stream}
    answer = api.post("/v1/responses", body | MANAGED)
    events = json_events(answer.text)
    response = events[-1]["response"] if stream else answer.json()
    assert [item["type"] for item in response["output"]] == ["compaction", "message"]
    if stream:
        added = [event["item"]["type"] for event in events if event["type"] == "response.output_item.added"]
        assert added == ["compaction", "message"]
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
    later = asked(api, "Hello again", previous_response_id=response["id"])
    assert later["output"][0]["type"] == "message"
    assert later["usage"]["input_tokens"] < 1000 < response["usage"]["input_tokens"]
    plain = asked(api, long)
    assert [item["type"] for item in plain["output"]] == ["message"]
    below = asked(api, [*SHOWN, said("Hello")], **MANAGED)
    assert [item["type"] for item in below["output"]] == ["message"]


def test_a_threshold_below_the_least_is_refused(api: Any) -> None:
    edits = [{"type": "compaction", "compact_threshold": 999}]
    error = api.post("/v1/responses", {"model": MODEL, "input": "Hello", "context_management": edits}).json()["error"]
    assert (error["param"], error["code"]) == ("context_management[0].compact_threshold", "integer_below_min_value")
