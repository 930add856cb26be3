"""POST /v1/completions, /v1/models and /health."""

import json
import logging
import math
from collections.abc import AsyncIterator
from typing import Any

import pytest

MODEL = "Qwen/Qwen3-30B-A3B-Instruct-2507"


def test_the_object_has_every_required_key_and_sixteen_tokens_by_default(api: Any) -> None:
    body = api.complete("Explain at length how a harbour works, from the morning to the evening").json()
    assert set(body) == {"id", "object", "created", "model", "choices", "usage", "system_fingerprint"}
    assert body["id"].startswith("cmpl-")
    assert body["object"] == "text_completion"
    [choice] = body["choices"]
    assert (choice["index"], choice["logprobs"], choice["finish_reason"]) == (0, None, "length")
    assert body["usage"]["completion_tokens"] == 16


def test_token_ids_of_any_vocabulary_are_a_prompt(make_api: Any) -> None:
    api = make_api(instances=1, lenient=True)
    ids = [7, 200_000, 2**31 - 1, 5, 5]
    assert api.complete(ids, max_tokens=2).json()["usage"]["prompt_tokens"] == 5
    again = api.complete([*ids, 6], max_tokens=2).json()["usage"]
    assert again["prompt_tokens"] == 6
    assert again["prompt_tokens_details"]["cached_tokens"] == 5


def test_several_prompts_give_prompt_major_choices(api: Any) -> None:
    single = [api.complete(p, n=2, max_tokens=4).json() for p in ([5], [9, 9, 9])]
    both = api.complete([[5], [9, 9, 9]], n=2, max_tokens=4).json()
    assert [choice["index"] for choice in both["choices"]] == [0, 1, 2, 3]
    assert [c["text"] for c in both["choices"]] == [c["text"] for body in single for c in body["choices"]]
    assert both["usage"]["prompt_tokens"] == sum(body["usage"]["prompt_tokens"] for body in single)
    assert both["usage"]["completion_tokens"] == 16


@pytest.mark.parametrize("stream", [False, True])
def test_echo_puts_the_prompt_before_the_reply(api: Any, stream: bool) -> None:
    plain = api.complete("Once upon", max_tokens=5).json()["choices"][0]["text"]
    response = api.complete("Once upon", max_tokens=5, echo=True, stream=stream)
    if stream:
        data = [json.loads(line[6:]) for line in response.text.split("\n") if line and line != "data: [DONE]"]
        assert "".join(chunk["choices"][0]["text"] for chunk in data) == "Once upon" + plain
    else:
        assert response.json()["choices"][0]["text"] == "Once upon" + plain


def test_the_stream_has_one_chunk_a_token_and_ends_with_the_reason(api: Any) -> None:
    response = api.complete("Once upon", max_tokens=5, stream=True, stream_options={"include_usage": True})
    *lines, done = [line for line in response.text.split("\n") if line]
    assert done == "data: [DONE]"
    *chunks, usage = [json.loads(line[6:]) for line in lines]
    assert len(chunks) == 5
    for chunk in chunks:
        assert set(chunk["choices"][0]) == {"index", "text", "logprobs", "finish_reason"}
        assert chunk["object"] == "text_completion"
        assert chunk["usage"] is None
        assert chunk["choices"][0]["text"]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * 4 + ["length"]
    assert (usage["choices"], usage["usage"]["completion_tokens"]) == ([], 5)


def test_the_model_list_and_one_model(api: Any) -> None:
    listed = api.request("GET", "/v1/models").json()
    assert listed["object"] == "list"
    [card] = listed["data"]
    assert (card["id"], card["object"], card["owned_by"]) == (MODEL, "model", "llmirage")
    assert card["max_model_len"] == 262_144
    assert api.request("GET", f"/v1/models/{MODEL}").json() == card
    assert api.request("HEAD", "/v1/models").status_code == 200


def test_health_is_up(api: Any) -> None:
    assert api.request("GET", "/health").status_code == 200


def test_served_names_are_listed_and_echoed(make_api: Any) -> None:
    api = make_api(served_model_name=("alpha", "beta"))
    assert [card["id"] for card in api.request("GET", "/v1/models").json()["data"]] == ["alpha", "beta"]
    assert api.complete(model="beta").json()["model"] == "beta"


def test_any_name_is_answered_under_itself_with_one_warning(make_api: Any, caplog: pytest.LogCaptureFixture) -> None:
    api = make_api()
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert api.complete(model="gpt-99").json()["model"] == "gpt-99"
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        assert "'gpt-99'" in caplog.text
        assert "accept_models=served" in caplog.text
        assert api.complete(model="qwen3-30b-a3b-instruct-2507").status_code == 200  # another spelling of what is served
        assert len(caplog.records) == 1


def test_warnings_of_unknown_names_end(
    make_api: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("llmirage_server.service.models._REMEMBERED_NAMES", 3)
    api = make_api()
    for name in ("a", "b", "c", "d", "c"):
        assert api.complete(model=name).json()["model"] == name
    assert len(caplog.records) == 2
    assert "No further names" in caplog.records[-1].getMessage()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
        ("/v1/completions", {"prompt": "x"}),
        ("/v1/responses", {"input": "x"}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2}),
        ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": "x"}]}),
        ("/v1/embeddings", {"input": "x"}),
        ("/v1/moderations", {"input": "x"}),
        ("/v1/rerank", {"query": "x", "documents": ["y"]}),
        ("/tokenize", {"prompt": "x"}),
    ],
)
def test_every_endpoint_takes_any_name_or_only_the_served_ones(make_api: Any, path: str, body: dict[str, Any]) -> None:
    any_name, served = make_api(), make_api(accept_models="served")
    assert any_name.post(path, body | {"model": "gpt-99"}).status_code == 200
    refused = served.post(path, body | {"model": "gpt-99"})
    assert refused.status_code == 404
    assert "--set accept_models=served" in refused.json()["error"]["message"]
    assert any_name.post(path, body | {"model": ""}).status_code == 404


def test_a_model_can_be_retrieved_by_every_name_that_is_answered(make_api: Any) -> None:
    any_name, served = make_api(), make_api(accept_models="served")
    card = any_name.request("GET", "/v1/models/org/gpt-99").json()
    assert (card["id"], card["root"]) == ("org/gpt-99", MODEL)
    assert [card["id"] for card in any_name.request("GET", "/v1/models").json()["data"]] == [MODEL]
    assert served.request("GET", "/v1/models/org/gpt-99").status_code == 404
    assert any_name.request("GET", "/v1/models/").status_code == 404


def test_responses_carry_an_id_of_their_own_or_the_callers(api: Any) -> None:
    body = json.dumps({"model": MODEL, "prompt": "x", "max_tokens": 1}).encode()
    response = api.post("/v1/completions", body)
    assert response.headers["x-request-id"].startswith("req_")
    assert int(response.headers["openai-processing-ms"]) >= 0
    for stream in (False, True):
        mine = api.post(
            "/v1/completions",
            {"model": MODEL, "prompt": "x", "max_tokens": 1, "stream": stream},
            headers={"X-Request-Id": "mine-7"},
        )
        assert mine.headers["x-request-id"] == "mine-7"
    odd = api.post("/v1/completions", body, headers={"X-Request-Id": "a b"})
    assert odd.headers["x-request-id"].startswith("req_")


def test_a_body_may_come_in_pieces(api: Any) -> None:
    whole = json.dumps({"model": MODEL, "prompt": "x", "max_tokens": 1}).encode()

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(whole), 10):
            yield whole[start : start + 10]

    assert api.request("POST", "/v1/completions", content=pieces()).json()["usage"]["completion_tokens"] == 1


def test_browsers_may_call(api: Any) -> None:
    preflight = api.request(
        "OPTIONS",
        "/v1/chat/completions",
        headers={
            "Origin": "http://127.0.0.1:5173",
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "authorization,content-type",
        },
    )
    assert preflight.status_code == 200
    assert preflight.headers["access-control-allow-origin"] == "http://127.0.0.1:5173"
    assert preflight.headers["access-control-allow-headers"] == "authorization,content-type"
    answered = api.request("GET", "/v1/models", headers={"Origin": "http://127.0.0.1:5173"})
    assert answered.headers["access-control-allow-origin"] == "http://127.0.0.1:5173"


def test_requests_of_one_session_stay_on_one_instance_whatever_names_it(make_api: Any) -> None:
    api = make_api(router="session", instances=4, lenient=True)

    def cached(number: int, headers: dict[str, str], **fields: Any) -> int:
        prompt = [number] * 50
        body = {"model": MODEL, "prompt": prompt, "max_tokens": 1} | fields
        for _ in range(3):
            usage = api.post("/v1/completions", body, headers=headers).json()["usage"]
        tokens = usage["prompt_tokens_details"]["cached_tokens"]
        assert isinstance(tokens, int)
        return tokens

    assert cached(1, {"X-Session-Affinity": "a"}) == 49
    assert cached(2, {"X-Correlation-ID": "b"}) == 49
    assert cached(3, {}, prompt_cache_key="c") == 49
    assert cached(4, {}, user="d") == 49
    assert cached(5, {"X-Session-Affinity": "a", "X-Correlation-ID": "changes"}, user="e") == 49
    assert cached(7, {"X-SMG-Routing-Key": "g"}) == cached(8, {"X-Dynamo-Session-ID": "h", "X-Correlation-ID": "x"}) == 49
    assert cached(6, {}) == 0  # no key: four instances take turns


CLASSES = (("batch", 5), ("Käse", -2))


@pytest.mark.parametrize(
    ("headers", "fields", "priority"),
    [
        ({"X-Gateway-Inference-Objective": "batch"}, {}, 5),
        ({"X-LLM-D-Inference-Objective": "K%C3%A4se"}, {}, -2),
        ({"X-Gateway-Inference-Objective": "batch"}, {"priority": 3}, 3),
        ({"X-Gateway-Inference-Objective": "unknown"}, {}, 0),
        ({}, {}, 0),
    ],
)
@pytest.mark.parametrize("policy", ["priority", "fcfs"])
def test_a_class_that_a_gateway_names_has_its_priority(
    make_api: Any, headers: dict[str, str], fields: dict[str, int], priority: int, policy: str
) -> None:
    api = make_api(schedule_policy=policy, class_priorities=CLASSES if policy == "priority" else ())
    service, found = api.app.service, list[int]()
    made = service.new_request
    service.new_request = lambda *given, **more: (found.append(more["priority"]), made(*given, **more))[1]
    answer = api.post("/v1/completions", {"model": MODEL, "prompt": "Hi", "max_tokens": 1} | fields, headers=headers)
    if policy == "fcfs":
        assert (answer.status_code, found) == ((400, []) if fields else (200, [0]))
    else:
        assert (answer.status_code, found) == (200, [priority])


@pytest.mark.parametrize(
    ("header", "value", "router", "slo_s", "said"),
    [
        ("X-SLO-TTFT-MS", "250", "llm-d:predicted-latency", 0.25, ""),
        ("X-LLM-D-SLO-TTFT-MS", "0.5", "llm-d:latency=2,queue", 0.0005, ""),
        ("X-SLO-TTFT-MS", "soon", "llm-d:predicted-latency", math.inf, ""),
        ("X-SLO-TTFT-MS", "250", "least_loaded", 0.25, "TTFT objectives in x-llm-d-slo-ttft-ms: only the router"),
        ("X-SLO-TPOT-MS", "25", "llm-d:predicted-latency", math.inf, "TPOT objectives in x-llm-d-slo-tpot-ms: nothing here"),
    ],
)
def test_an_objective_reaches_the_router_or_the_log_says_that_none_reads_it(
    make_api: Any, caplog: pytest.LogCaptureFixture, header: str, value: str, router: str, slo_s: float, said: str
) -> None:
    api = make_api(router=router)
    service, made = api.app.service, list[Any]()
    new_request = service.new_request
    service.new_request = lambda *given, **more: (made.append(new_request(*given, **more)), made[-1])[1]
    for _ in range(2):
        answer = api.post("/v1/completions", {"model": MODEL, "prompt": "Hi", "max_tokens": 1}, headers={header: value})
        assert answer.status_code == 200
    assert [request.slo_ttft_s for request in made] == [slo_s] * 2
    assert [said in record.getMessage() for record in caplog.records] == [True] * bool(said)
