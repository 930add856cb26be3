"""Tools of the API's own, with the official SDK: what is simulated, what the client runs, what `include` adds."""

from __future__ import annotations

from typing import Any

import pytest
from sdks import openai

MODEL = "Qwen/Qwen3-30B-A3B-Instruct-2507"
MCP = {"type": "mcp", "server_label": "wiki", "server_url": "https://example.com/mcp", "allowed_tools": ["ask_question"]}


def kinds(response: Any) -> list[str]:
    return [item.type for item in response.output]


@pytest.mark.parametrize(
    ("tool", "said", "item"),
    [
        ({"type": "web_search"}, "Can you search the web for robots?", "web_search_call"),
        ({"type": "web_search_preview"}, "Who won the world cup? Use web_search.", "web_search_call"),
        (
            {"type": "file_search", "vector_store_ids": ["vs_1"]},
            "Search the uploaded documents for rules",
            "file_search_call",
        ),
        (
            {"type": "code_interpreter", "container": {"type": "auto"}},
            "Use Python code to compute 3 * 14",
            "code_interpreter_call",
        ),
        ({"type": "image_generation"}, "Generate an image of a cat", "image_generation_call"),
        ({**MCP, "require_approval": "never"}, "Ask the wiki a question about harbors", "mcp_call"),
    ],
)
def test_a_tool_that_the_api_runs(sdk: openai.OpenAI, tool: Any, said: str, item: str) -> None:
    response = sdk.responses.create(model=MODEL, input=said, tools=[tool])
    assert [kind for kind in kinds(response) if kind != "mcp_list_tools"] == [item, "message"]
    assert response.output_text
    assert kinds(sdk.responses.create(model=MODEL, input="Hello", tools=[tool]))[-1] == "message"
    assert item not in kinds(sdk.responses.create(model=MODEL, input="Hello", tools=[tool]))
    with sdk.responses.stream(model=MODEL, input=said, tools=[tool]) as stream:
        seen = [event.type for event in stream]
        final = stream.get_final_response()
    assert kinds(final) == kinds(response)
    begun, ended = f"response.{item}.in_progress", f"response.{item}.completed"
    assert 0 < seen.index(begun) < seen.index(ended) < seen.index("response.output_text.delta")
    follow_up = sdk.responses.create(model=MODEL, input="Thanks", previous_response_id=response.id, tools=[tool])
    assert kinds(follow_up) == ["message"]


@pytest.mark.parametrize(
    ("tool", "said", "item"),
    [
        ({"type": "local_shell"}, "Run `ls` in the shell", "local_shell_call"),
        ({"type": "shell"}, "Run `ls -la` in the shell", "shell_call"),
        ({"type": "apply_patch"}, "Apply a patch to main.py: replace 'foo' with 'bar'", "apply_patch_call"),
        (
            {"type": "computer_use_preview", "display_width": 800, "display_height": 600, "environment": "browser"},
            "Use the computer to open bing.com",
            "computer_call",
        ),
    ],
)
def test_a_tool_that_the_client_runs(sdk: openai.OpenAI, tool: Any, said: str, item: str) -> None:
    response = sdk.responses.create(model=MODEL, input=said, tools=[tool])
    assert kinds(response) == [item]
    call = response.output[0]
    output: dict[str, Any] = {"type": f"{item}_output", "call_id": call.call_id, "output": "done"}
    if item == "local_shell_call":
        output["id"] = call.id
        assert call.action.command[-1] == "ls"
    elif item == "shell_call":
        assert call.action.commands == ["ls -la"]
        output["output"] = [{"stdout": "a", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}]
    elif item == "apply_patch_call":
        assert (call.operation.path, call.operation.diff) == ("main.py", "@@\n-foo\n+bar\n")
        output["status"] = "completed"
    else:
        output["output"] = {"type": "computer_screenshot", "image_url": "data:image/png;base64,AA=="}
    done = sdk.responses.create(model=MODEL, input=[output], tools=[tool], previous_response_id=response.id)
    assert kinds(done) == ["message"]


def test_what_include_adds(sdk: openai.OpenAI) -> None:
    def made(tool: Any, said: str, include: Any) -> Any:
        response = sdk.responses.create(model=MODEL, input=said, tools=[tool], include=include, tool_choice="required")
        return response.output[0]

    search: Any = {"type": "web_search"}
    assert (
        made(search, "Who won?", ["web_search_call.action.sources"])
        .action.sources[0]
        .url.startswith("https://example.com/simulated/")
    )
    assert getattr(made(search, "Who won?", []).action, "sources", None) is None
    files: Any = {"type": "file_search", "vector_store_ids": ["vs_1"]}
    assert made(files, "policy", ["file_search_call.results"]).results[0].attributes == {"simulated": True}
    assert made(files, "policy", []).results is None
    code: Any = {"type": "code_interpreter", "container": {"type": "auto"}}
    logs = made(code, "3 * 14", ["code_interpreter_call.outputs"]).outputs[0].logs
    assert logs == "(simulated) 1 lines ran without an error.\n"
    assert made(code, "3 * 14", []).outputs is None


def test_a_search_is_cited(sdk: openai.OpenAI) -> None:
    response = sdk.responses.create(model=MODEL, input="web_search: world cup", tools=[{"type": "web_search"}])
    text = response.output[-1].content[0]
    [cited] = text.annotations
    assert cited.type == "url_citation"
    assert 0 <= cited.start_index < cited.end_index <= len(text.text)


def test_a_forced_tool_and_a_limit(sdk: openai.OpenAI) -> None:
    tools: Any = [{"type": "web_search"}, {"type": "image_generation"}]
    forced = sdk.responses.create(model=MODEL, input="Hello", tools=tools, tool_choice={"type": "image_generation"})
    assert kinds(forced) == ["image_generation_call", "message"]
    said = "Search the web for cats, then use image_generation"
    both = ["web_search_call", "image_generation_call", "message"]
    assert kinds(sdk.responses.create(model=MODEL, input=said, tools=tools)) == both
    limited = sdk.responses.create(model=MODEL, input=said, tools=tools, max_tool_calls=1)
    assert kinds(limited) == ["web_search_call", "message"]


def test_a_call_that_needs_approval(sdk: openai.OpenAI) -> None:
    said = "Ask the wiki a question about harbors"
    asked = sdk.responses.create(model=MODEL, input=said, tools=[MCP])
    assert kinds(asked) == ["mcp_list_tools", "mcp_approval_request"]

    def answered(approve: bool) -> Any:
        given = {"type": "mcp_approval_response", "approval_request_id": asked.output[-1].id, "approve": approve}
        return sdk.responses.create(model=MODEL, input=[given], tools=[MCP], previous_response_id=asked.id)

    call = answered(True).output[0]
    assert (call.type, call.approval_request_id) == ("mcp_call", asked.output[-1].id)
    assert '"simulated": true' in call.output
    assert kinds(answered(False)) == ["message"]


def test_functions_beside_them(sdk: openai.OpenAI) -> None:
    weather = {
        "type": "function",
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    }
    said = "Search the web for cats and get the weather in Paris"
    tools: Any = [{"type": "web_search"}, weather]
    response = sdk.responses.create(model=MODEL, input=said, tools=tools)
    assert kinds(response) == ["web_search_call", "function_call"]
    output = {"type": "function_call_output", "call_id": response.output[1].call_id, "output": "sunny"}
    again: Any = [{"role": "user", "content": said}, *[item.model_dump() for item in response.output], output]
    assert kinds(sdk.responses.create(model=MODEL, input=again, tools=tools)) == ["message"]


@pytest.mark.parametrize("wanted", [None, 0, 3])
def test_partial_images_come_before_the_image(sdk: openai.OpenAI, wanted: int | None) -> None:
    tools: Any = [{"type": "image_generation", **({} if wanted is None else {"partial_images": wanted})}]
    asked = {"model": MODEL, "input": "Hello", "tools": tools, "tool_choice": {"type": "image_generation"}}
    events = list(sdk.responses.create(**asked, stream=True))
    places = [place for place, event in enumerate(events) if event.type == "response.image_generation_call.partial_image"]
    partial = [events[place] for place in places]
    assert [event.partial_image_index for event in partial] == list(range(wanted or 0))
    [done] = [item for event in events if event.type == "response.completed" for item in event.response.output[:1]]
    assert {(event.item_id, event.partial_image_b64) for event in partial} <= {(done.id, done.result)}
    kinds_seen = [event.type for event in events]
    assert all(place < kinds_seen.index("response.image_generation_call.completed") for place in places)
