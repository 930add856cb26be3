"""Typed tools beyond what the official package can send: other APIs' editors, engines, malformed declarations."""

import json
from typing import Any

import pytest

MODEL = "Qwen/Qwen3-30B-A3B-Instruct-2507"
COMMANDS = {"type": "string", "enum": ["view", "create", "str_replace", "insert", "undo_edit"]}
EDITOR = {
    "type": "object",
    "properties": {
        "command": COMMANDS, "path": {"type": "string"}, "old_str": {"type": "string"}, "new_str": {"type": "string"},
        "file_text": {"type": "string"}, "insert_line": {"type": "integer"},
    },
    "required": ["command", "path"],
}  # fmt: skip
TEXT = "a = 1\nb = 2\n\na = 1\nb = 2\n"


def test_an_editor_of_chat_changes_what_was_shown_where_it_is_unique(api: Any) -> None:
    function = {"type": "function", "function": {"name": "edit_file", "parameters": EDITOR}}
    call = {"name": "edit_file", "arguments": json.dumps({"command": "view", "path": "/w/x.py"})}
    messages = [
        {"role": "user", "content": "Use edit_file to view /w/x.py"},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "type": "function", "function": call}]},
        {"role": "tool", "tool_call_id": "c", "content": TEXT},
        {"role": "assistant", "content": "Seen."},
        {"role": "user", "content": "Use edit_file to replace `b = 2` by `b = 3` in x.py"},
    ]
    body = {"model": MODEL, "messages": messages, "tools": [function]}
    answer = api.post("/v1/chat/completions", body).json()
    [made] = answer["choices"][0]["message"]["tool_calls"]
    given = json.loads(made["function"]["arguments"])
    assert (given["command"], given["path"]) == ("str_replace", "/w/x.py")
    assert TEXT.count(given["old_str"]) == 1
    assert "b = 3" in TEXT.replace(given["old_str"], given["new_str"])


@pytest.mark.parametrize(
    "tool",
    [
        {"type": "web_search_20250305", "name": "web_search", "max_uses": "three"},
        {"type": "mcp_toolset", "mcp_server_name": ["docs"]},
        {"type": "somebody_elses", "name": "web_search"},
    ],
)
def test_engines_do_not_call_what_has_not_its_form(make_api: Any, tool: Any) -> None:
    messages = [{"role": "user", "content": "Search the web for tea"}]
    body = {"model": MODEL, "max_tokens": 300, "messages": messages, "tools": [tool]}
    answer = make_api(dialect="vllm").post("/v1/messages", body)
    assert answer.status_code == 200
    assert [block["type"] for block in answer.json()["content"]] == ["text"]
    assert make_api().post("/v1/messages", body).status_code == 400


def test_a_reply_cut_in_a_servers_call_has_no_result(api: Any) -> None:
    tool = {"type": "web_search_20250305", "name": "web_search"}
    messages = [{"role": "user", "content": "Search the web for the height of Mont Blanc"}]
    body = {"model": MODEL, "max_tokens": 8, "messages": messages, "tools": [tool]}
    answer = api.post("/v1/messages", body).json()
    assert answer["stop_reason"] == "max_tokens"
    assert [block["type"] for block in answer["content"]] == ["server_tool_use"]
    streamed = api.post("/v1/messages", body | {"stream": True}).text
    assert streamed.count("event: content_block_start") == streamed.count("event: content_block_stop") == 1
