"""Which requests are the same."""

from typing import Any

import pytest

from llmirage_server.replies.recordings.store import Matcher, last_text

CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def said(text: Any, role: str = "user", **fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": role, "content": text}]} | fields


def with_call(call_id: str, **fields: Any) -> dict[str, Any]:
    call = {"id": call_id, "type": "function", "function": {"name": "f", "arguments": "{}"}}
    turns = [
        {"role": "assistant", "content": None, "tool_calls": [call], **fields},
        {"role": "tool", "tool_call_id": call_id},
    ]
    return {"model": "m", "messages": [{"role": "user", "content": "Hi"}, *turns]}


def crossed(first: str, second: str) -> dict[str, Any]:
    calls = [{"id": name, "type": "tool_use", "name": "f", "input": {}} for name in ("a", "b")]
    results = [{"type": "tool_result", "tool_use_id": name, "content": text} for name, text in ((first, "1"), (second, "2"))]
    return {"model": "m", "messages": [{"role": "assistant", "content": calls}, {"role": "user", "content": results}]}


SYSTEM = "You help. Today is {}. Session {}."


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (said("Hi"), said("Hi", temperature=0.3, seed=5, max_tokens=7, user="u", metadata={"id": "1"}, stream=False)),
        (said("Hi"), said([{"type": "text", "text": "Hi"}])),
        (said("Hi"), said([{"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}}])),
        (with_call("call_1"), with_call("call_9", refusal=None)),
        (
            said(SYSTEM.format("2026-11-23T10:00:01Z", "3f2504e0-4f89-11d3-9a0c-0305e82c3301"), "system"),
            said(SYSTEM.format("2027-01-02 11:12", "00000000-4f89-11d3-9a0c-0305e82c3301"), "system"),
        ),
        (said("Now: Mon, November 23rd, 2026 at 9:15 am", "developer"), said("Now: 2 Jan 2027 at 11:15 pm", "developer")),
        (
            said("<env>Date: 2026-11-23</env> What is due on 2026-01-01?"),
            said("<env>Date: 2026-11-24</env> What is due on 2026-01-01?"),
        ),
        (
            {"model": "m", "instructions": "It is 10:31.", "input": [{"id": "msg_1", "role": "user", "content": "Hi"}]},
            {"model": "m", "instructions": "It is 11:05.", "input": [{"id": "msg_2", "role": "user", "content": "Hi"}]},
        ),
    ],
)
def test_what_differs_each_time_does_not_count(one: Any, other: Any) -> None:
    assert Matcher().key(CHAT, one) == Matcher().key(CHAT, other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (said("Hi"), said("Ho")),
        (said("Hi"), said("Hi") | {"model": "n"}),
        (said("Hi"), said("Hi", tools=[TOOL])),
        (said("Hi"), said("Hi", stream=True)),
        (said("Hi"), said("Hi", "assistant")),
        (said("What is due on 2026-01-01?"), said("What is due on 2026-01-02?")),
        (crossed("a", "b"), crossed("b", "a")),
        ({"input": "Hi", "previous_response_id": "resp_1"}, {"input": "Hi", "previous_response_id": "resp_2"}),
        ({"input": ["a", "b"]}, {"input": ["a"]}),
    ],
)
def test_what_is_said_counts(one: Any, other: Any) -> None:
    assert Matcher().key(MESSAGES, one) != Matcher().key(MESSAGES, other)


def test_each_api_has_requests_of_its_own() -> None:
    assert Matcher().key(CHAT, said("Hi")) != Matcher().key(MESSAGES, said("Hi"))
    assert Matcher().key(CHAT, said("Hi")) == Matcher().key(
        "/openai/deployments/x/chat/completions?api-version=1", said("Hi")
    )


def test_the_fields_that_count_and_the_texts_that_do_not_can_be_chosen() -> None:
    only_said = Matcher(["messages"], [r"/tmp/\w+"])
    assert only_said.key(CHAT, said("See /tmp/a1")) == only_said.key(CHAT, said("See /tmp/b2") | {"model": "n"})
    assert only_said.key(CHAT, said("See /tmp/a1")) != only_said.key(CHAT, said("Look /tmp/a1"))
    with pytest.raises(ValueError, match="is not a regular expression of RE2"):
        Matcher(ignored=["("])


@pytest.mark.parametrize("text", ["<br>", "<a", "</a>", "<a></b>", "<a>1</a>"])
def test_many_tags_are_read_in_one_pass(text: str) -> None:
    """A tag without an end was searched for to the end of the text, from each of them."""
    many = "".join(f"<t{place}>" for place in range(4_000))
    body = {"messages": [{"role": "user", "content": text * (200_000 // len(text)) + many}]}
    assert Matcher().key("/v1/chat/completions", body)
    assert isinstance(last_text(body), str)


def test_text_in_tags_is_the_outermost_element_that_ends() -> None:
    def content(text: str) -> Any:
        return Matcher().content({"messages": [{"role": "user", "content": text}]})["messages"]

    for one, other in [("<a><b></a> {}", "<a><b></a> {}"), ("<open> {}", "<open> {}"), ("<tx>{}</t>", "<tx>{}</t>")]:
        assert content(one.format("2026-01-01")) != content(other.format("2026-01-02"))
    for one in ("<a x='1'>{}</a>", "<a><b>{}</b></a>", "<br><a>{}</a>", "<a>\n{}\n</a>"):
        assert content(one.format("2026-01-01")) == content(one.format("2026-01-02"))
