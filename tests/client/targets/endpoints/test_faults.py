"""What goes wrong on the wire, over the APIs with events of their own."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from raw_replies import STREAM_END, STREAM_HEAD, MakeServer, chunk, closing, exchange_of, whole

from llmirage_client.measure.record import Exchange
from llmirage_client.targets.endpoints import EndpointName, endpoint_named
from llmirage_client.targets.target import Call


def event(value: dict[str, Any]) -> bytes:
    return chunk(f"event: {value['type']}\ndata: {json.dumps(value)}\n\n".encode())


WORD: dict[EndpointName, bytes] = {
    "responses": event({"type": "response.output_text.delta", "delta": "Hel", "sequence_number": 4}),
    "messages": event({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hel"}}),
}
LAST: dict[EndpointName, bytes] = {
    "responses": event({"type": "response.completed", "response": {"id": "r", "status": "completed", "output": []}}),
    "messages": event({"type": "message_stop"}),
}
BROKEN: dict[EndpointName, bytes] = {
    "responses": event({"type": "error", "code": "server_error", "message": "died", "param": None}),
    "messages": event({"type": "error", "error": {"type": "overloaded_error", "message": "died"}}),
}
APIS: list[EndpointName] = ["responses", "messages"]


@pytest.fixture
def exchange(raw_server: MakeServer) -> Callable[[EndpointName, bytes], Exchange]:
    """What becomes of a reply of these bytes, after which the server hangs up."""

    def of(api: EndpointName, reply: bytes) -> Exchange:
        endpoint = endpoint_named(api)
        return exchange_of(raw_server(closing(reply)), Call(endpoint.path, {}, new_reply=endpoint.new_reply, api=api))

    return of


@pytest.mark.parametrize("api", APIS)
def test_a_stream_is_whole_when_it_says_so_itself(exchange: Any, api: EndpointName) -> None:
    for ending in (STREAM_END, b""):  # a server that forgets the last chunk has said all it had to say
        found = exchange(api, STREAM_HEAD + WORD[api] + LAST[api] + ending)
        assert (found.error, found.text, found.streamed) == (None, "Hel", True)
        assert found.message == {"role": "assistant", "content": "Hel"}


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize(("ending", "kind"), [(STREAM_END, "stream_ended_early"), (b"", "connection_closed")])
def test_a_cut_stream_is_an_error_that_keeps_what_came(exchange: Any, api: EndpointName, ending: bytes, kind: str) -> None:
    found = exchange(api, STREAM_HEAD + WORD[api] + ending)
    assert found.error is not None
    assert (found.error.type, found.text, len(found.token_s)) == (kind, "Hel", 1)
    assert (found.message, found.items) == (None, None)


@pytest.mark.parametrize("api", APIS)
def test_an_error_within_the_stream_is_told_in_its_own_words(exchange: Any, api: EndpointName) -> None:
    found = exchange(api, STREAM_HEAD + WORD[api] + BROKEN[api] + STREAM_END)
    assert found.error is not None
    assert (found.error.type, found.error.message) == ("stream_error", "died")


@pytest.mark.parametrize("api", APIS)
def test_an_error_instead_of_a_stream_has_its_status(exchange: Any, api: EndpointName) -> None:
    body = b'{"type":"error","error":{"type":"rate_limit_error","message":"slow down"}}'
    found = exchange(api, whole(body, "429 Too Many Requests", more="Retry-After: 3\r\n"))
    assert found.error is not None
    assert (found.error.code, found.error.type, found.error.message) == (429, "http_error", "slow down")
    assert found.retry_after_s == 3.0


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("nonsense", [{}, {"choices": 1}, {"output": [None, {"type": 3}], "content": ["x", {}]}])
def test_a_body_of_another_api_is_an_empty_reply(exchange: Any, api: EndpointName, nonsense: dict[str, Any]) -> None:
    found = exchange(api, whole(json.dumps(nonsense).encode()))
    assert found.error is not None
    assert found.error.type == "empty_response"
