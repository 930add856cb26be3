"""Embeddings: unit vectors that are the same everywhere, close for texts that share words."""

import base64
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from sdks import openai

import llmirage
from llmirage_server.replies.embedding import embed, shortened
from llmirage_shared.tokenizer_loader import embedded

SMALL = "text-embedding-3-small"
MODEL = "Qwen/Qwen3-30B-A3B-Instruct-2507"


def create(api: Any, input: Any, **fields: Any) -> Any:
    return api.post("/v1/embeddings", {"model": SMALL, "input": input} | fields)


def vectors(response: Any) -> list[np.ndarray]:
    assert response.status_code == 200, response.text
    return [np.array(entry["embedding"]) for entry in response.json()["data"]]


def test_the_object_is_the_apis_and_tokens_are_counted_by_the_tokenizer(api: Any) -> None:
    body = create(api, ["Hello there", "General Kenobi!"]).json()
    tokens = len(embedded().encode("Hello there")) + len(embedded().encode("General Kenobi!"))
    assert body["object"] == "list"
    assert body["model"] == SMALL
    assert body["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
    assert [(entry["object"], entry["index"]) for entry in body["data"]] == [("embedding", 0), ("embedding", 1)]


@pytest.mark.parametrize(
    ("model", "dimensions"),
    [(SMALL, 1536), ("text-embedding-3-large", 3072), ("text-embedding-ada-002", 1536), (MODEL, 1536)],
)
def test_vectors_are_of_unit_length_and_have_the_models_dimensions(api: Any, model: str, dimensions: int) -> None:
    [vector] = vectors(create(api, "A text of some length.", model=model))
    assert vector.shape == (dimensions,)
    assert np.linalg.norm(vector) == pytest.approx(1, abs=1e-6)


def test_base64_is_the_same_numbers_as_little_endian_float32(api: Any) -> None:
    [floats] = vectors(create(api, "Hello", encoding_format="float"))
    [entry] = create(api, "Hello", encoding_format="base64").json()["data"]
    packed = np.frombuffer(base64.b64decode(entry["embedding"]), dtype="<f4")
    assert (packed == floats.astype(np.float32)).all()


def test_token_ids_and_the_text_they_stand_for_have_one_vector(api: Any) -> None:
    texts = ["How do I sort a list?", "Paris"]
    ids = [embedded().encode(text).tolist() for text in texts]
    assert all((a == b).all() for a, b in zip(vectors(create(api, texts)), vectors(create(api, ids)), strict=True))
    assert (vectors(create(api, ids[0]))[0] == vectors(create(api, texts[0]))[0]).all()


def test_ids_of_a_larger_vocabulary_still_tell_texts_apart(api: Any) -> None:
    a, b, c = vectors(create(api, [[900_001, 900_002, 900_003], [900_001, 900_002, 900_004], [900_007, 900_008, 900_009]]))
    assert a @ b > a @ c + 0.2


def test_fewer_dimensions_are_the_first_ones_at_unit_length(api: Any) -> None:
    [whole], [short] = vectors(create(api, "Hello")), vectors(create(api, "Hello", dimensions=256))
    assert short.shape == (256,)
    assert short == pytest.approx(whole[:256] / np.linalg.norm(whole[:256]), abs=1e-7)


def test_texts_about_the_same_are_close_and_others_are_not() -> None:
    sort, sorting, france, capital, fruit = (
        embed(text, 1536)
        for text in (
            "How do I sort a list in Python?",
            "What is the way to sort lists in python",
            "Paris is the capital of France.",
            "The capital city of France is Paris",
            "Bananas are yellow fruit",
        )
    )
    assert sort @ sorting > 0.4
    assert france @ capital > 0.7
    assert all(abs(a @ b) < 0.2 for a in (sort, sorting) for b in (france, capital, fruit))
    short = [shortened(vector, 256) for vector in (france, capital, fruit)]
    assert short[0] @ short[1] > 0.6 > 0.25 > abs(short[0] @ short[2])


def test_forms_of_a_word_are_close_and_a_toy_rag_finds_its_documents() -> None:
    for one, other in (("refund", "refunds"), ("cancel", "cancelling"), ("country", "countries"), ("ship", "shipped")):
        assert embed(one, 1536) @ embed(other, 1536) > 0.7, (one, other)
    assert abs(embed("refund", 1536) @ embed("weather", 1536)) < 0.2
    centre = yaml.safe_load((Path(__file__).parents[2] / "data/help_centre.yaml").read_text(encoding="utf-8"))
    for seed, dimensions in ((0, 1536), (1, 1536), (2, 1024), (3, 3072)):
        documents = np.array([embed(text, dimensions, seed) for text in centre["documents"]])
        first = [int(np.argmax(documents @ embed(text, dimensions, seed))) for text in centre["questions"]]
        assert sum(place == number for number, place in enumerate(first)) >= 19, (seed, dimensions, first)


SCRIPT = {
    "embeddings": [
        {"text": "money  back", "near": "Refund policy"},
        {"text": "Zero", "vector": [1, 0, -0.5]},
        {"text": "long", "vector": [0.1] * 2000},
    ]
}


def test_a_script_gives_vectors_and_says_what_is_near() -> None:
    with llmirage.Server(script=SCRIPT, virtual_time=True) as server:
        create = server.openai(max_retries=0).embeddings.create
        texts = ["Money Back", "refund policy", "zero", "Shipping"]
        back, refund, zero, shipping = [np.array(one.embedding) for one in create(model=SMALL, input=texts).data]
        assert back @ refund >= 0.97 > 0.2 > abs(shipping @ refund)
        assert (zero[:3] == [1, 0, -0.5]).all()
        assert not zero[3:].any()
        assert create(model=SMALL, input="zero", dimensions=3).data[0].embedding == [1, 0, -0.5]
        with pytest.raises(openai.BadRequestError, match=r"script embeddings.2.: its vector has 2000 numbers"):
            create(model=SMALL, input="long")
        assert server.requests[0].rule == "script embeddings[0]"
        assert server.requests[0].user == "Money Back"
        server.script({"embeddings": [{"text": "zero", "vector": [0, 1]}]})
        assert create(model=SMALL, input="zero", dimensions=2).data[0].embedding == [0, 1]
        chat = server.openai().chat.completions.create(model="m", messages=[{"role": "user", "content": "Hello"}])
        assert chat.choices[0].message.content


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"text": "a"}, "must have a text, and either near or vector"),
        ({"text": "a", "near": "b", "vector": [1]}, "must have a text, and either near or vector"),
        ({"near": "b"}, "must have a text, and either near or vector"),
        ({"text": "a", "vector": [1, "x"]}, "vector: must be a list of numbers; 'x' is none"),
        ({"text": "a", "vector": [True]}, "True is none"),
        ({"text": "a", "vector": []}, "must be a list of 1 to 8,192 numbers"),
        ({"text": "a", "nearby": "b"}, "did you mean 'near'"),
    ],
)
def test_wrong_scripted_vectors_are_refused(given: dict[str, Any], problem: str) -> None:
    with pytest.raises(llmirage.ConfigError, match=re.escape(problem)):
        llmirage.Server(script={"embeddings": [given]}, virtual_time=True)


def test_case_and_spaces_tell_nothing_and_models_have_spaces_of_their_own() -> None:
    assert (embed("Hello  World\n", 64) == embed("hello world", 64)).all()
    assert abs(embed("Hello World", 1536, seed=1) @ embed("Hello World", 1536, seed=2)) < 0.2


@given(st.text(max_size=60), st.integers(1, 40))
def test_every_text_has_a_unit_vector_of_finite_numbers(text: str, dimensions: int) -> None:
    vector = embed(text, 64)
    assert np.linalg.norm(vector) == pytest.approx(1, abs=1e-6)
    assert np.linalg.norm(shortened(vector, dimensions)) == pytest.approx(1, abs=1e-6)


def test_another_process_makes_the_same_vector() -> None:
    code = "from llmirage_server.replies.embedding import embed; print(embed('The same everywhere, 日本語', 48).tolist())"
    told = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": "7"}
    )
    assert told.stdout.strip() == str(embed("The same everywhere, 日本語", 48).tolist())


@pytest.mark.parametrize(
    ("fields", "param", "code", "message"),
    [
        ({"input": ""}, "input", "invalid_value", "the input is empty"),
        ({"input": []}, "input", "empty_array", "minimum length 1"),
        ({"input": ["a", ""]}, "input[1]", "invalid_value", "empty"),
        ({"input": [[]]}, "input[0]", "empty_array", "minimum length 1"),
        ({"input": None}, "input", "invalid_type", "a string, an array of strings or an array of token ids"),
        ({"input": {"a": 1}}, "input", "invalid_type", "an object"),
        ({"input": [1, "a"]}, "input[1]", "invalid_type", "a token id"),
        ({"input": [-1]}, "input[0]", "integer_below_min_value", ">= 0"),
        ({"input": ["a"] * 2049}, "input", "array_above_max_length", "2049"),
        ({"input": [5] * 8193}, "input", "context_length_exceeded", "This model's maximum context length is 8192 tokens"),
        ({"input": [[5] * 8192] * 37}, None, "max_tokens_per_request", "max 300000 tokens per request"),
        ({"encoding_format": "binary"}, "encoding_format", "invalid_value", "'float' and 'base64'"),
        ({"dimensions": 0}, "dimensions", "integer_below_min_value", ">= 1"),
        ({"dimensions": 1537}, "dimensions", "invalid_value", "less than or equal to 1536"),
        ({"dimensions": 5, "model": "text-embedding-ada-002"}, "dimensions", None, "does not support specifying dimensions"),
        ({"model": None}, "model", "invalid_type", "a string"),
    ],
)
def test_refusals(api: Any, fields: dict[str, Any], param: str | None, code: str | None, message: str) -> None:
    response = create(api, **({"input": "Hello"} | fields))
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["param"], error["code"]) == (param, code)
    assert message in error["message"]


def test_missing_fields_and_models_of_openai(api: Any) -> None:
    assert api.post("/v1/embeddings", {"model": SMALL}).json()["error"]["message"] == "Missing required parameter: 'input'."
    assert api.post("/v1/embeddings", {"input": "x"}).json()["error"]["param"] == "model"
    assert create(api, "x", model=f"openai/{SMALL}").status_code == 200


def test_many_long_inputs_are_answered_in_order(api: Any) -> None:
    texts = [f"Text number {index} " + "with many words " * 40 for index in range(40)]
    found = vectors(create(api, texts))
    assert (found[7] == vectors(create(api, texts[7]))[0]).all()
    assert len(found) == 40


def test_a_long_answer_is_sent_in_pieces(api: Any) -> None:
    answer = api.post("/v1/embeddings", {"model": "text-embedding-3-large", "input": ["a"] * 40})
    assert len(answer.content) == int(answer.headers["content-length"]) > 1 << 20
    assert len(answer.json()["data"]) == 40
