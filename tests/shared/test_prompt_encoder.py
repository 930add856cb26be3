"""The prompt encoder gives what whole-text tokenization gives, and tokenizes only what is new."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmirage_shared import tokens as tokens_module
from llmirage_shared.prompt_encoder import (
    SPECIAL_TOKENS,
    EmbeddedTemplate,
    PlainTemplate,
    PromptEncoder,
    SegmentCache,
    entry_bytes,
)
from llmirage_shared.synthetic_text import SyntheticText
from llmirage_shared.tokenizer_loader import embedded

pieces_of_text = st.one_of(
    st.text(max_size=20),
    st.sampled_from(SPECIAL_TOKENS),
    st.sampled_from([" ", "  ", "\n", "\n\n", "<|", "|>", "<|user", "你好", "😀", "\ud800", "it's", " word", "word"]),
)
content = st.lists(pieces_of_text, max_size=8).map("".join)
messages = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["system", "user", "assistant", "tool", "critic"]), "content": content}),
    max_size=6,
)
encoder = PromptEncoder(embedded(), EmbeddedTemplate())  # shared by the examples, so that the cache is warm and mixed


@given(messages)
def test_a_conversation_is_encoded_as_its_whole_text(conversation: list[dict[str, str]]) -> None:
    text = encoder.render(conversation)
    for _ in range(2):
        assert encoder.encode(text).tolist() == embedded().encode(text).tolist()
    assert encoder.encode_chat(conversation).tolist() == embedded().encode(text).tolist()


@given(content)
def test_any_text_is_encoded_as_a_whole(text: str) -> None:
    assert (
        PromptEncoder(embedded(), EmbeddedTemplate(), cache_bytes=500).encode(text).tolist()
        == embedded().encode(text).tolist()
    )


def conversation_of(turns: int) -> list[dict[str, str]]:
    text = SyntheticText(embedded(), seed=1)
    return [{"role": "user" if i % 2 == 0 else "assistant", "content": text.text(i, 200)} for i in range(turns)]


def test_a_growing_conversation_costs_only_its_new_messages() -> None:
    encoder = PromptEncoder(embedded(), EmbeddedTemplate())
    conversation = conversation_of(12)
    encoder.encode_chat(conversation[:11])
    text = encoder.render(conversation)
    assert encoder.uncached_characters(text) == len(conversation[11]["content"])
    encoder.encode(text)
    assert encoder.uncached_characters(text) == 0
    assert encoder.uncached_characters(encoder.render(conversation[:3])) == 0


def test_one_growing_message_costs_its_end_only() -> None:
    encoder = PromptEncoder(embedded(), EmbeddedTemplate())
    long = SyntheticText(embedded(), seed=2).text(1, 20_000)
    encoder.encode(long)
    assert encoder.uncached_characters(long + " and more") < 10_000


def test_the_reply_is_its_own_segment_of_the_next_prompt() -> None:
    tokenizer = embedded()
    encoder = PromptEncoder(tokenizer, EmbeddedTemplate())
    conversation = conversation_of(2)
    first = encoder.encode_chat(conversation[:1]).tolist()
    reply = tokenizer.encode(conversation[1]["content"]).tolist()
    following = encoder.encode_chat([*conversation, {"role": "user", "content": "go on"}]).tolist()
    assert following[: len(first) + len(reply) + 1] == [*first, *reply, tokenizer.end_id]


def test_the_cache_forgets_what_was_used_longest_ago() -> None:
    tokenizer = embedded()
    one, two, three = ("one two three", "four five six", "ten two six")
    assert [len(tokenizer.encode(text)) for text in (one, two, three)] == [3, 3, 3]
    encoder = PromptEncoder(tokenizer, EmbeddedTemplate(), cache_bytes=2 * entry_bytes(one, tokenizer.encode(one)) + 9)
    encoder.encode(one)
    encoder.encode(two)
    encoder.encode(one)
    encoder.encode(three)  # two goes
    assert encoder.uncached_characters(one) == 0
    assert encoder.uncached_characters(two) == len(two)
    assert encoder.uncached_characters(three) == 0


def test_a_segment_larger_than_the_cache_evicts_nothing() -> None:
    cache = SegmentCache(most_bytes=entry_bytes("a b", embedded().encode("a b")))
    tokenizer = embedded()
    cache.put("a b", tokenizer.encode("a b"))
    cache.put("a b c d e f", tokenizer.encode("a b c d e f"))
    assert "a b" in cache
    assert "a b c d e f" not in cache


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 12))))
def test_the_cache_counts_its_bytes(actions: list[tuple[bool, int]]) -> None:
    cache = SegmentCache(most_bytes=2000)
    held: dict[str, int] = {}
    for reads, size in actions:
        name = "x" * size
        if reads:
            assert (cache.get(name) is None) == (name not in cache)
        else:
            cache.put(name, embedded().encode(" a" * size))
        held[name] = size
        assert cache.bytes_kept() == sum(
            entry_bytes(key, embedded().encode(" a" * tokens)) for key, tokens in held.items() if key in cache
        )
        assert cache.bytes_kept() <= 2000


def test_the_encoder_is_safe_between_threads() -> None:
    encoder = PromptEncoder(embedded(), EmbeddedTemplate(), cache_bytes=20_000)
    text = SyntheticText(embedded(), seed=3)
    prompts = [text.text(i, 60) for i in range(20)]
    expected = [embedded().encode(prompt).tolist() for prompt in prompts]
    wrong: list[int] = []

    def work() -> None:
        for _ in range(5):
            for i, prompt in enumerate(prompts):
                if encoder.encode(prompt).tolist() != expected[i]:
                    wrong.append(i)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_encoded_prompts_cannot_be_written_to() -> None:
    ids = encoder.encode("shared words")
    assert not ids.flags.writeable


@given(st.text(alphabet="ab \n.é漢😀1", min_size=1, max_size=400), st.integers(1, 60), st.integers(7, 40))
def test_what_is_said_to_be_beyond_a_window_is(text: str, most: int, piece: int) -> None:
    encoder = PromptEncoder(embedded(), EmbeddedTemplate())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokens_module, "_PIECE_CHARACTERS", piece)
        found = encoder.tokenizer.tokens_beyond(text, most)
    if found is not None:
        assert most < found <= len(embedded().encode(text))


def test_a_text_far_beyond_a_window_is_not_read_to_its_end() -> None:
    encoder = PromptEncoder(embedded(), EmbeddedTemplate())
    text = SyntheticText(embedded(), seed=3).text(0, 40_000)
    found = encoder.tokenizer.tokens_beyond(text, 1000)
    assert found is not None
    assert 1000 < found < 20_000
    assert encoder.tokenizer.tokens_beyond(text, 50_000) is None
    assert encoder.tokenizer.tokens_beyond(text[:3000], 1000) is None


def test_a_remembered_text_is_not_tokenized_again() -> None:
    ids, pieces = SyntheticText(embedded(), seed=1).ids_and_pieces(7, 300)
    reply = "".join(pieces)
    talk = [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": reply},
        {"role": "user", "content": "Go on"},
    ]
    fresh = PromptEncoder(embedded(), EmbeddedTemplate())
    fresh.encode_chat(talk[:1])
    fresh.remember(reply, ids)
    text = fresh.render(talk)
    assert fresh.uncached_characters(text) == len("Go on")
    assert fresh.encode(text).tolist() == embedded().encode(text).tolist()


def test_a_text_that_is_more_than_one_segment_is_not_remembered() -> None:
    """Its parts are what prompts are looked up by."""
    fresh = PromptEncoder(embedded(), EmbeddedTemplate())
    for text in ("a <|user|> b", "", "word " * 4000):
        fresh.remember(text, embedded().encode(text))
        assert fresh.uncached_characters(text + "x") >= len(text.replace("<|user|>", ""))


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
