import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmirage_client.targets.endpoints.protocol import split_events


def whole(stream: bytes) -> list[str]:
    return split_events([(1.0, stream)]).data


def test_stamps_an_event_with_the_arrival_of_the_blank_line_that_ends_it() -> None:
    events = split_events([(1.0, b"data: a\n"), (2.0, b"\nda"), (3.0, b"ta: b\n\n"), (4.0, b"data: c\n\ndata: d\n\n")])
    assert events.data == ["a", "b", "c", "d"]
    assert events.stamps_s == [2.0, 3.0, 4.0, 4.0]


def test_skips_empty_segments_when_it_looks_for_the_arrival() -> None:
    assert split_events([(1.0, b""), (2.0, b"data: a\n\n"), (3.0, b"")]).stamps_s == [2.0]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_reads_every_kind_of_line_end(end: bytes) -> None:
    lines = [b"event: x", b"data: a", b"", b": ping", b"", b"data:b", b"data: c", b"", b""]
    assert whole(end.join(lines)) == ["a", "b\nc"]


def test_reads_a_stream_whose_line_ends_are_mixed() -> None:
    assert whole(b"data: a\r\n\r\ndata: b\n\ndata: c\r\rdata: d\r\n\ndata: e\n\r\n") == ["a", "b", "c", "d", "e"]


def test_takes_no_single_crlf_for_a_blank_line() -> None:
    assert whole(b"data: a\r\ndata: b\r\n\r\ndata: c\n\n") == ["a\nb", "c"]


def test_drops_a_byte_order_mark_and_keeps_the_stamps_right() -> None:
    events = split_events([(1.0, b"\xef\xbb"), (2.0, b"\xbfdata: a\n"), (3.0, b"\ndata: b\n\n")])
    assert events.data == ["a", "b"]
    assert events.stamps_s == [3.0, 3.0]


def test_takes_away_one_space_behind_the_colon_and_no_more() -> None:
    assert whole(b"data:  a\n\ndata:b\n\ndata\n\ndata: \n\n") == [" a", "b", "", ""]


def test_ignores_comments_ids_retries_and_extra_blank_lines() -> None:
    assert whole(b"\n\n\n: hello\n\nid: 7\nretry: 10\n\n\ndata: a\n\n\n\n") == ["a"]


def test_hands_back_the_event_that_was_cut_off() -> None:
    events = split_events([(1.0, b"data: a\n\ndata: [DO")])
    assert events.data == ["a"]
    assert events.rest == "[DO"
    assert split_events([(1.0, b"data: a\n\n")]).rest is None
    assert split_events([]).data == []


def by_the_book(stream: bytes) -> list[str]:
    """The algorithm of the standard, character by character."""
    text = stream.decode().removeprefix("\ufeff")
    lines, line, at = [], "", 0
    while at < len(text):
        if text[at] in "\r\n":
            at += 2 if text[at : at + 2] == "\r\n" else 1
            lines.append(line)
            line = ""
        else:
            line += text[at]
            at += 1
    found, buffer = [], ""
    for line in lines:
        if not line:
            if buffer:
                found.append(buffer.removesuffix("\n"))
            buffer = ""
        elif not line.startswith(":"):
            name, _, value = line.partition(":")
            if name == "data":
                buffer += value.removeprefix(" ") + "\n"
    return found


PIECES = st.sampled_from(
    [
        "data: ",
        "data:",
        "data",
        "event: x",
        "event: y\ndata: ",
        "\n\nevent: z\ndata: a",
        ": ping",
        "\n",
        "\n",
        "\r\n",
        "\r",
        "a",
        " ",
        "é",
        "🙂",
        ":",
        "{",
    ]
)


@given(st.lists(PIECES, max_size=40), st.data())
def test_any_stream_cut_anywhere_gives_the_events_of_the_standard(pieces: list[str], data: st.DataObject) -> None:
    stream = "".join(pieces).encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    bounds = [0, *cuts, len(stream)]
    segments = [(float(i), stream[a:b]) for i, (a, b) in enumerate(pairwise(bounds))]
    events = split_events(segments)
    assert events.data == by_the_book(stream)
    assert events.stamps_s == sorted(events.stamps_s)


NAMES = st.sampled_from(["", "event: name"])


@given(st.lists(st.text(), min_size=1, max_size=5), st.sampled_from(["\n", "\r\n"]), NAMES, st.data())
def test_every_event_bears_the_arrival_of_its_last_byte(texts: list[str], end: str, name: str, data: st.DataObject) -> None:
    blocks = [f"{name}{name and end}data: {json.dumps(text)}{end}{end}".encode() for text in texts]
    stream = b"".join(blocks)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    bounds = [0, *cuts, len(stream)]
    segments = [(float(i), stream[a:b]) for i, (a, b) in enumerate(pairwise(bounds))]
    expected, last = [], -1
    for block in blocks:
        last += len(block)
        expected.append(next(float(i) for i, (a, b) in enumerate(pairwise(bounds)) if a <= last < b))
    assert split_events(segments).stamps_s == expected


@given(st.lists(st.text(), min_size=1, max_size=5), st.sampled_from(["\n", "\r\n", "\r"]), NAMES)
def test_the_plain_cases_and_the_general_one_agree(texts: list[str], end: str, name: str) -> None:
    plain = "".join([f"{name}{name and end}data: {json.dumps(text, ensure_ascii=False)}{end}{end}" for text in texts])
    assert split_events([(1.0, plain.encode("utf-8", "surrogatepass"))]).data == (
        split_events([(1.0, (": ping" + end + end + plain).encode("utf-8", "surrogatepass"))]).data
    )
