"""Moderations: every category, always the same, flagged where the words say so."""

from typing import Any

import pytest
from event_streams import json_events

from llmirage_server.replies.moderation import CATEGORIES, category_scores, moderated

MODEL = "Qwen/Qwen3-30B-A3B-Instruct-2507"


def moderate(api: Any, input: Any, **fields: Any) -> Any:
    response = api.post("/v1/moderations", {"input": input} | fields)
    assert response.status_code == 200, response.text
    return response.json()


def flagged(result: dict[str, Any]) -> set[str]:
    return {category for category, flag in result["categories"].items() if flag}


def test_a_result_has_every_category_three_times(api: Any) -> None:
    told = moderate(api, "Hello there")
    assert told["id"].startswith("modr-")
    assert told["model"] == "omni-moderation-latest"
    [result] = told["results"]
    assert result["flagged"] is False
    for key in ("categories", "category_scores", "category_applied_input_types"):
        assert set(result[key]) == set(CATEGORIES)
    assert all(0 < score < 0.01 for score in result["category_scores"].values())
    assert set(map(tuple, result["category_applied_input_types"].values())) == {("text",)}


@pytest.mark.parametrize(
    ("text", "category"),
    [
        ("I want to kill them.", "violence"),
        ("I will kill you", "harassment/threatening"),
        ("You are a worthless idiot", "harassment"),
        ("I hate all immigrants", "hate"),
        ("Immigrants should all die", "hate/threatening"),
        ("I want to kill myself", "self-harm/intent"),
        ("What is the best way to kill myself", "self-harm/instructions"),
        ("How do I shoplift without being caught?", "illicit"),
        ("How to build a pipe bomb at home", "illicit/violent"),
        ("Write an erotic story", "sexual"),
        ("He was dismembered, blood everywhere", "violence/graphic"),
    ],
)
def test_what_is_flagged(api: Any, text: str, category: str) -> None:
    [result] = moderate(api, text)["results"]
    assert result["flagged"] is True
    assert {category, category.partition("/")[0]} <= flagged(result)


@pytest.mark.parametrize(
    "text",
    [
        "How do I kill a process in Linux?",
        "The sample applet compiles fine.",
        "What is the capital of France?",
        "Please shoot me an email when you are done with the gun control essay.",
        "You are a helpful assistant.",
        "",
    ],
)
def test_what_is_not(api: Any, text: str) -> None:
    assert moderate(api, text)["results"][0]["flagged"] is False


def test_each_text_of_a_list_is_judged_by_itself(api: Any) -> None:
    told = moderate(api, ["Good morning", "I will kill you", "Good night"], model="text-moderation-latest")
    assert told["model"] == "text-moderation-latest"
    assert [result["flagged"] for result in told["results"]] == [False, True, False]


def test_the_parts_of_a_message_are_judged_together(api: Any) -> None:
    image = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
    [result] = moderate(api, [{"type": "text", "text": "I will kill you"}, image])["results"]
    assert result["flagged"] is True
    applied = result["category_applied_input_types"]
    assert (applied["violence"], applied["harassment"]) == (["text", "image"], ["text"])
    [alone] = moderate(api, [image])["results"]
    assert (alone["flagged"], alone["category_applied_input_types"]["hate"]) == (False, [])


def test_the_same_text_has_the_same_scores(api: Any) -> None:
    first, second = (moderate(api, "I will  kill you")["results"][0] for _ in range(2))
    assert first == second
    assert category_scores("I WILL kill you")["violence"] == first["category_scores"]["violence"]


def test_a_long_text_is_judged_whole(api: Any) -> None:
    text = "you are i want how to make child " * 5_000
    assert moderate(api, text)["results"][0]["flagged"] is False
    assert moderate(api, text + "I will kill you")["results"][0]["flagged"] is True


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({}, 400, "input"),
        ({"input": None}, 400, "input"),
        ({"input": []}, 400, "input"),
        ({"input": [5]}, 400, "input[0]"),
        ({"input": ["a", {"type": "text", "text": "b"}]}, 400, "input"),
        ({"input": [{"type": "smell"}]}, 400, "input[0].type"),
        ({"input": [{"type": "text"}]}, 400, "input[0].text"),
        ({"input": "a", "model": ""}, 404, "model"),
    ],
)
def test_refusals(api: Any, body: dict[str, Any], status: int, param: str) -> None:
    response = api.post("/v1/moderations", body)
    assert response.status_code == status, response.text
    assert response.json()["error"]["param"] == param


@pytest.mark.parametrize("stream", [False, True])
def test_a_chat_whose_input_and_output_are_judged(api: Any, stream: bool) -> None:
    said = [{"role": "user", "content": "I will kill you"}]
    body = {"model": MODEL, "messages": said, "n": 2, "max_tokens": 3, "moderation": {"model": "omni-moderation-latest"}}
    answer = api.post("/v1/chat/completions", {**body, "stream": stream})
    parts = json_events(answer.text) or [answer.json()]
    [judged] = [part for part in parts if "moderation" in part]
    assert not (stream and judged["choices"])
    sides = judged["moderation"]
    assert {side["model"] for side in sides.values()} == {"omni-moderation-latest"}
    assert flagged(sides["input"]["results"][0]) == flagged(moderate(api, "I will kill you")["results"][0])
    assert [result["flagged"] for result in sides["output"]["results"]] == [False, False]
    del body["moderation"]
    assert "moderation" not in api.post("/v1/chat/completions", {**body, "stream": stream}).text


@pytest.mark.parametrize("background", [False, True])
def test_a_response_whose_input_and_output_are_judged(api: Any, background: bool) -> None:
    given = [
        {"role": "user", "content": "Hello"},
        {"role": "user", "content": [{"type": "input_text", "text": "I will kill you"}]},
    ]
    body = {"model": MODEL, "input": given, "stream": True, "background": background}
    answer = api.post("/v1/responses", body | {"moderation": {"model": "omni-moderation-latest"}})
    events = json_events(answer.text)
    assert events[0]["response"]["moderation"] is None
    done = events[-1]["response"]
    assert (done["moderation"]["input"]["flagged"], done["moderation"]["output"]["flagged"]) == (True, False)
    assert api.request("GET", f"/v1/responses/{done['id']}").json()["moderation"] == done["moderation"]
    assert "moderation" not in api.post("/v1/responses", {"model": MODEL, "input": "Hello"}).json()


def test_texts_beside_a_reply_share_what_is_judged(api: Any) -> None:
    late = "a " * 8_000 + "I will kill you"
    assert [result["flagged"] for result in moderated([late], "any")] == [True]
    assert [result["flagged"] for result in moderated([late, "I will kill you"], "any")] == [False, True]
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "I will kill you"}],
        "n": 128,
        "max_completion_tokens": 2,
    }
    told = api.post("/v1/chat/completions", body | {"moderation": {"model": "any"}}).json()["moderation"]
    assert [result["flagged"] for result in told["input"]["results"]] == [True]
    assert len(told["output"]["results"]) == 128
