"""Streams are split into events where these end, however the bytes come."""

from hypothesis import given
from hypothesis import strategies as st

from llmirage_shared.wire.output import EventSplitter

EVENTS = [b"data: x\n\n", b"data: y\r\n\r\n", b"event: z\rdata: 1\r\r", b"data: w\n\r\n", b"data: v\r\n\n"]


@given(st.lists(st.sampled_from(EVENTS)), st.data())
def test_events_are_split_where_they_end_however_they_come(events: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(events) + b"data: unfinished"
    splitter, found, start = EventSplitter(), [], 0
    while start < len(stream):
        end = start + data.draw(st.integers(1, 12))
        found += splitter.feed(stream[start:end])
        start = end
    assert (found, splitter.rest) == (events, b"data: unfinished")
