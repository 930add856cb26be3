"""The API at the paths of Azure and OpenRouter, and what is said at the paths of others."""

from typing import Any

import pytest
from event_streams import json_events

from llmirage_server.http.absent import ABSENT

MODEL = "Qwen/Qwen3-30B-A3B-Instruct-2507"
HELLO = [{"role": "user", "content": "Hello"}]
DATED = "api-version=2024-10-21"
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {}}}}
NO_SUCH_RESOURCE = {"error": {"code": "404", "message": "Resource not found"}}


def deployed(name: str, endpoint: str = "chat/completions", query: str = DATED) -> str:
    return f"/openai/deployments/{name}/{endpoint}?{query}"


def events(response: Any) -> list[dict[str, Any]]:
    assert response.status_code == 200, response.text
    return json_events(response.text)


# --- Azure --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gpt-4o", "my deployment", MODEL, "a/b/chat/completions"])
def test_the_deployment_is_the_model_whatever_the_body_says(api: Any, name: str) -> None:
    said = api.post(deployed(name), {"messages": HELLO, "max_tokens": 3, "model": "another"}).json()
    assert (said["model"], said["usage"]["completion_tokens"]) == (name, 3)
    assert api.post(deployed(name), {"messages": HELLO}).json()["model"] == name


def test_the_reply_is_that_of_openais_path(api: Any) -> None:
    body = {"model": MODEL, "messages": HELLO, "max_tokens": 9, "seed": 3}
    texts = [
        api.post(path, body).json()["choices"][0]["message"]["content"]
        for path in ("/v1/chat/completions", deployed(MODEL), "/openai/v1/chat/completions", "/api/v1/chat/completions")
    ]
    assert len(set(texts)) == 1


@pytest.mark.parametrize("query", ["", "api-version=", "api-version=latest", "api-version=2024", "version=2024-10-21"])
def test_without_a_dated_version_there_is_nothing(api: Any, query: str) -> None:
    for path in (deployed("gpt-4o", query=query), f"/openai/responses?{query}"):
        refused = api.post(path, {"messages": HELLO, "input": "Hello", "model": "gpt-4o"})
        assert (refused.status_code, refused.json()) == (404, NO_SUCH_RESOURCE)


@pytest.mark.parametrize(
    ("query", "status"), [("", 200), ("api-version=preview", 200), ("api-version=latest", 200), (DATED, 400)]
)
def test_the_v1_api_needs_no_version(api: Any, query: str, status: int) -> None:
    answer = api.post(f"/openai/v1/chat/completions?{query}", {"model": "gpt-4o", "messages": HELLO, "max_tokens": 2})
    assert answer.status_code == status
    if status == 400:
        assert answer.json() == {"error": {"code": "BadRequest", "message": "API version not supported"}}


def test_the_v1_api_has_no_deployments_in_its_paths(api: Any) -> None:
    refused = api.post("/openai/v1/deployments/gpt-4o/chat/completions?api-version=preview", {"messages": HELLO})
    assert refused.status_code == 404
    assert "use the client OpenAI" in refused.json()["error"]["message"]


def test_gateway_errors_have_a_code_and_a_message_and_others_are_the_models(make_api: Any) -> None:
    strict = make_api(accept_models="served", api_key=("secret",), rate_limit=2)
    key = {"api-key": "secret"}
    refused = strict.post(deployed("nobody"), {"messages": HELLO}, headers=key)
    assert refused.status_code == 404
    assert refused.json()["error"].keys() == {"code", "message"}
    assert refused.json()["error"]["code"] == "DeploymentNotFound"
    assert refused.json()["error"]["message"].startswith("The API deployment for this resource does not exist.")
    assert MODEL in refused.json()["error"]["message"]
    for headers in ({}, {"api-key": "wrong"}):
        refused = strict.post(deployed(MODEL), {"messages": HELLO}, headers=headers)
        assert (refused.status_code, refused.json()["error"]["code"]) == (401, "401")
    refused = strict.post(deployed(MODEL), {"messages": HELLO, "temperature": 9}, headers=key)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "temperature")
    for _ in range(2):
        assert strict.post(deployed(MODEL), {"messages": HELLO}, headers=key).status_code == 200
    refused = strict.post(deployed(MODEL), {"messages": HELLO}, headers=key)
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "429")
    assert int(refused.headers["retry-after"]) > 0


def test_a_whole_completion_has_the_verdicts_of_filters(api: Any) -> None:
    said = api.post(deployed("gpt-4o"), {"messages": HELLO, "n": 2, "max_tokens": 3}).json()
    [prompt] = said["prompt_filter_results"]
    assert prompt["content_filter_results"]["hate"] == {"filtered": False, "severity": "safe"}
    assert prompt["content_filter_results"]["jailbreak"] == {"filtered": False, "detected": False}
    assert [choice["content_filter_results"]["violence"]["severity"] for choice in said["choices"]] == ["safe"] * 2
    assert "content_filter" not in api.chat(max_tokens=3).text
    texts = api.post(deployed("gpt-4o", "completions"), {"prompt": ["a", "b"], "max_tokens": 2}).json()
    assert [result["prompt_index"] for result in texts["prompt_filter_results"]] == [0, 1]


@pytest.mark.parametrize(
    "more", [{}, {"logprobs": True}, {"n": 2}, {"stream_options": {"include_usage": True}}, {"reasoning_effort": "low"}]
)
def test_a_stream_begins_with_the_prompts_verdict_and_each_chunk_has_its_own(api: Any, more: dict[str, Any]) -> None:
    body = {"messages": HELLO, "max_tokens": 40, "stream": True, **more}
    first, *chunks = events(api.post(deployed("gpt-4o"), body))
    assert (first["choices"], first["id"], first["model"], first["object"]) == ([], "", "", "")
    assert first["prompt_filter_results"][0]["prompt_index"] == 0
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    for choice in choices:
        says = bool(choice["delta"].get("content"))
        assert (choice["content_filter_results"] != {}) == says
    assert any(choice["content_filter_results"] for choice in choices)
    plain = events(api.post("/v1/chat/completions", {**body, "model": "gpt-4o"}))
    assert [choice["delta"] for chunk in plain for choice in chunk["choices"]] == [choice["delta"] for choice in choices]


def test_chunks_of_tool_calls_have_an_empty_verdict(api: Any) -> None:
    body = {"messages": [{"role": "user", "content": "Use get_weather"}], "tools": [TOOL], "stream": True}
    _, *chunks = events(api.post(deployed("gpt-4o"), body))
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    assert any(choice["delta"].get("tool_calls") for choice in choices)
    assert all(choice["content_filter_results"] == {} for choice in choices)


def test_a_text_completion_is_streamed_with_verdicts(api: Any) -> None:
    body = {"prompt": ["a", "b"], "max_tokens": 3, "stream": True}
    first, *chunks = events(api.post(deployed("gpt-4o", "completions"), body))
    assert [result["prompt_index"] for result in first["prompt_filter_results"]] == [0, 1]
    assert all(choice["content_filter_results"]["hate"] for chunk in chunks for choice in chunk["choices"])


def test_what_is_stored_over_one_path_is_found_over_the_other(api: Any) -> None:
    made = api.post(f"/openai/responses?{DATED}", {"model": "gpt-4o", "input": "Hello"}).json()
    for path in (
        f"/openai/responses/{made['id']}?{DATED}",
        f"/openai/v1/responses/{made['id']}",
        f"/v1/responses/{made['id']}",
    ):
        assert api.request("GET", path).json()["output"] == made["output"]
    gone = api.request("GET", f"/openai/responses/resp_0?{DATED}")
    assert (gone.status_code, gone.json()["error"]["type"]) == (404, "invalid_request_error")


def test_the_journal_shows_the_path_that_was_asked_and_scripts_know_the_endpoint(make_api: Any, tmp_path: Any) -> None:
    script = tmp_path / "script.yaml"
    script.write_text("rules: [{when: {endpoint: chat, user: Hello}, reply: Scripted.}]")
    scripted = make_api(script=(str(script),))
    said = scripted.post(deployed("gpt-4o"), {"messages": HELLO}).json()
    assert said["choices"][0]["message"]["content"] == "Scripted."
    [entry] = scripted.app.journal.entries
    assert (entry.path, entry.model) == ("/openai/deployments/gpt-4o/chat/completions", "gpt-4o")


def test_faults_of_an_endpoint_meet_azures_requests_too(make_api: Any) -> None:
    api = make_api()
    api.post("/llmirage/faults", {"kind": "status", "status": 503, "endpoint": "chat"})
    refused = api.post(deployed("gpt-4o"), {"messages": HELLO})
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "503")


# --- OpenRouter ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "model"),
    [
        ({"model": "nobody", "models": ["no-one", MODEL, "x"]}, MODEL),
        ({"models": [MODEL, "nobody"]}, MODEL),
        ({"model": "openrouter/auto"}, MODEL),
        ({}, MODEL),
        ({"model": MODEL, "models": None, "route": "fallback"}, MODEL),
    ],
)
def test_the_first_model_that_is_served_answers(make_api: Any, fields: dict[str, Any], model: str) -> None:
    strict = make_api(accept_models="served")
    assert strict.post("/api/v1/chat/completions", {"messages": HELLO, "max_tokens": 2, **fields}).json()["model"] == model


def test_if_none_is_served_the_first_is_not_found(make_api: Any) -> None:
    refused = make_api(accept_models="served").post("/api/v1/chat/completions", {"messages": HELLO, "models": ["a/b", "c"]})
    assert refused.status_code == 404
    assert refused.json()["error"].keys() == {"code", "message"}
    assert refused.json()["error"]["code"] == 404
    assert "`a/b`" in refused.json()["error"]["message"]


def test_where_all_names_are_served_the_first_wins(api: Any) -> None:
    said = api.post("/api/v1/chat/completions", {"messages": HELLO, "models": ["a/b", "c/d"], "max_tokens": 2}).json()
    assert said["model"] == "a/b"


def test_what_only_openrouter_has_is_taken_there_and_refused_elsewhere(api: Any) -> None:
    body = {
        "model": MODEL, "messages": HELLO, "max_tokens": 3, "provider": {"order": ["OpenAI"], "allow_fallbacks": False},
        "transforms": ["middle-out"], "plugins": [{"id": "web"}], "usage": {"include": True}, "route": "fallback",
        "top_a": 0.5, "session_id": "s",
    }  # fmt: skip
    assert api.post("/api/v1/chat/completions", body).status_code == 200
    refused = api.post("/v1/chat/completions", body)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "unknown_parameter")
    refused = api.post("/api/v1/chat/completions", {**body, "made_up": 1})
    assert refused.json() == {"error": {"message": "Unknown parameter: 'made_up'.", "code": 400}}


@pytest.mark.parametrize("models", ["a", [1], {"a": 1}])
def test_wrong_lists_of_models_are_refused(api: Any, models: Any) -> None:
    refused = api.post("/api/v1/chat/completions", {"messages": HELLO, "models": models})
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, 400)


def test_streams_end_with_usage_without_being_asked(api: Any) -> None:
    *_, last = events(
        api.post("/api/v1/chat/completions", {"model": "a", "messages": HELLO, "stream": True, "max_tokens": 3})
    )
    assert last["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize(
    ("reasoning", "thinks", "shows"),
    [
        ({"effort": "low"}, True, True),
        ({"max_tokens": 2000}, True, True),
        ({"enabled": True, "exclude": True}, True, False),
        ({"enabled": False}, False, False),
        ({"effort": "none"}, False, False),
        ({}, False, False),
    ],
)
def test_reasoning_is_an_object(api: Any, reasoning: dict[str, Any], thinks: bool, shows: bool) -> None:
    said = api.post("/api/v1/chat/completions", {"model": "a", "messages": HELLO, "reasoning": reasoning}).json()
    assert bool(said["usage"]["completion_tokens_details"]["reasoning_tokens"]) == thinks
    assert bool(said["choices"][0]["message"].get("reasoning")) == shows


def test_its_list_of_models_has_prices_and_context_lengths(api: Any) -> None:
    listed = api.request("GET", "/api/v1/models").json()
    assert listed.keys() == {"data"}
    [card] = listed["data"]
    assert (card["id"], card["context_length"]) == (MODEL, 262144)
    assert float(card["pricing"]["prompt"]) == 0
    assert "tools" in card["supported_parameters"]


def test_messages_and_responses_are_below_its_prefix_too(make_api: Any) -> None:
    strict = make_api(accept_models="served")
    body = {"models": ["nobody", MODEL], "messages": HELLO, "max_tokens": 20}
    assert strict.post("/api/v1/messages", body).json()["model"] == MODEL
    said = strict.post("/api/v1/responses", {"models": ["nobody", MODEL], "input": "Hello", "provider": {}}).json()
    assert (said["model"], said["status"]) == (MODEL, "completed")


# --- what others have ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize(
    ("path", "form", "instead"),
    [
        ("/v1beta/models/gemini-3-pro:generateContent", "gemini", "/v1/chat/completions"),
        ("/v1beta/models/gemini-3-pro:streamGenerateContent?alt=sse", "gemini", "/v1/chat/completions"),
        ("/v1/models/gemini-3-pro:countTokens", "gemini", "/v1/chat/completions"),
        ("/v1/projects/p/locations/global/publishers/google/models/m:generateContent", "gemini", "/v1/chat/completions"),
        ("/api/chat", "ollama", "/v1/chat/completions"),
        ("/api/generate", "ollama", "/v1/chat/completions"),
        ("/api/tags", "ollama", "/v1/models"),
        ("/model/anthropic.claude-v2:1/converse", "bedrock", "/v1/messages"),
        ("/model/arn:aws:bedrock:us-east-1::model/m/invoke-with-response-stream", "bedrock", "/v1/messages"),
        ("/v2/chat", "cohere", "/v1/chat/completions"),
        ("/v1/embed", "cohere", "/v1/embeddings"),
        ("/v1/images/generations", "openai", "image_generation"),
        ("/v1/audio/speech", "openai", "input_audio"),
        ("/v1/vector_stores/vs_1/search", "openai", "file_search"),
        ("/chat/completions", "openai", "/v1"),
    ],
)
def test_other_paths_say_whose_they_are_and_what_to_use(
    make_api: Any, method: str, path: str, form: str, instead: str
) -> None:
    for key, status in ({}, 404), ({"api_key": ("secret",)}, 401):
        answer = make_api(**key).request(method, path, json={} if method == "POST" else None)
        if method == "GET" and path.startswith("/v1/models/"):
            continue  # OpenAI's own: a model of that name
        assert answer.status_code == status
        body = answer.json()
        if form == "gemini":
            error = body["error"]
            assert error["code"] == status
            assert error["status"] == {404: "NOT_FOUND", 401: "UNAUTHENTICATED"}[status]
            message = error["message"]
        elif form == "ollama":
            message = body["error"]
        elif form in ("bedrock", "cohere"):
            message = body["message"]
        else:
            assert body["error"].keys() == {"message", "type", "param", "code"}
            message = body["error"]["message"]
        if status == 404:
            assert f"({method} {path.partition('?')[0]})" in message
            assert instead in message
            assert message.count(". ") == 0
            assert ("x-amzn-errortype" in answer.headers) == (form == "bedrock")


def test_anthropics_clients_get_their_form_everywhere(api: Any) -> None:
    answer = api.request("GET", "/v1/skills", headers={"anthropic-version": "2023-06-01"})
    assert (answer.status_code, answer.json()["type"]) == (404, "error")
    assert answer.json()["error"]["type"] == "not_found_error"


def test_what_azure_has_and_this_server_has_not_is_said_in_azures_form(api: Any) -> None:
    refused = api.post(deployed("whisper", "audio/transcriptions"), {})
    assert refused.status_code == 404
    assert refused.json()["error"]["code"] == "404"
    assert "(POST /openai/deployments/whisper/audio/transcriptions)" in refused.json()["error"]["message"]
    assert "not simulated" in refused.json()["error"]["message"]
    refused = api.request("GET", f"/openai/assistants?{DATED}")
    assert "/v1/responses" in refused.json()["error"]["message"]


def test_the_routers_own_paths_do_not_lead_in_circles(api: Any) -> None:
    for path in (
        "/openai",
        "/openai/",
        "/openai//",
        "/openai/openai/v1/models",
        "/api/v1",
        "/api/v1/",
        "/api/v1/api/v1/models",
    ):
        assert api.request("GET", f"{path}?{DATED}").status_code == 404


def test_no_absent_path_is_served(api: Any) -> None:
    served = [route.path_regex for route in api.app.router.routes if "{rest:path}" not in route.path and route.path]
    for part in ABSENT:
        for path in part.paths:
            tried = path.removesuffix("!").replace("*", "x")
            if not tried.startswith("/v1/models/"):
                assert not [regex for regex in served if regex.fullmatch(tried)], tried
