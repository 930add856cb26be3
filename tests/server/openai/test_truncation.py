"""`truncation: "auto"`: the oldest items of a conversation give way, as few as needed, and never the newest."""

from typing import Any

import pytest

MODEL_LEN = 300
TOOL = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}


@pytest.fixture
def small(make_api: Any) -> Any:
    return make_api(max_model_len=MODEL_LEN)


def respond(api: Any, given: Any, **fields: Any) -> Any:
    return api.post("/v1/responses", {"model": "m", "input": given, "max_output_tokens": 30, **fields})


def test_a_conversation_over_previous_response_id_stays_within_the_window(small: Any) -> None:
    before: dict[str, Any] = {}
    counts = []
    for turn in range(8):
        response = respond(small, f"turn {turn} " + "word " * 60, truncation="auto", **before).json()
        assert response["error"] is None
        counts.append(response["usage"]["input_tokens"])
        before = {"previous_response_id": response["id"]}
    assert max(counts) <= MODEL_LEN - 30
    assert min(counts[2:]) > MODEL_LEN - 30 - 100  # one turn has less than 100: no more went than had to
    refused = respond(small, "word " * 150, **before)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "context_length_exceeded")


def test_the_newest_input_is_never_left_out(small: Any) -> None:
    first = respond(small, "word " * 200).json()
    refused = respond(small, "word " * 400, truncation="auto", previous_response_id=first["id"])
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "context_length_exceeded")
    call = respond(small, "Call look. " + "word " * 100, tools=[TOOL]).json()
    [item] = call["output"]
    for words, status in ((150, 200), (400, 400)):
        output = {"type": "function_call_output", "call_id": item["call_id"], "output": "word " * words}
        answer = respond(small, [output], truncation="auto", previous_response_id=call["id"], tools=[TOOL])
        assert answer.status_code == status
        if status == 200:
            assert answer.json()["usage"]["input_tokens"] > words


def test_a_long_conversation_is_cut_with_few_looks(small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    await_tools = small.app.service.encode_chat
    looks = []

    async def counted(*args: Any, **fields: Any) -> Any:
        looks.append(len(args[1]))
        return await await_tools(*args, **fields)

    monkeypatch.setattr(small.app.service, "encode_chat", counted)
    items = [{"role": role, "content": f"{turn} words"} for turn in range(500) for role in ("user", "assistant")]
    response = respond(small, [*items, {"role": "user", "content": "And now?"}], truncation="auto")
    assert response.status_code == 200
    assert 200 < response.json()["usage"]["input_tokens"] <= MODEL_LEN - 30
    assert len(looks) < 20
