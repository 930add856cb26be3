import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmirage_client.targets.endpoints.chat import ChatReply
from llmirage_client.targets.endpoints.protocol import ChunkModel


def event(delta: dict[str, Any], finish: str | None = None, index: int = 0, compact: bool = False, **more: Any) -> bytes:
    chunk = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m", **more}
    chunk["choices"] = [{"index": index, "delta": delta, "finish_reason": finish}]
    return (
        b"data: "
        + json.dumps(chunk, separators=(",", ":") if compact else None, ensure_ascii=not compact).encode()
        + b"\n\n"
    )


DONE = b"data: [DONE]\n\n"


def read(*pieces: bytes) -> ChatReply:
    """The reply of a stream whose i-th piece arrived at second i."""
    reply = ChatReply()
    reply.read_stream([(float(i), piece) for i, piece in enumerate(pieces)])
    return reply


def test_the_role_alone_is_no_token() -> None:
    reply = read(
        event({"role": "assistant", "content": ""}),
        event({"content": "Hi"}),
        event({"content": " you"}),
        event({}, "stop"),
        DONE,
    )
    assert reply.token_s == [1.0, 2.0]
    assert reply.first_output_s == 1.0
    assert reply.text == "Hi you"
    assert reply.finish_reason == "stop"
    assert reply.ended
    assert reply.message() == {"role": "assistant", "content": "Hi you"}
    assert reply.error is None


def test_reasoning_counts_as_tokens_but_not_as_output_and_stays_out_of_the_message() -> None:
    for key in ("reasoning_content", "reasoning"):
        reply = read(
            event({key: "hm"}),
            event({key: " so"}),
            event({"content": "4"}),
            event({"content": "2"}),
            event({}, "stop"),
            DONE,
        )
        assert reply.token_s == [0.0, 1.0, 2.0, 3.0]
        assert reply.first_output_s == 2.0
        assert (reply.reasoning, reply.text) == ("hm so", "42")
        assert reply.message() == {"role": "assistant", "content": "42"}


def test_a_reply_of_reasoning_alone_falls_back_to_it_in_the_message() -> None:
    reply = read(
        event({"reasoning_content": "hm", "content": ""}), event({"reasoning_content": "!"}), event({}, "stop"), DONE
    )
    assert reply.text == ""
    assert reply.first_output_s is None
    assert reply.message() == {"role": "assistant", "content": "hm!"}


def test_reassembles_tool_calls_and_leaves_their_index_out() -> None:
    reply = read(
        event({"role": "assistant", "content": None}),
        event({"tool_calls": [{"index": 0, "id": "a", "type": "function", "function": {"name": "look", "arguments": ""}}]}),
        event({"tool_calls": [{"index": 0, "function": {"arguments": '{"q"'}}]}),
        event({"tool_calls": [{"index": 1, "id": "b", "type": "function", "function": {"name": "add", "arguments": "{"}}]}),
        event(
            {"tool_calls": [{"index": 0, "function": {"arguments": ": 1}"}}, {"index": 1, "function": {"arguments": "}"}}]}
        ),
        event({}, "tool_calls"),
        DONE,
    )
    assert reply.token_s == [1.0, 2.0, 3.0, 4.0]
    assert reply.first_output_s == 1.0
    assert reply.message() == {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "look", "arguments": '{"q": 1}'}},
            {"id": "b", "type": "function", "function": {"name": "add", "arguments": "{}"}},
        ],
    }


def test_reasoning_never_stands_in_for_content_beside_tool_calls() -> None:
    call = {"index": 0, "id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    message = read(event({"reasoning": "hm"}), event({"tool_calls": [call]}), event({}, "tool_calls"), DONE).message()
    assert message is not None
    assert message["content"] is None


def test_a_legacy_function_call_becomes_a_tool_call() -> None:
    reply = read(
        event({"function_call": {"name": "f", "arguments": '{"a"'}}), event({"function_call": {"arguments": ": 2}"}}), DONE
    )
    assert reply.message() == {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "call_0", "type": "function", "function": {"name": "f", "arguments": '{"a": 2}'}}],
    }


def test_of_several_choices_the_first_is_the_history_and_all_are_tokens() -> None:
    reply = read(
        event({"content": "a"}),
        event({"content": "x"}, index=1),
        event({"content": "b"}),
        event({"content": "y"}, index=1),
        DONE,
    )
    assert reply.text == "ab"
    assert reply.token_s == [0.0, 1.0, 2.0, 3.0]


def test_keeps_the_last_usage_wherever_it_comes() -> None:
    usage = {"prompt_tokens": 3, "completion_tokens": 2}
    last = b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\n"
    reply = read(
        event({"content": "a"}, usage=None),
        event({"content": "b"}, usage={"completion_tokens": 1}),
        event({}, "stop"),
        last,
        DONE,
    )
    assert reply.usage == usage
    assert reply.text == "ab"


def test_reads_streamed_and_whole_text_completions() -> None:
    piece = b'data: {"choices": [{"index": 0, "text": "%b", "finish_reason": null}]}\n\n'
    reply = read(piece % b"one", piece % b" two", piece % b"", DONE)
    assert (reply.text, reply.token_s) == ("one two", [0.0, 1.0])
    whole = ChatReply()
    whole.read_body(
        5.0, b'{"choices": [{"index": 0, "text": "one two", "finish_reason": "length"}], "usage": {"prompt_tokens": 1}}'
    )
    assert (whole.text, whole.token_s, whole.first_output_s, whole.finish_reason) == ("one two", [5.0], 5.0, "length")
    assert whole.usage == {"prompt_tokens": 1}


def test_reads_a_whole_chat_reply_with_two_calls_that_have_no_index() -> None:
    calls = [{"id": i, "type": "function", "function": {"name": i, "arguments": "{}"}} for i in "ab"]
    body = {
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": None, "tool_calls": calls},
                "finish_reason": "tool_calls",
            }
        ]
    }
    reply = ChatReply()
    reply.read_body(1.0, json.dumps(body).encode())
    assert reply.message() == {"role": "assistant", "content": None, "tool_calls": calls}


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'"text"', b"\xff"])
def test_a_body_that_is_no_json_object_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        ChatReply().read_body(0.0, body)


def test_an_error_event_is_the_reply_s_error_and_the_text_before_it_is_kept() -> None:
    reply = read(
        event({"content": "a"}),
        b'data: {"error": {"message": "out of memory", "type": "server_error", "code": 503}}\n\n',
        DONE,
    )
    assert reply.text == "a"
    assert reply.error is not None
    assert (reply.error.code, reply.error.type, reply.error.message) == (503, "stream_error", "out of memory")


@pytest.mark.parametrize("bad", [b"data: {broken\n\n", b"data: 17\n\n", b"data: \xff\n\n", b'data: {"choices": "\xe4"}\n\n'])
def test_a_malformed_event_is_left_out_and_the_others_still_count(bad: bytes) -> None:
    reply = read(event({"content": "a"}), event({"content": "b"}), bad, event({"content": "c"}), DONE)
    assert reply.text == "abc"
    assert (reply.error, reply.skipped_events) == (None, 1)
    assert reply.malformed is not None
    assert reply.malformed.type == "malformed_stream"


@pytest.mark.parametrize(
    "chunk", [b"{}", b'{"choices": null}', b'{"choices": [null, 3, {}]}', b'{"choices": [{"delta": {"content": 3}}]}']
)
def test_events_of_unknown_shape_carry_nothing(chunk: bytes) -> None:
    reply = read(b"data: " + chunk + b"\n\n", DONE)
    assert (reply.token_s, reply.text, reply.error, reply.message()) == ([], "", None, None)


def test_a_last_event_without_its_blank_line_counts_when_it_is_complete() -> None:
    assert read(event({"content": "a"}), b"data: [DONE]").ended
    assert read(event({"content": "a"}), event({"content": "b"}).rstrip(b"\n")).text == "ab"
    cut = read(event({"content": "a"}), event({"content": "b"})[:-9])
    assert (cut.text, cut.error) == ("a", None)


def test_the_model_of_a_chunk_refuses_whatever_differs_outside_the_text() -> None:
    chunk = '{"id":"1","choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}'
    model = ChunkModel.of(chunk, "content")
    assert model is not None
    assert model.text_of(chunk.replace('"a"', '"b \\" \\n \\u00e9"')) == 'b " \n é'
    for other in (
        chunk.replace('"1"', '"2"'),
        chunk.replace("null", '"stop"'),
        chunk.replace('"a"', '"a","role":"assistant"'),
        chunk.replace('"a"', "null"),
        chunk.replace('"a"', '"a'),
        chunk.replace('"a"', '"a\t"'),
        chunk.replace('"a"', '"\\x"'),
    ):
        assert model.text_of(other) is None


def test_no_model_is_made_where_the_key_is_ambiguous() -> None:
    assert ChunkModel.of('{"content":"x","choices":[{"delta":{"content":"a"}}]}', "content") is None
    model = ChunkModel.of('{"id":"\\"content\\":\\"","choices":[{"delta":{"content":"a"}}]}', "content")
    assert model is not None
    assert model.text_of('{"id":"\\"content\\":\\"","choices":[{"delta":{"content":"b"}}]}') == "b"


TEXTS = st.text(st.characters(codec="utf-8") | st.sampled_from('"\\\n{}[]:,'), max_size=6)
DELTAS = st.one_of(
    st.fixed_dictionaries({"content": TEXTS}),
    st.fixed_dictionaries({"reasoning_content": TEXTS}),
    st.fixed_dictionaries({"content": TEXTS, "role": st.just("assistant")}),
    st.fixed_dictionaries({"content": st.none(), "reasoning": TEXTS}),
    st.fixed_dictionaries({"content": TEXTS, "tool_calls": st.just([])}),
    st.just({}),
)


@given(
    st.lists(
        st.tuples(DELTAS, st.sampled_from([0, 0, 0, 1]), st.sampled_from(["c1", '"content":"', 'a","content":"'])),
        max_size=12,
    ),
    st.booleans(),
    st.data(),
)
def test_any_stream_cut_anywhere_reads_as_parsing_each_event_does(
    chunks: list[tuple[dict[str, Any], int, str]], compact: bool, data: st.DataObject
) -> None:
    blocks = [event(delta, index=index, compact=compact, id=name) for delta, index, name in chunks]
    stream = b"".join(blocks) + DONE
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    segments = [(float(i), stream[a:b]) for i, (a, b) in enumerate(pairwise([0, *cuts, len(stream)]))]
    reply = ChatReply()
    reply.read_stream(segments)
    text = reasoning = ""
    tokens = 0
    for block in blocks:
        choice = json.loads(block[6:])["choices"][0]
        content, thought = (
            choice["delta"].get("content"),
            choice["delta"].get("reasoning_content") or choice["delta"].get("reasoning"),
        )
        tokens += bool(content or thought)
        if choice["index"] == 0:
            text += content or ""
            reasoning += thought or ""
    assert (reply.text, reply.reasoning, len(reply.token_s), reply.ended, reply.error) == (
        text,
        reasoning,
        tokens,
        True,
        None,
    )
