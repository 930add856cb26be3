"""SGLang's own /generate: whole answers, frames with the text so far, log probabilities, aborts."""

import asyncio
import itertools
import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from llmirage_shared.tokenizer_loader import embedded


def generate(api: Any, text: Any = "Once upon a time", body: dict[str, Any] | None = None, **params: Any) -> Any:
    response = api.post("/generate", {"text": text, "sampling_params": {"max_new_tokens": 12} | params} | (body or {}))
    assert response.status_code == 200, response.text
    return response


def frames(response: Any) -> list[dict[str, Any]]:
    *events, last = [line[6:] for line in response.text.split("\n") if line.startswith("data: ")]
    assert last == "[DONE]"
    return [json.loads(event) for event in events]


def test_an_answer_has_sglangs_keys_and_the_text_of_its_ids(api: Any) -> None:
    told = generate(api).json()
    assert set(told) == {"text", "output_ids", "meta_info"}
    assert embedded().decode(told["output_ids"]) == told["text"]
    meta = told["meta_info"]
    assert meta["finish_reason"] == {"type": "length", "length": 12}
    assert (meta["completion_tokens"], meta["prompt_tokens"]) == (12, len(embedded().encode("Once upon a time")))
    assert meta["e2e_latency"] >= 0


def test_token_ids_and_text_are_the_same_prompt(api: Any) -> None:
    ids = embedded().encode("Once upon a time").tolist()
    one = api.post("/generate", {"input_ids": ids, "sampling_params": {"max_new_tokens": 12}}).json()
    assert one["meta_info"]["prompt_tokens"] == len(ids)
    many = api.post("/generate", {"input_ids": [ids, ids[:2]], "sampling_params": {"max_new_tokens": 3}}).json()
    assert [answer["meta_info"]["prompt_tokens"] for answer in many] == [len(ids), 2]


def test_lists_and_several_choices_are_answered_with_lists(api: Any) -> None:
    assert len(generate(api, ["a", "b", "c"]).json()) == 3
    assert len(generate(api, n=2).json()) == 2
    assert [each["meta_info"]["id"] for each in generate(api, ["a", "b"], {"rid": ["x", "y"]}).json()] == ["x", "y"]
    assert generate(api, body={"rid": "mine"}).json()["meta_info"]["id"] == "mine"


def test_a_stream_repeats_the_text_so_far(api: Any) -> None:
    told = frames(generate(api, body={"stream": True}))
    whole = generate(api).json()
    assert len(told) == 12
    assert all(later["text"].startswith(earlier["text"]) for earlier, later in itertools.pairwise(told))
    assert [len(frame["output_ids"]) for frame in told] == list(range(1, 13))
    assert [frame["meta_info"]["finish_reason"] for frame in told[:-1]] == [None] * 11
    assert told[-1]["text"] == whole["text"]
    assert told[-1]["meta_info"]["finish_reason"] == {"type": "length", "length": 12}


def test_a_streamed_batch_numbers_its_frames(api: Any) -> None:
    told = frames(generate(api, ["a", "b"], {"stream": True}, max_new_tokens=3))
    assert sorted(frame["index"] for frame in told) == [0, 0, 0, 1, 1, 1]


def test_a_long_reply_that_is_due_at_once_comes_in_few_frames(api: Any) -> None:
    told = frames(generate(api, body={"stream": True}, max_new_tokens=1000, ignore_eos=True))
    assert len(told) < 600  # some 270; more where the machine is so slow that tokens come in more ticks
    assert len(told[-1]["output_ids"]) == 1000


def test_stop_strings_end_the_text(api: Any) -> None:
    text = generate(api).json()["text"]
    word = text.split()[2]
    told = generate(api, stop=word).json()
    assert told["text"] == text[: text.index(word)]
    assert told["meta_info"]["finish_reason"] == {"type": "stop", "matched": word}
    assert generate(api, stop=[word], no_stop_trim=True).json()["text"].endswith(word)


def test_structured_outputs(api: Any) -> None:
    schema = json.dumps({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]})
    assert isinstance(json.loads(generate(api, json_schema=schema, max_new_tokens=200).json()["text"])["a"], int)
    assert generate(api, regex="[ab]{4}", max_new_tokens=50).json()["text"].strip("ab") == ""


def test_log_probabilities_of_prompt_and_reply(api: Any) -> None:
    told = generate(
        api, body={"return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 2, "return_text_in_logprobs": True}
    ).json()
    meta = told["meta_info"]
    assert meta["input_token_logprobs"][0][0] is None
    assert len(meta["input_token_logprobs"]) == meta["prompt_tokens"] == len(meta["input_top_logprobs"])
    assert [entry[1] for entry in meta["output_token_logprobs"]] == told["output_ids"]
    assert "".join(entry[2] for entry in meta["output_token_logprobs"]) == told["text"]
    assert all(len(top) == 2 and top[0][0] >= top[1][0] for top in meta["output_top_logprobs"])
    plain = generate(api, body={"return_logprob": True}).json()["meta_info"]
    assert plain["input_token_logprobs"] == []
    assert plain["output_token_logprobs"][0][2] is None


def test_no_new_tokens_at_all(api: Any) -> None:
    told = generate(api, max_new_tokens=0).json()
    assert (told["text"], told["output_ids"], told["meta_info"]["completion_tokens"]) == ("", [], 0)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "text"),
        ({"text": ""}, "text"),
        ({"text": []}, "text"),
        ({"text": 5}, "text"),
        ({"input_ids": "abc"}, "input_ids"),
        ({"input_ids": []}, "input_ids"),
        ({"input_ids": [[1], []]}, "input_ids[1]"),
        ({"input_ids": ["a"]}, "input_ids"),
        ({"text": "a", "sampling_params": {"max_new_tokens": -1}}, "sampling_params.max_new_tokens"),
        ({"text": "a", "sampling_params": {"max_new_tokens": 2, "min_new_tokens": 3}}, "sampling_params.min_new_tokens"),
        ({"text": "a", "sampling_params": {"json_schema": "{"}}, "sampling_params.json_schema"),
        ({"text": "a", "sampling_params": {"json_schema": '{"type": "objec"}'}}, "sampling_params.json_schema"),
        ({"text": "a", "rid": ["a", "b"]}, "rid"),
        ({"text": ["a", "b"], "rid": ["x", "x"]}, "rid"),
    ],
)
def test_refusals(api: Any, body: dict[str, Any], param: str) -> None:
    response = api.post("/generate", body)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param


def test_what_the_engine_tells_of_itself(api: Any) -> None:
    assert api.request("GET", "/health_generate").status_code == 200
    info = api.request("GET", "/get_model_info").json()
    assert (info["model_path"], info["is_generation"]) == ("Qwen/Qwen3-30B-A3B-Instruct-2507", True)
    told = api.request("GET", "/get_server_info").json()
    assert (told["tp_size"], len(told["internal_states"])) == (1, 2)
    assert [entry["num_reqs"] for entry in api.request("GET", "/get_load").json()] == [0, 0]


def test_loads_tell_of_running_requests_and_of_prompts_that_wait(
    make_api: Callable[..., Any], runner: asyncio.Runner
) -> None:
    api = make_api(dialect="sglang", instances=1, max_num_seqs=1, ttft_ms=None, itl_ms=None)

    async def scenario() -> Any:
        async with api.client() as client:
            body = {"input_ids": [5] * 100, "sampling_params": {"max_new_tokens": 500, "ignore_eos": True}}
            under_way = [asyncio.ensure_future(client.post("/generate", json=body | {"rid": rid})) for rid in "abc"]
            for _ in range(500):
                told = (await client.get("/v1/loads?include=core,queues")).json()
                if told["loads"][0]["num_waiting_reqs"] == 2:
                    break
                await asyncio.sleep(0.01)
            for rid in "abc":
                await client.post("/abort_request", json={"rid": rid})
            await asyncio.gather(*under_way)
            return told

    told = runner.run(scenario())
    [load] = told["loads"]
    assert (told["dp_rank_count"], load["dp_rank"], load["max_running_requests"]) == (1, 0, 1)
    assert (load["num_running_reqs"], load["num_waiting_reqs"]) == (1, 2)
    assert load["num_total_tokens"] - load["num_used_tokens"] == 200
    assert load["token_usage"] == load["num_used_tokens"] / load["max_total_num_tokens"] > 0
    assert api.request("GET", "/v1/loads?dp_rank=1").json()["loads"] == []
    refused = api.request("GET", "/v1/loads?include=all,cores")
    assert (refused.status_code, "'core'" in refused.text) == (400, True)


def test_vllm_has_no_loads(make_api: Callable[..., Any]) -> None:
    """There routers read /metrics."""
    assert make_api(dialect="vllm").request("GET", "/v1/loads").status_code == 404


def test_flush_cache_empties_the_prefix_caches(make_api: Callable[..., Any]) -> None:
    api = make_api()
    text = "word " * 100
    assert generate(api, text).json()["meta_info"]["cached_tokens"] == 0
    assert generate(api, text).json()["meta_info"]["cached_tokens"] > 80
    assert "flushed" in api.request("POST", "/flush_cache").text
    assert generate(api, text).json()["meta_info"]["cached_tokens"] == 0


R1 = {"text": "Hello", "rid": "r1", "sampling_params": {"max_new_tokens": 5}}


async def in_progress(client: httpx.AsyncClient, body: Any) -> asyncio.Future[httpx.Response]:
    """A request that the cluster serves."""
    sent = asyncio.ensure_future(client.post("/generate", json=body))
    while not any(entry["num_reqs"] for entry in (await client.get("/get_load")).json()):
        await asyncio.sleep(0.01)
    return sent


@pytest.mark.parametrize("stream", [False, True])
def test_an_aborted_request_keeps_what_it_has(make_api: Callable[..., Any], runner: asyncio.Runner, stream: bool) -> None:
    api = make_api(itl_ms=100_000.0)

    async def scenario() -> tuple[Any, Any]:
        async with api.client() as client:
            waiting = await in_progress(client, R1 | {"stream": stream})
            await api.until_produced(1)
            busy = await client.post("/flush_cache")
            await client.post("/abort_request", json={"rid": "r1"})
            return busy, await waiting

    busy, ended = runner.run(scenario())
    assert busy.status_code == 400
    assert ended.status_code == 200
    told = frames(ended)[-1] if stream else ended.json()
    assert told["meta_info"]["finish_reason"]["type"] == "abort"
    assert told["meta_info"]["completion_tokens"] == 1
    assert api.request("GET", "/load").json() == {"server_load": 0}


@pytest.mark.parametrize("stream", [False, True])
def test_a_rid_is_that_of_one_request_until_it_ends(
    make_api: Callable[..., Any], runner: asyncio.Runner, stream: bool
) -> None:
    """So SGLang refuses it (sgl-project/sglang#19035)."""
    api = make_api(itl_ms=100_000.0)

    async def scenario() -> list[Any]:
        async with api.client() as client:
            waiting = await in_progress(client, R1 | {"stream": stream})
            again = [await client.post("/generate", json=R1 | {"stream": other}) for other in (False, True)]
            await client.post("/abort_request", json={"rid": "r1"})
            first = await waiting
            after = await client.post("/generate", json=R1 | {"sampling_params": {"max_new_tokens": 1}})
            return [first, *again, after]

    first, *again, after = runner.run(scenario())
    assert (first.status_code, after.status_code) == (200, 200)
    for refused in again:
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "rid")


def test_a_text_far_beyond_the_context_is_not_tokenized_to_its_end(api: Any) -> None:
    refused = api.post("/generate", {"text": "0123456789 " * 200_000})
    assert refused.status_code == 400
    assert "at least" in refused.json()["error"]["message"]
