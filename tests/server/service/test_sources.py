"""Parts without a source are refused; what Anthropic's and OpenAI's clients read under the same path; log probabilities."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

MODEL = "Qwen/Qwen3-30B-A3B-Instruct-2507"
TOOL = {
    "type": "function",
    "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}


@pytest.mark.parametrize("kind", ["input_image", "input_file"])
def test_a_part_of_a_response_needs_a_source(api: Any, kind: str) -> None:
    def ask(**source: str) -> Any:
        parts = [{"type": kind, **source}]
        return api.post("/v1/responses", {"model": MODEL, "input": [{"role": "user", "content": parts}]})

    answer = ask()
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "input[0].content[0]")
    assert ask(file_id="file-1").status_code == 404  # a source, but no file


def chat_part(api: Any, part: dict[str, Any]) -> Any:
    return api.post("/v1/chat/completions", {"model": MODEL, "messages": [{"role": "user", "content": [part]}]})


def test_a_file_of_a_chat_needs_a_source(api: Any) -> None:
    answer = chat_part(api, {"type": "file", "file": {"filename": "a.pdf"}})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "messages[0].content[0].file")
    assert chat_part(api, {"type": "file", "file": {"file_id": "file-1"}}).status_code == 404


def test_sounds_have_a_known_format(api: Any) -> None:
    answer = chat_part(api, {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "midi"}})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, "messages[0].content[0].input_audio.format")
    assert (
        "input_audio.format"
        not in chat_part(api, {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}).text
    )


def test_a_prediction_has_content(api: Any) -> None:
    answer = api.chat("Rewrite it.", prediction={"type": "content"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "prediction.content")
    parts = [{"type": "text", "text": "x = 1"}]
    assert api.chat("Rewrite it.", prediction={"type": "content", "content": parts}).status_code == 200


def test_models_in_anthropics_form(api: Any) -> None:
    version = {"anthropic-version": "2023-06-01"}
    body = api.request("GET", "/v1/models", headers=version).json()
    [card] = body["data"]
    assert (card["type"], card["id"], card["display_name"]) == ("model", MODEL, "Qwen3-30B-A3B-Instruct-2507")
    assert card["created_at"].endswith("Z")
    assert (body["has_more"], body["first_id"], body["last_id"]) == (False, MODEL, MODEL)
    assert api.request("GET", f"/v1/models/{MODEL}", headers=version).json() == card
    assert api.request("GET", "/v1/models").json()["object"] == "list"


def test_calls_have_no_log_probabilities(api: Any) -> None:
    answer = api.chat("What is the weather in Paris?", tools=[TOOL], logprobs=True).json()["choices"][0]
    assert answer["finish_reason"] == "tool_calls"
    assert answer["logprobs"] is None


SECOND = {"type": "input_audio", "input_audio": {"data": "A" * 64_000, "format": "wav"}}  # 48,000 bytes


def test_sounds_count_as_audio_tokens(api: Any) -> None:
    answer = api.post(
        "/v1/chat/completions",
        {"model": "gpt-audio", "messages": [{"role": "user", "content": [{"type": "text", "text": "What is it?"}, SECOND]}]},
    )
    usage = answer.json()["usage"]
    assert usage["prompt_tokens_details"]["audio_tokens"] == 10
    assert usage["prompt_tokens"] > 10


def test_a_model_of_text_refuses_sounds_as_the_api_does(make_api: Callable[..., Any], tmp_path: Path) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": [SECOND]}]
    answer = make_api().post("/v1/chat/completions", {"model": MODEL, "messages": messages})
    assert answer.status_code == 400
    assert answer.json()["error"] == {
        "message": "Invalid 'messages[1]'. Content blocks are expected to be either text or image_url type.",
        "type": "invalid_request_error",
        "param": "messages[1]",
        "code": "invalid_value",
    }
    vllm = make_api(dialect="vllm").post("/v1/chat/completions", {"model": MODEL, "messages": messages})
    assert vllm.json()["error"]["message"] == f"{MODEL} is not a multimodal model"
    config = {
        "model_type": "qwen2_audio", "architectures": ["Qwen2AudioForConditionalGeneration"], "audio_config": {"d_model": 8},
        "text_config": {
            "model_type": "qwen2", "hidden_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 8,
            "num_key_value_heads": 8, "intermediate_size": 2048, "vocab_size": 32_000, "max_position_embeddings": 8192,
        },
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config), "utf-8")
    hearing = make_api(model=str(tmp_path / "config.json"))
    assert hearing.post("/v1/chat/completions", {"model": "x", "messages": messages}).status_code == 200
