"""Our chat template writes every legal OpenAI message, and replies are segments of their own."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from llmirage_shared.prompt_encoder import EmbeddedTemplate, PlainTemplate

template = EmbeddedTemplate()
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


def test_a_conversation_is_roles_contents_and_ends() -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "developer", "content": "Use metres."},
        {"role": "user", "content": "How far?"},
        {"role": "assistant", "content": "Ten."},
        {"role": "user", "content": "Sure?"},
    ]
    assert template.render(messages) == (
        "<|system|>Be brief.<|end_of_turn|><|developer|>Use metres.<|end_of_turn|><|user|>How far?<|end_of_turn|>"
        "<|assistant|>Ten.<|end_of_turn|><|user|>Sure?<|end_of_turn|><|assistant|>"
    )


def test_tool_calls_and_results_leave_invented_ids_out() -> None:
    messages = [
        {"role": "user", "content": "Look."},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "look", "arguments": '{"at": 1}'}}],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "A tree."},
    ]
    assert template.render(messages, [TOOL]) == (
        '<|tools|>{"type":"function","function":{"name":"look","parameters":{"type":"object"}}}<|end_of_turn|>'
        "<|user|>Look.<|end_of_turn|>"
        '<|assistant|><|tool_call|>look<|tool_arguments|>{"at": 1}<|end_of_tool_call|><|end_of_turn|>'
        "<|tool|>A tree.<|end_of_turn|><|assistant|>"
    )


def test_parts_names_refusals_and_unknown_roles() -> None:
    parts = [
        {"type": "text", "text": "one"},
        {"type": "text", "text": "two"},
        {"type": "file", "file": {"file_id": "f"}},
        {"type": "text", "text": "three"},
    ]
    messages = [
        {"role": "user", "name": "ann", "content": parts},
        {"role": "assistant", "content": None, "refusal": "No."},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "Not this."}]},
        {"role": "critic", "content": "Hm."},
        {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
        {"role": "function", "name": "f", "content": "1"},
        {"role": "user"},
    ]
    assert template.render(messages) == (
        "<|user|>ann<|name|>one\ntwo<|file|>three<|end_of_turn|>"
        "<|assistant|>No.<|end_of_turn|><|assistant|>Not this.<|end_of_turn|><|user|>critic<|name|>Hm.<|end_of_turn|>"
        "<|assistant|><|tool_call|>f<|tool_arguments|>{}<|end_of_tool_call|><|end_of_turn|>"
        "<|tool|>f<|name|>1<|end_of_turn|><|user|><|end_of_turn|><|assistant|>"
    )


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["type", "text", "function", "name"]), inner, max_size=3)
    ),
    max_leaves=8,
)
fields = st.sampled_from(["role", "content", "name", "tool_calls", "function_call", "refusal", "tool_call_id"])


@given(
    st.lists(st.dictionaries(fields, json_values), max_size=4),
    st.none() | st.lists(st.dictionaries(st.text(max_size=3), json_values), max_size=2),
)
def test_odd_messages_never_fail(messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None) -> None:
    assert template.render(messages, tools).endswith("<|assistant|>")
    assert PlainTemplate("</s>").render(messages, tools).endswith("assistant: ")


@given(st.text(), st.text())
def test_the_next_prompt_begins_with_this_prompt_and_its_reply(question: str, reply: str) -> None:
    messages = [{"role": "user", "content": question}]
    following = [*messages, {"role": "assistant", "content": reply}, {"role": "user", "content": "go on"}]
    assert template.render(following).startswith(template.render(messages) + reply + "<|end_of_turn|>")
