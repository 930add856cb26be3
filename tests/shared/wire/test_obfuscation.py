"""Padding as recorded streams of the OpenAI API have it: objects and deltas of multiples of 16 characters."""

import json

import pytest

from llmirage_shared.wire import output
from llmirage_shared.wire.output import CHAT_FORM, PlainWriter, ResponseHead, chunk_frame, event, stream_end, usage

HEAD = ResponseHead("chatcmpl-1", 1, "gemä", "fp_1")
PIECES = ["Hello", " there", ",", '"', "\n\n", "π", "", " internationalization", "end."]


def data_of(events: bytes) -> list[str]:
    return [line[6:] for line in events.decode().split("\n\n") if line and line != "data: [DONE]"]


def bare(line: str) -> str:
    """The object without the field."""
    at = line.rindex(',"obfuscation":"')
    return line[:at] + "}"


@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize("include_usage", [False, True])
@pytest.mark.parametrize("step", [1, 3, 9])
def test_chunks_are_padded_and_say_the_same(joined: bool, include_usage: bool, step: int) -> None:
    def stream(obfuscated: bool) -> list[str]:
        frame = chunk_frame(HEAD, "chat.completion.chunk", 0, include_usage, obfuscated)
        writer = PlainWriter(frame, CHAT_FORM, PIECES, "stop", None, joined=joined)
        tokens = b"".join([writer.tokens(at, min(at + step, len(PIECES))) for at in range(0, len(PIECES), step)])
        counted = (lambda: usage(3, 9, 0)) if include_usage else None
        return data_of(tokens + writer.ending() + stream_end(HEAD, "chat.completion.chunk", counted, obfuscated=obfuscated))

    plain, padded = stream(False), stream(True)
    assert [bare(line) for line in padded] == plain
    for line in padded:
        field = json.loads(line)["obfuscation"]
        assert len(field) < 16
        assert (len(bare(line)) + len(field)) % 16 == 0
    assert stream(True) == padded


def test_a_recorded_chunk_has_the_length_of_ours() -> None:
    recorded = {"id": "chatcmpl-CPpEy6iz6xHypBlhQAPfkhWuf92G1", "object": "chat.completion.chunk", "created": 1760271204,
                "model": "gpt-5-nano-2025-08-07", "service_tier": "default", "system_fingerprint": None,
                "choices": [{"index": 0, "delta": {"content": " on"}, "finish_reason": None}]}  # fmt: skip
    [line] = data_of(output.padded(event(recorded)))
    assert len(json.loads(line)["obfuscation"]) == 1
    assert len(line) == 273


RECORDED = [("{", 15), (' "', 14), ("location", 8), ('{"repoName":"dotnet/extensions"}', 0)]


@pytest.mark.parametrize(("delta", "length"), RECORDED)
def test_deltas_are_padded_by_their_own_length(delta: str, length: int) -> None:
    made = event({"type": "x", "delta": delta})
    padded = output.delta_padded(made, delta)
    assert len(json.loads(padded[6:])["obfuscation"]) == length
    assert output.without_padding(padded) == made
    assert output.without_padding(made) == made


def test_only_the_field_of_the_event_itself_is_left_out() -> None:
    made = event({"metadata": {"a": "b", "obfuscation": "x"}, "z": ',"obfuscation":"y"}\n\n'})
    assert output.without_padding(made) == made
