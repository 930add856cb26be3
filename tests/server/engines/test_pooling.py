"""vLLM's /pooling, /classify, /tokenizer_info, profiles, and embeddings of conversations."""

from typing import Any

import pytest

MODEL = "Qwen/Qwen3-30B-A3B-Instruct-2507"


def test_pooling_is_the_embedding_in_another_shape(api: Any) -> None:
    body = {"model": "bge-m3", "input": ["one", "two"]}
    told = api.post("/pooling", body).json()
    embedded = api.post("/v1/embeddings", body).json()
    assert told["id"].startswith("pool-")
    assert (told["object"], told["model"]) == ("list", "bge-m3")
    assert [(entry["index"], entry["object"]) for entry in told["data"]] == [(0, "pooling"), (1, "pooling")]
    assert [entry["data"] for entry in told["data"]] == [entry["embedding"] for entry in embedded["data"]]
    assert told["usage"] == {**embedded["usage"], "completion_tokens": 0, "prompt_tokens_details": None}


def test_each_token_may_have_a_vector(api: Any) -> None:
    told = api.post("/pooling", {"model": "bge-m3", "input": "one two three", "task": "token_embed"}).json()
    vectors = told["data"][0]["data"]
    assert len(vectors) == told["usage"]["prompt_tokens"]
    assert {len(vector) for vector in vectors} == {1024}
    refused = api.post("/pooling", {"model": "bge-m3", "input": "a " * 2_100, "task": "token_embed"})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "input")


def test_a_class_follows_from_the_text(api: Any) -> None:
    body = {"model": MODEL, "input": [f"Text number {number}" for number in range(40)]}
    told = api.post("/classify", body).json()
    assert told["id"].startswith("classify-")
    for entry in told["data"]:
        assert entry["num_classes"] == len(entry["probs"]) == 2
        assert sum(entry["probs"]) == pytest.approx(1)
        assert entry["label"] == f"LABEL_{entry['probs'].index(max(entry['probs']))}"
    assert {entry["label"] for entry in told["data"]} == {"LABEL_0", "LABEL_1"}
    assert api.post("/classify", body).json()["data"] == told["data"]


def test_a_conversation_can_be_embedded(api: Any) -> None:
    messages = [{"role": "user", "content": "Hello there"}]
    told = api.post("/v1/embeddings", {"model": MODEL, "messages": messages}).json()
    counted = api.post("/tokenize", {"model": MODEL, "messages": messages, "add_generation_prompt": False}).json()
    assert told["usage"]["prompt_tokens"] == counted["count"]
    other = api.post("/v1/embeddings", {"model": MODEL, "messages": [{"role": "user", "content": "Goodbye"}]}).json()
    assert told["data"][0]["embedding"] != other["data"][0]["embedding"]
    missing = api.post("/v1/embeddings", {"model": MODEL})
    assert (missing.status_code, missing.json()["error"]["param"]) == (400, "input")


def test_the_settings_of_the_tokenizer(api: Any) -> None:
    told = api.request("GET", "/tokenizer_info").json()
    assert told["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert told["model_max_length"] == 262_144
    assert told["vocab_size"] > 1_000


def test_messages_take_the_lengths_that_engines_know(api: Any) -> None:
    body = {"model": MODEL, "max_tokens": 400, "messages": [{"role": "user", "content": "Say hi."}]}
    free = api.post("/v1/messages", body).json()["usage"]["output_tokens"]
    whole = api.post("/v1/messages", body | {"ignore_eos": True}).json()
    assert (whole["usage"]["output_tokens"], whole["stop_reason"]) == (400, "max_tokens")
    assert free < 390
    least = api.post("/v1/messages", body | {"min_tokens": 390}).json()["usage"]["output_tokens"]
    assert least >= 390
    refused = api.post("/v1/messages", body | {"min_tokens": 401})
    assert (refused.status_code, refused.json()["error"]["type"]) == (400, "invalid_request_error")
