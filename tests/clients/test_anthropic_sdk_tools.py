"""Typed tools of the Messages API through the official package: who runs them, with which arguments, what comes back."""

from collections.abc import Iterator
from typing import Any

import pytest
from sdks import anthropic

MODEL = "Qwen/Qwen3-30B-A3B-Instruct-2507"
SEARCH = {"type": "web_search_20250305", "name": "web_search"}
EDITOR = {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool"}
SHELL = {"type": "bash_20250124", "name": "bash"}
COMPUTER = {"name": "computer", "display_width_px": 1024, "display_height_px": 768}
WEATHER = {
    "name": "get_weather",
    "description": "Get the current weather for a location",
    "input_schema": {"type": "object", "properties": {"location": {"type": "string"}}, "required": ["location"]},
}
CODE = "code_execution_20250825"


@pytest.fixture(scope="module")
def sdk(base_url: str) -> Iterator[Any]:
    with anthropic.Anthropic(base_url=base_url.removesuffix("/v1"), api_key="none", max_retries=0) as client:
        yield client


def user(text: Any) -> dict[str, Any]:
    return {"role": "user", "content": text}


def create(sdk: Any, said: Any, *tools: Any, **options: Any) -> Any:
    messages = said if isinstance(said, list) else [user(said)]
    options = {"model": MODEL, "max_tokens": 600, "messages": messages, "tools": list(tools), **options}
    return sdk.beta.messages.create(**options)


def streamed(sdk: Any, said: str, *tools: Any, **options: Any) -> tuple[Any, list[Any]]:
    options = {"model": MODEL, "max_tokens": 600, "messages": [user(said)], "tools": list(tools), **options}
    with sdk.beta.messages.stream(**options) as stream:
        events = list(stream)
        return stream.get_final_message(), events


def kinds(message: Any) -> list[str]:
    return [block.type for block in message.content]


def comparable(message: Any) -> Any:
    """The content without ids, which are new each time."""
    ids: dict[str, str] = {}

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(each) for key, each in value.items()}
        if isinstance(value, list):
            return [plain(each) for each in value]
        return ids.setdefault(value, f"id{len(ids)}") if isinstance(value, str) and "toolu_" in value else value

    return plain([block.to_dict() for block in message.content])


# --- tools that the client runs -----------------------------------------------------------------------------------------


def test_a_shell_gets_its_command(sdk: Any) -> None:
    [use] = create(sdk, "Use bash to run `ls -la /tmp`", SHELL).content
    assert (use.type, use.name, use.input) == ("tool_use", "bash", {"command": "ls -la /tmp"})
    forced = create(sdk, "Hello", SHELL, tool_choice={"type": "tool", "name": "bash"})
    assert forced.stop_reason == "tool_use"
    assert set(forced.content[0].input) == {"command"}


def test_an_editor_looks_first_and_then_changes_what_it_was_shown(sdk: Any) -> None:
    messages: list[Any] = [user("Use the editor to view /repo/main.py")]
    [use] = create(sdk, messages, EDITOR, tool_choice={"type": "any"}).content
    assert use.input == {"command": "view", "path": "/repo/main.py"}
    result = {"type": "tool_result", "tool_use_id": use.id, "content": "1\tdef f():\n2\t    return 1\n3\t\n4\tf()\n"}
    messages += [{"role": "assistant", "content": [use]}, user([result])]
    messages += [{"role": "assistant", "content": "Seen."}, user("Now replace `return 1` by `return 2` in main.py")]
    [edit] = create(sdk, messages, EDITOR, tool_choice={"type": "any"}).content
    text = "def f():\n    return 1\n\nf()\n"
    assert edit.input["command"] == "str_replace"
    assert text.count(edit.input["old_str"]) == 1
    assert text.replace(edit.input["old_str"], edit.input["new_str"]) == text.replace("return 1", "return 2")
    messages += [{"role": "assistant", "content": [edit]}, user([{**result, "tool_use_id": edit.id, "content": "ok"}])]
    messages += [{"role": "assistant", "content": "Done."}, user("Replace `return 2` by `return 3` in main.py")]
    [again] = create(sdk, messages, EDITOR, tool_choice={"type": "any"}).content
    assert "return 2" in again.input["old_str"]
    assert "return 3" in again.input["new_str"]


def test_an_editor_does_not_change_what_it_has_not_seen(sdk: Any) -> None:
    [use] = create(sdk, "Use str_replace_based_edit_tool to fix the typo in /repo/a.py", EDITOR).content
    assert use.input == {"command": "view", "path": "/repo/a.py"}
    [use] = create(sdk, "Use str_replace_based_edit_tool to create /repo/b.txt saying hello world", EDITOR).content
    assert use.input == {"command": "create", "path": "/repo/b.txt", "file_text": "hello world\n"}


@pytest.mark.parametrize(
    ("version", "beta"),
    [("20241022", "computer-use-2024-10-22"), ("20250124", "computer-use-2025-01-24"),
     ("20251124", "computer-use-2025-11-24")],
)  # fmt: skip
def test_a_computer_needs_its_header_and_gets_an_action(sdk: Any, version: str, beta: str) -> None:
    tool = {"type": f"computer_{version}", **COMPUTER}
    forced = {"tool_choice": {"type": "tool", "name": "computer"}}
    [use] = create(sdk, "Take a screenshot", tool, betas=[beta], **forced).content
    assert use.input == {"action": "screenshot"}
    with pytest.raises(anthropic.BadRequestError, match=f"Input tag 'computer_{version}' found using 'type'") as refused:
        create(sdk, "Take a screenshot", tool, **forced)
    assert "'bash_20250124'" in refused.value.message


def test_memory_stays_in_its_folder(sdk: Any) -> None:
    tool = {"type": "memory_20250818", "name": "memory"}
    [use] = create(sdk, "What do you know of me?", tool, tool_choice={"type": "any"}).content
    assert use.input == {"command": "view", "path": "/memories"}
    [use] = create(sdk, "Use memory to create notes.md saying I like tea", tool).content
    assert use.input == {"command": "create", "path": "/memories/notes.md", "file_text": "I like tea\n"}


# --- tools that the API runs --------------------------------------------------------------------------------------------


def test_a_search_is_made_and_cited(sdk: Any) -> None:
    message = create(sdk, "Search the web for the height of Mont Blanc", SEARCH)
    assert kinds(message) == ["server_tool_use", "web_search_tool_result", "text"]
    use, found, text = message.content
    assert (use.name, found.tool_use_id, message.stop_reason) == ("web_search", use.id, "end_turn")
    assert "Mont Blanc" in use.input["query"]
    [citation] = text.citations
    assert citation.type == "web_search_result_location"
    assert citation.url in [result.url for result in found.content]
    assert message.usage.server_tool_use.web_search_requests == 1


@pytest.mark.parametrize("tools", [[SEARCH], [{"type": CODE, "name": "code_execution"}]])
def test_a_stream_has_the_same_blocks(sdk: Any, tools: list[Any]) -> None:
    said = "Search the web for tea, or run code to calculate 3**7"
    whole = create(sdk, said, *tools, tool_choice={"type": "any"})
    final, events = streamed(sdk, said, *tools, tool_choice={"type": "any"})
    assert comparable(final) == comparable(whole)
    assert final.usage.server_tool_use == whole.usage.server_tool_use
    starts = [event.index for event in events if event.type == "content_block_start"]
    stops = [event.index for event in events if event.type == "content_block_stop"]
    assert starts == stops == list(range(len(whole.content)))


def test_what_came_back_is_accepted_in_the_next_turn(sdk: Any) -> None:
    asked = user("Search the web for tea")
    first = create(sdk, [asked], SEARCH)
    messages = [asked, {"role": "assistant", "content": [block.to_dict() for block in first.content]}]
    second = create(sdk, [*messages, user("Thank you. What is a monad?")], SEARCH)
    assert kinds(second) == ["text"]
    less = sdk.messages.count_tokens(model=MODEL, messages=[asked, user("Thank you. What is a monad?")], tools=[SEARCH])
    more = sdk.messages.count_tokens(model=MODEL, messages=[*messages, user("Thank you. What is a monad?")], tools=[SEARCH])
    assert more.input_tokens > less.input_tokens + 50  # the results are in the prompt
    del messages[1]["content"][1]
    with pytest.raises(anthropic.BadRequestError, match="without a corresponding `web_search_tool_result` block"):
        create(sdk, [*messages, user("And?")], SEARCH)


def test_domains_are_kept_to(sdk: Any) -> None:
    found = create(sdk, "Search the web for tea", {**SEARCH, "allowed_domains": ["docs.python.org", "a.org"]}).content[1]
    assert {result.url.split("/")[2] for result in found.content} == {"docs.python.org", "a.org"}
    found = create(sdk, "Search the web for tea", {**SEARCH, "blocked_domains": ["example.com"]}).content[1]
    assert {result.url.split("/")[2] for result in found.content} == {"example.org"}


def test_searches_beyond_max_uses_fail(sdk: Any) -> None:
    said = "Use web_search for tea. Then use web_search for coffee."
    twice = create(sdk, said, SEARCH)
    assert twice.usage.server_tool_use.web_search_requests == 2
    once = create(sdk, said, {**SEARCH, "max_uses": 1})
    results = [block.content for block in once.content if block.type == "web_search_tool_result"]
    assert isinstance(results[0], list)
    assert results[1].error_code == "max_uses_exceeded"


def test_pages_are_fetched_that_the_conversation_names(sdk: Any) -> None:
    tool = {"type": "web_fetch_20250910", "name": "web_fetch", "citations": {"enabled": True}}
    message = create(sdk, "Use web_fetch to read https://example.net/tea", tool)
    assert message.content[0].input == {"url": "https://example.net/tea"}
    assert message.content[1].content.url == "https://example.net/tea"
    assert message.content[1].content.content.source.data.startswith("(simulated)")
    assert message.usage.server_tool_use.web_fetch_requests == 1
    blocked = create(sdk, "Use web_fetch to read https://example.net/tea", {**tool, "blocked_domains": ["example.net"]})
    assert blocked.content[1].content.error_code == "url_not_allowed"
    unknown = create(sdk, "Hello", tool, tool_choice={"type": "tool", "name": "web_fetch"})
    assert unknown.content[1].content.error_code == "url_not_in_prior_context"


def test_code_runs_in_a_container_that_stays(sdk: Any) -> None:
    old = {"type": "code_execution_20250522", "name": "code_execution"}
    message = create(sdk, "Run Python code: `print(3**7)`", old)
    assert kinds(message)[:2] == ["server_tool_use", "code_execution_tool_result"]
    assert message.content[0].input == {"code": "print(3**7)"}
    assert message.content[1].content.return_code == 0
    new = {"type": CODE, "name": "code_execution"}
    message = create(sdk, "Run code: `ls`", new, tool_choice={"type": "tool", "name": "code_execution"})
    assert kinds(message)[:2] == ["server_tool_use", "bash_code_execution_tool_result"]
    assert message.content[0].name == "bash_code_execution"
    again = create(sdk, "Hello", new, container=message.container.id)
    assert again.container.id == message.container.id
    with pytest.raises(anthropic.NotFoundError, match="container_none"):
        create(sdk, "Hello", new, container="container_none")
    final, _ = streamed(sdk, "Run code: `ls`", new, container=message.container.id)
    assert final.container.id == message.container.id


def test_mcp_servers_are_answered_for(sdk: Any) -> None:
    server = {"type": "url", "name": "docs", "url": "https://mcp.example.com/sse"}
    toolset = {"type": "mcp_toolset", "mcp_server_name": "docs", "configs": {"find_page": {"enabled": True}}}
    betas = ["mcp-client-2025-11-20"]
    message = create(sdk, "Use find_page for tea", toolset, mcp_servers=[server], betas=betas)
    use, result = message.content[:2]
    assert (use.type, use.server_name, use.name, use.input) == ("mcp_tool_use", "docs", "find_page", {"query": "tea"})
    assert (result.type, result.tool_use_id, result.is_error) == ("mcp_tool_result", use.id, False)
    old = {**server, "tool_configuration": {"allowed_tools": ["find_page"]}}
    message = create(sdk, "Use find_page for tea", mcp_servers=[old], betas=["mcp-client-2025-04-04"])
    assert kinds(message)[:2] == ["mcp_tool_use", "mcp_tool_result"]
    history = [user("Use find_page for tea"), {"role": "assistant", "content": [b.to_dict() for b in message.content]}]
    assert create(sdk, [*history, user("Thanks")], toolset, mcp_servers=[server], betas=betas).content
    for wrong, says in (
        ({"betas": []}, "mcp_servers: Extra inputs are not permitted"),
        ({"mcp_servers": [{**server, "name": "other"}]}, "'docs' of an `mcp_toolset` is not defined"),
    ):
        with pytest.raises(anthropic.BadRequestError, match=says):
            create(sdk, "Hi", toolset, **{"mcp_servers": [server], "betas": betas, **wrong})


@pytest.mark.parametrize("kind", ["regex", "bm25"])
def test_deferred_tools_are_found_first(sdk: Any, kind: str) -> None:
    finder = {"type": f"tool_search_tool_{kind}_20251119", "name": f"tool_search_tool_{kind}"}
    tools = [finder, {**WEATHER, "defer_loading": True}]
    first = create(sdk, "What is the weather in Paris?", *tools)
    assert kinds(first) == ["server_tool_use", "tool_search_tool_result", "tool_use"]
    assert [reference.tool_name for reference in first.content[1].content.tool_references] == ["get_weather"]
    assert first.content[2].input == {"location": "Paris"}
    result = {"type": "tool_result", "tool_use_id": first.content[2].id, "content": "18 degrees"}
    history = [user("What is the weather in Paris?"), {"role": "assistant", "content": [b.to_dict() for b in first.content]}]
    last = create(sdk, [*history, user([result])], *tools)
    assert kinds(last) == ["text"]
    more = [*history, user([result]), {"role": "assistant", "content": "18."}, user("What is the weather in Rome?")]
    assert kinds(create(sdk, more, *tools)) == ["tool_use"]  # it is known by now
    shown = sdk.messages.count_tokens(model=MODEL, messages=[user("Hi")], tools=[finder, WEATHER]).input_tokens
    hidden = sdk.messages.count_tokens(model=MODEL, messages=[user("Hi")], tools=tools).input_tokens
    assert hidden < shown


# --- declarations that are refused --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tools", "says"),
    [
        ([{"type": "web_search_20990101", "name": "web_search"}],
         r"tools\.0: Input tag 'web_search_20990101' found using 'type' does not match any of the expected tags: 'bash"),
        ([{**SHELL, "name": "shell"}], r"tools\.0\.bash_20250124\.name: Input should be 'bash'"),
        ([{"type": "bash_20250124"}], r"tools\.0\.bash_20250124\.name: Field required"),
        ([WEATHER, {**SEARCH, "max_uses": 0}], r"tools\.1\.web_search_20250305\.max_uses: Input should be greater than 0"),
        ([{**SEARCH, "allowed_domains": ["a.b"], "blocked_domains": ["c.d"]}],
         r"tools\.0\.web_search_20250305: .*`allowed_domains` and `blocked_domains`"),
        ([{**SEARCH, "max_results": 3}], r"tools\.0\.web_search_20250305\.max_results: Extra inputs are not permitted"),
        ([SEARCH, {"type": "web_search_20260209", "name": "web_search"}], "tools: Tool names must be unique"),
        ([{"name": "plain"}], r"tools\.0\.custom\.input_schema: Field required"),
        ([{**WEATHER, "defer_loading": True}], "At least one tool"),
        ([{**WEATHER, "allowed_callers": ["code_execution_20250825"]}], "not simulated"),
        ([{"type": "computer_toolset_20260801"}], "not simulated by llmirage"),
    ],
)  # fmt: skip
def test_wrong_declarations_are_refused(sdk: Any, tools: Any, says: str) -> None:
    with pytest.raises(anthropic.BadRequestError, match=says) as refused:
        create(sdk, "Hi", *tools)
    assert refused.value.body["error"]["type"] == "invalid_request_error"
    with pytest.raises(anthropic.BadRequestError, match=says):
        sdk.messages.count_tokens(model=MODEL, messages=[user("Hi")], tools=tools)
