"""JSON of many bytes is read and written in pieces, as if it were read and written at once."""

import base64
import contextlib
import gc
import json
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmirage_server.http import bodies, json_pieces
from llmirage_server.state.state import written
from llmirage_shared import tokenizer_loader
from llmirage_shared.texts import joined
from llmirage_shared.wire import refusals
from llmirage_shared.wire.chat import read_ids
from llmirage_shared.wire.errors import ApiError

PIECE = bodies.PIECE_BYTES
# Parts of a JSON text between its quotes: each takes some bytes that must not be torn apart.
PARTS = st.sampled_from(
    ["a", "some words ", "\\n", '\\"', "\\\\", "\\u017c", "\\ud83d\\ude00", "\\ud83d", "ż", "\U0001f600", "{[:,"]
)


def read(body: bytes) -> Any:
    return bodies.decoded(body, lambda rest: json.JSONDecoder().decode)


@given(st.lists(PARTS, min_size=1, max_size=12), st.integers(0, 7), st.booleans())
def test_a_long_text_is_read_as_by_a_decoder(parts: list[str], shift: int, as_name: bool) -> None:
    text = "".join(parts)
    long = "x" * shift + text * (3 * PIECE // len(text.encode()))
    body = f'{{"{long}":[1,"a\\"b"],"b":["{long}",{{"c":"{long}"}}]}}' if as_name else f'["{long}","\\\\",{{"a":"{long}"}}]'
    expected = json.loads(body)
    assert (
        bodies.json_object(body.encode()) == _joined(expected)
        if as_name
        else _joined(read(body.encode())) == _joined(expected)
    )


def _joined(value: Any) -> Any:
    """Halves of a pair of surrogates that stand beside each other are the character, others U+FFFD."""
    return bodies.changed(value, lambda text: text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ('{"a":"%s' % ("x" * 3 * PIECE), "Unterminated string starting at near character 5"),
        ('{"a":"%s"' % ("x" * 3 * PIECE), f"Expecting ',' delimiter near character {3 * PIECE + 7}"),
        ('{"a":"%s","b":}' % ("x" * 3 * PIECE), f"Expecting value near character {3 * PIECE + 12}"),
        ('{"a":"%s\n"}' % ("x" * 3 * PIECE), "Invalid control character at near character"),
        ('{"a":"%s\\x"}' % ("x" * 3 * PIECE), "Invalid \\escape"),
        ('{"a":"%s\\u12"}' % ("x" * 3 * PIECE), "Invalid \\uXXXX escape"),
        ('{"a":\\"%s"}' % ("x" * 3 * PIECE), "Expecting value near character 5"),
        ('{"a":%s}' % ("1" * 3 * PIECE), "Exceeds the limit (4300 digits)"),
        ('{"a":1.%s}' % ("1" * 3 * PIECE), f"Expecting ',' delimiter near character {PIECE}"),
        ('{"a":1%s2}' % (" " * 3 * PIECE), f"Expecting ',' delimiter near character {3 * PIECE + 6}"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_large_body_is_said(body: str, said: str) -> None:
    with pytest.raises(ApiError) as raised:
        bodies.json_object(body.encode())
    assert raised.value.status == 400
    assert said in raised.value.message


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(-9, 9) | st.text('ab,:{}[]"\\\né😀', max_size=9),
    lambda inner: st.lists(inner, max_size=9) | st.dictionaries(st.text("a[,", max_size=2), inner, max_size=4),
    max_leaves=30,
)


@given(VALUES, st.booleans(), st.integers(1, 40), st.integers(0, 300), st.sampled_from('"[]{},:x\\ \n'), st.booleans())
def test_a_large_body_is_decoded_in_pieces_as_at_once(
    value: Any, is_spaced: bool, at_once: int, place: int, other: str, is_wrong: bool
) -> None:
    text = json.dumps({"a": value, "b": [1] * 30}, ensure_ascii=False, separators=None if is_spaced else (",", ":"))
    if is_wrong:
        text = text[: place % len(text)] + other + text[place % len(text) + 1 :]
    with pytest.MonkeyPatch.context() as patch:
        expected = outcome(text)
        patch.setattr(bodies, "_SLICE_BYTES", 1)
        patch.setattr(bodies, "_AT_ONCE", at_once)
        assert outcome(text) == expected


def outcome(text: str) -> Any:
    try:
        return bodies._decoder(text.encode())(text)
    except json.JSONDecodeError as error:
        return error.pos


@pytest.mark.parametrize("wide", ["\U0001f600", "\\ud83d\\ude00"])
@pytest.mark.parametrize("parts", [1, 2_000])
def test_a_character_that_makes_others_four_times_as_large_is_refused(wide: str, parts: int) -> None:
    text = "some words " * (12_000_000 // 11 // parts)
    texts = f'"{text}",' * (parts - 1) + f'"{text}{wide}"'
    body = f'{{"image":"{"A" * 12_000_000}","a":[{texts}]}}'
    with pytest.raises(ApiError, match="would take"):
        bodies.json_object(body.encode())
    assert bodies.json_object(body.replace(text, "").encode())["image"]


@given(st.lists(st.integers(0, 3 * PIECE), min_size=5, max_size=5))
def test_space_between_values_is_left_out(counts: list[int]) -> None:
    parts = [b"", b'{"a b":', b"[1, true,", b'"  \\" ",{}', b"]}"]
    body = b"".join([b" \n\t\r"[count % 4 :][:1] * count + part for count, part in zip(counts, parts, strict=True)])
    assert bodies.json_object(body) == {"a b": [1, True, '  " ', {}]}


def test_a_large_body_that_is_no_utf_8_is_refused() -> None:
    with pytest.raises(ApiError, match="not UTF-8"):
        bodies.json_object(b'{"a":"' + b"x" * 3 * PIECE + b'\xff"}')


@pytest.mark.parametrize(
    "value",
    [
        {}, [], {"a": {}, "b": []}, None, "a", {"a": "ż" * 400_000, "b": ['"\\\n' * 100_000, {"c": 1}]},
        list(range(5_000)), [1, "a", 2.5, None, [True]], [[1] * 3_000] * 40, {"a\n": [{"b": "c"}] * 2_000},
    ],
)  # fmt: skip
def test_a_large_value_is_written_as_by_an_encoder(value: Any) -> None:
    pieces = json_pieces.written(value)
    assert b"".join(pieces) == json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    assert max(map(len, pieces)) < 1_000_000


def test_vectors_are_written_with_all_their_decimals() -> None:
    vectors = np.round(np.random.default_rng(1).standard_normal((5, 40)), 8)
    vectors[0, :4] = [0.0, -0.0, 1.0, -0.00000001]
    rows = list(json_pieces.written_vectors(vectors, 8))
    assert rows[0].startswith(b"[0.00000000,0.00000000,1.00000000,-0.00000001,")
    assert [json.loads(row) for row in rows] == vectors.tolist()


@pytest.mark.parametrize(
    ("work", "most"),
    [
        (lambda: bodies.json_object(b'{"a":"' + b"\\n\\t" * (7 << 20) + b'"}'), 0.5),
        (lambda: bodies.json_object('{"a":"%s"}'.replace("%s", "żó" * (7 << 20)).encode()), 0.5),
        (lambda: json_pieces.written({"a": "\n\t" * (7 << 20)}), 0.5),
        (lambda: written({"a": "\n\t" * (7 << 20)}), 0.5),
        (lambda: bodies.json_object(b'{"a":[%s]}' % b",".join([b"9" * 4_000] * 4_000)), 0.5),
        (lambda: bodies.json_object(b" " * (28 << 20) + b"{}" + b" " * (28 << 20)), 0.5),
        (lambda: bodies.json_object(b'{"a":[%s]}' % b",".join([b'"%s"' % (b"\\n\\t" * 10)] * 500_000)), 0.1),
        (lambda: bodies.json_object(b'{"a":{%s}}' % b",".join([b'"%d":1' % place for place in range(110_000)])), 0.07),
        (lambda: joined(["some words"] * (1 << 20)), 0.5),
        (lambda: read_ids([1000] * 550_000, "prompt"), 0.4),
        (lambda: tokenizer_loader.embedded().decode([1000] * 550_000), 0.4),
    ],
)  # fmt: skip
def test_others_run_while_much_is_read_or_written(work: Callable[[], object], most: float) -> None:
    """The longest time of the process between two steps of another thread is a small part of the whole."""
    longest, over = 0.0, threading.Event()

    def other() -> None:
        nonlocal longest
        last_s = time.process_time()
        while not over.wait(0.001):
            now_s = time.process_time()
            longest, last_s = max(longest, now_s - last_s), now_s

    thread = threading.Thread(target=other)
    gc.freeze()  # a collection would walk what other tests have left
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(0.001)
    begun_s = time.thread_time()
    thread.start()
    work()
    over.set()
    thread.join()
    sys.setswitchinterval(interval_s)
    gc.unfreeze()
    assert longest < most * (time.thread_time() - begun_s)


def test_names_of_a_large_object_have_their_last_values_in_the_order_of_their_first() -> None:
    body = "{" + ",".join([f'"{place % 60_000}":{place}' for place in range(100_000)]) + "}"
    assert list(bodies.json_object(body.encode()).items()) == list(json.loads(body).items())


def test_many_escapes_are_read_as_by_a_decoder() -> None:
    body = {"a": ['"\n\\ż\U0001f600'] * 60_000, "b": {"c": [1.5, -3, True, None, {}, []]}}
    assert bodies.json_object(json.dumps(body).encode()) == body
    for wrong in (
        b'{"a":["%s" "b"]}',
        b'{"a":["%s",NaN]}',
        b'{"a":["%s",1e999]}',
        b'{"a":["%s\\x"]}',
        b'{"a":["%s"' + b"[" * 5_000,
    ):
        with pytest.raises(ApiError) as raised:
            bodies.json_object(wrong % b'","'.join([b"\\n" * 10] * 30_000))
        assert raised.value.status == 400


@pytest.mark.parametrize("more", range(3))
@pytest.mark.parametrize("wrong", [None, 0, 500_000, -5])
def test_a_long_image_is_base64_or_refused(more: int, wrong: int | None) -> None:
    data = bytearray(base64.b64encode(b"x" * (6 << 16) * 2 + b"y" * more))
    if wrong is not None:
        data[wrong] = ord("-")
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data.decode()}"}}
    with pytest.raises(ApiError, match="an invalid base64-encoded value") if wrong is not None else contextlib.nullcontext():
        refusals.check_chat_parts([image], "messages[0].content")
