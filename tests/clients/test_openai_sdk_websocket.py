"""openai-python's connections: events of every kind that it knows, continuation, lanes, errors, refused upgrades."""

import sys
from typing import Any

import pytest
from sdks import openai
from served import serving

pytest.importorskip("websockets")
pytestmark = pytest.mark.filterwarnings("ignore:connect.. must be used:DeprecationWarning")  # of websockets to openai-python

MODEL = "Qwen/Qwen3-30B-A3B-Instruct-2507"
END = ("response.completed", "response.incomplete", "response.failed", "error")
WEATHER: Any = {"type": "function", "name": "get_weather", "parameters": {"type": "object", "properties": {}}}


@pytest.fixture(autouse=True)
def _not_an_older_library() -> None:
    if not hasattr(openai.OpenAI(api_key="x").responses, "connect"):
        pytest.skip("an older library")


@pytest.fixture
def client(server_url: str) -> Any:
    return openai.OpenAI(base_url=server_url, api_key="sk-any")


def response(connection: Any, stream_id: str | None = None) -> Any:
    """The last event of a response."""
    for event in connection:
        if event.stream_id == stream_id and event.type in END:
            return event
    raise AssertionError("the connection ended")


@pytest.mark.skipif(sys.platform != "linux", reason="several processes need Linux")
def test_a_server_of_several_processes() -> None:
    with (
        serving("--workers", "2", "--ttft", "1", "--itl", "0") as url,
        openai.OpenAI(base_url=url, api_key="sk-any").responses.connect() as connection,
    ):
        connection.response.create(model=MODEL, input="Hello", max_output_tokens=16)
        assert response(connection).type in ("response.completed", "response.incomplete")


def test_a_conversation_with_a_tool(client: Any) -> None:
    with client.responses.connect() as connection:
        ask = {"model": MODEL, "store": False, "tools": [WEATHER]}
        connection.response.create(**ask, input="Weather?", tool_choice={"type": "function", "name": "get_weather"})
        first = response(connection).response
        [call] = [item for item in first.output if item.type == "function_call"]
        result = {"type": "function_call_output", "call_id": call.call_id, "output": "18 degrees"}
        connection.response.create(**ask, previous_response_id=first.id, input=[result])
        second = response(connection).response
        assert second.status == "completed"
        assert "18" in second.output_text


def test_two_lanes_and_a_warm_up(client: Any) -> None:
    with client.responses.connect() as connection:
        connection.response.create(model=MODEL, store=False, input="Read.", generate=False, stream_id="a")
        warm = response(connection, "a").response
        assert warm.output == []
        go = {"model": MODEL, "store": False, "input": "Go.", "previous_response_id": warm.id, "max_output_tokens": 16}
        connection.response.create(**go, stream_id="b")
        ended: set[str | None] = set()
        for event in connection:
            assert event.type != "error"
            if event.type == "response.in_progress" and event.stream_id == "b":  # it has what it continues from
                connection.response.create(**go, stream_id="a")
            ended |= {event.stream_id} if event.type in END else set()
            if len(ended) == 2:
                break
        assert ended == {"a", "b"}


def test_an_error_has_the_form_that_the_library_knows(client: Any) -> None:
    with client.responses.connect() as connection:
        connection.response.create(model=MODEL, store=False, input="Go.", previous_response_id="resp_none", stream_id="a")
        event = response(connection, "a")
        assert type(event).__name__ == "ResponseWsError"
        assert (event.status, event.error.code) == (400, "previous_response_not_found")


def test_a_refused_upgrade_is_an_error_with_its_status() -> None:
    with serving("--ttft", "1", "--set", "websocket_limit_s=0") as url:
        client = openai.OpenAI(base_url=url, api_key="sk-any")
        with pytest.raises(Exception, match="426"), client.responses.connect():
            pass
