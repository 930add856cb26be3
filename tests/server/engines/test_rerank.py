"""/rerank and /score: what has more to do with the query comes first."""

from typing import Any

import pytest

DOCUMENTS = ["Bananas are yellow fruit.", "Paris is the capital of France.", {"text": "France is a country in Europe."}]
RERANK = {"model": "BAAI/bge-m3", "query": "What is the capital of France?", "documents": DOCUMENTS}


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
def test_documents_come_by_relevance(api: Any, path: str) -> None:
    told = api.post(path, RERANK).json()
    assert told["id"].startswith("rerank-")
    assert told["usage"]["total_tokens"] > 20
    assert [result["index"] for result in told["results"]] == [1, 2, 0]
    assert told["results"][0]["document"] == {"text": "Paris is the capital of France."}
    scores = [result["relevance_score"] for result in told["results"]]
    assert 1 > scores[0] > scores[1] > scores[2] > 0
    assert scores[0] > 0.5


def test_top_n_and_without_documents(api: Any) -> None:
    results = api.post("/rerank", RERANK | {"top_n": 1, "return_documents": False}).json()["results"]
    assert len(results) == 1
    assert set(results[0]) == {"index", "relevance_score"}


@pytest.mark.parametrize("path", ["/score", "/v1/score"])
def test_scores_of_pairs(api: Any, path: str) -> None:
    told = api.post(path, {"model": "bge-m3", "text_1": "a red car", "text_2": ["a red car", "blue whales"]}).json()
    assert (told["object"], [entry["object"] for entry in told["data"]]) == ("list", ["score", "score"])
    assert told["data"][0]["score"] > 0.99 > 0.2 > told["data"][1]["score"]
    pairs = api.post(path, {"model": "bge-m3", "text_1": ["a", "b"], "text_2": ["b", "b"]}).json()["data"]
    assert pairs[1]["score"] > pairs[0]["score"]
    newer = api.post(path, {"model": "bge-m3", "queries": "a", "documents": "b"}).json()["data"]
    assert newer[0]["score"] == pairs[0]["score"]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/rerank", {"documents": []}, "documents"),
        ("/rerank", {"documents": "x"}, "documents"),
        ("/rerank", {"documents": [5]}, "documents[0]"),
        ("/rerank", {"query": None}, "query"),
        ("/rerank", {"top_n": -1}, "top_n"),
        ("/rerank", {"documents": ["word " * 9000]}, "input"),
        ("/score", {"text_1": "a"}, "text_2"),
        ("/score", {"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}, "text_2"),
    ],
)
def test_refusals(api: Any, path: str, body: dict[str, Any], param: str) -> None:
    response = api.post(path, (RERANK if path == "/rerank" else {"model": "bge-m3"}) | body)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param


def test_texts_are_ranked_as_tei_answers(api: Any) -> None:
    texts = ["Bananas are yellow fruit.", "Paris is the capital of France."]
    body = {"query": "What is the capital of France?", "texts": texts}
    ranks = api.post("/rerank", body).json()
    assert [set(rank) for rank in ranks] == [{"index", "score"}] * 2
    assert [rank["index"] for rank in ranks] == [1, 0]
    assert 1 > ranks[0]["score"] > ranks[1]["score"] > 0
    raw = api.post("/rerank", body | {"raw_scores": True, "return_text": True, "truncate": False}).json()
    assert [rank["text"] for rank in raw] == texts[::-1]
    assert raw[0]["score"] > 0 > raw[1]["score"]
    missing = api.post("/rerank", {"query": "a"})
    assert (missing.status_code, missing.json()["error"]["param"]) == (400, "model")
    missing = api.post("/rerank", {"query": "a", "model": "bge-m3"})
    assert (missing.status_code, missing.json()["error"]["param"]) == (400, "documents")


def test_passages_are_ranked_as_nim_answers(api: Any) -> None:
    passages = [{"text": "Bananas are yellow fruit."}, {"text": "Paris is the capital of France."}]
    body = {"model": "bge-m3", "query": {"text": "What is the capital of France?"}, "passages": passages}
    told = api.post("/v1/ranking", body).json()
    assert [set(rank) for rank in told["rankings"]] == [{"index", "logit"}] * 2
    assert [rank["index"] for rank in told["rankings"]] == [1, 0]
    assert told["rankings"][0]["logit"] > 0 > told["rankings"][1]["logit"]
    assert told["usage"]["prompt_tokens"] > 15
    long = body | {"passages": [{"text": "word " * 9000}]}
    assert api.post("/v1/ranking", long).json()["error"]["code"] == "context_length_exceeded"
    assert api.post("/v1/ranking", long | {"truncate": "END"}).status_code == 200
    missing = api.post("/v1/ranking", body | {"passages": [{}]})
    assert (missing.status_code, missing.json()["error"]["param"]) == (400, "passages[0].text")
