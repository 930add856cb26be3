"""/v1/batches: every line is answered as its endpoint answers it, or the batch says what is wrong with the file."""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from batch_lines import CHAT, MODEL, line
from state_files import left_by_a_kill

from llmirage_server.app import create_app
from llmirage_server.batches import batch as batch_module
from llmirage_server.batches import runner as runner_module
from llmirage_server.config import ClusterConfig


def test_a_batch_from_creation_to_its_output(batches: Any) -> None:
    api = batches()
    created = api.create([line("a"), line("b", max_tokens=5)], metadata={"night": "1"})
    assert (created["status"], created["expires_at"]) == ("validating", created["created_at"] + 86400)
    done = api.wait(created)
    assert done["request_counts"] == {"total": 2, "completed": 2, "failed": 0}
    assert (done["model"], done["errors"], done["error_file_id"], done["metadata"]) == (MODEL, None, None, {"night": "1"})
    assert done["in_progress_at"]
    assert done["finalizing_at"]
    assert done["completed_at"]
    results = api.results(done["output_file_id"])
    assert set(results) == {"a", "b"}
    body = results["b"]["response"]["body"]
    alone = api.api.chat("Say b", max_tokens=5, model=MODEL).json()
    assert body["choices"] == alone["choices"]
    assert (results["b"]["error"], results["b"]["response"]["status_code"]) == (None, 200)
    assert results["b"]["response"]["request_id"].startswith("req_")
    used = [each["response"]["body"]["usage"] for each in results.values()]
    assert done["usage"]["output_tokens"] == 8 == sum(each["completion_tokens"] for each in used)
    assert done["usage"]["total_tokens"] == sum(each["total_tokens"] for each in used)
    file = api.api.request("GET", f"/v1/files/{done['output_file_id']}").json()
    assert (file["purpose"], file["expires_at"]) == ("batch_output", None)


@pytest.mark.parametrize(
    ("url", "body"),
    [
        ("/v1/completions", {"prompt": "Hello", "max_tokens": 3}),
        ("/v1/responses", {"input": "Hello", "max_output_tokens": 16}),
        ("/v1/embeddings", {"input": ["Hello", "you"], "model": "text-embedding-3-small"}),
        ("/v1/moderations", {"input": "Hello", "model": "omni-moderation-latest"}),
    ],
)
def test_every_endpoint(batches: Any, url: str, body: dict[str, Any]) -> None:
    api = batches()
    done = api.wait(api.create([line("a", url, **body)], url))
    answer = api.results(done["output_file_id"])["a"]["response"]["body"]
    alone = api.api.post(url, {"model": MODEL} | body).json()
    assert answer.keys() == alone.keys()
    assert answer.get("data") == alone.get("data")
    assert (done["usage"] or {}).get("input_tokens", 0) == alone.get("usage", {}).get(
        "input_tokens", alone.get("usage", {}).get("prompt_tokens", 0)
    )


def test_long_lines_are_read_apart_and_answered(batches: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    api = batches()
    text, apart = api.api.app.service.text, []
    in_thread = text.in_thread

    def counted(work: Any) -> Any:
        apart.append(getattr(work, "func", None))
        return in_thread(work)

    monkeypatch.setattr(text, "in_thread", counted)
    done = api.wait(api.create([line("a"), line("b", "/v1/chat/completions", user="x" * 150_000)]))
    assert done["request_counts"] == {"total": 2, "completed": 2, "failed": 0}
    assert runner_module._Line.read in apart


def test_numbers_of_long_answers_are_not_read_again(batches: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    api = batches()
    fields = {"input": ["Hello", "you"] * 20, "model": "text-embedding-3-large"}
    alone = api.api.post("/v1/embeddings", fields)
    assert len(alone.content) > 1 << 20
    read: list[int] = []
    monkeypatch.setattr(runner_module.json, "loads", lambda text, loads=json.loads: read.append(len(text)) or loads(text))
    done = api.wait(api.create([line("null},", "/v1/embeddings", **fields)], "/v1/embeddings"))
    assert max(read, default=0) < 1 << 20
    assert done["usage"]["total_tokens"] == alone.json()["usage"]["total_tokens"] > 0
    result = api.results(done["output_file_id"])["null},"]
    assert (result["response"]["body"], result["error"]) == (alone.json(), None)


def test_refused_lines_are_in_the_error_file(batches: Any) -> None:
    api = batches()
    done = api.wait(
        api.create([line("a"), line("b", temperature=9)], output_expires_after={"anchor": "created_at", "seconds": 3600})
    )
    assert done["request_counts"] == {"total": 2, "completed": 1, "failed": 1}
    assert set(api.results(done["output_file_id"])) == {"a"}
    refused = api.results(done["error_file_id"])["b"]
    assert (refused["response"]["status_code"], refused["error"]) == (400, None)
    assert refused["response"]["body"]["error"]["param"] == "temperature"
    file = api.api.request("GET", f"/v1/files/{done['error_file_id']}").json()
    assert file["expires_at"] == file["created_at"] + 3600


def test_lines_are_refused_as_their_endpoint_refuses(batches: Any) -> None:
    api, url = batches(), "/v1/responses"
    lines = [
        line("few", url, input="Hi", max_output_tokens=15),
        line("engine", url, input="Hi", max_output_tokens=15, top_k=1),
    ]
    done = api.wait(api.create(lines, url))
    assert api.results(done["error_file_id"])["few"]["response"]["body"]["error"]["code"] == "integer_below_min_value"
    assert set(api.results(done["output_file_id"])) == {"engine"}


def test_without_a_good_line_there_is_no_output_file(batches: Any) -> None:
    api = batches()
    done = api.wait(api.create([line("a", temperature=9)]))
    assert done["output_file_id"] is None
    assert done["error_file_id"]


WRONG: list[tuple[Any, tuple[str, str | None]]] = [
    ("{nonsense", ("invalid_json_line", None)),
    ("[1]", ("invalid_json_line", None)),
    ({"method": "POST", "url": CHAT, "body": {}}, ("missing_required_parameter", "custom_id")),
    (line("b") | {"custom_id": 5}, ("invalid_type", "custom_id")),
    (line("b") | {"body": []}, ("invalid_type", "body")),
    (line("a"), ("duplicate_custom_id", "custom_id")),
    (line("b") | {"method": "GET"}, ("invalid_method", "method")),
    (line("b") | {"url": "/v1/embeddings"}, ("invalid_url", "url")),
    (line("b", model="gpt-4o"), ("mismatched_model", "body.model")),
    (line("b", model=None), ("invalid_request", "body.model")),
    (line("b", messages=None), ("invalid_request", "body.messages")),
    (line("b", stream=True), ("streaming_unsupported", "body.stream")),
]


@pytest.mark.parametrize(("wrong", "expected"), WRONG)
def test_a_wrong_line_fails_the_batch(batches: Any, wrong: Any, expected: tuple[str, str | None]) -> None:
    assert batches().errors([line("a"), "", wrong]) == [(*expected, 3)]


def test_more_that_is_wrong_with_a_file(batches: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_module, "MOST_LINES", 2)
    monkeypatch.setattr(batch_module, "MOST_EMBEDDING_INPUTS", 3)
    api = batches()
    assert api.errors([line("a"), line("b"), line("c")]) == [("too_many_tasks", None, None)]
    assert batches(accept_models="served").errors([line("a", model="none")]) == [("model_not_found", "body.model", 1)]
    inputs = [line(name, "/v1/embeddings", input=["x", "y"]) for name in "ab"]
    assert api.errors(inputs, "/v1/embeddings") == [("invalid_request", "body.input", 2)]
    ids = [line("a", "/v1/embeddings", input=[1, 2, 3, 4, 5])]
    assert api.wait(api.create(ids, "/v1/embeddings"))
    answered = line("a", "/v1/responses", input="x", background=True)
    assert api.errors([answered], "/v1/responses") == [("invalid_request", "body.background", 1)]
    assert len(api.errors(["{}"] + ["x"] * 500)) <= batch_module.MOST_ERRORS + 3


def test_a_file_that_is_none(batches: Any) -> None:
    api = batches()
    other = api.api.request("POST", "/v1/files", files={"file": ("a", b"{}")}, data={"purpose": "user_data"}).json()
    for file_id, said in (("file-none", "Cannot find file"), (other["id"], "user_data")):
        failed = api.wait(api.create([], input_file_id=file_id), "failed")
        [problem] = failed["errors"]["data"]
        assert (problem["code"], problem["param"]) == ("invalid_request", "file_id")
        assert said in problem["message"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"endpoint": "/v1/files"}, "endpoint"),
        ({"completion_window": "1h"}, "completion_window"),
        ({"input_file_id": None}, "input_file_id"),
        ({"input_file_id": "f" * 600}, "input_file_id"),
        ({"metadata": {"a": 1}}, "metadata.a"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 1}}, "output_expires_after.seconds"),
        ({"colour": 1}, "colour"),
    ],
)
def test_a_wrong_body_is_refused(api: Any, fields: dict[str, Any], param: str) -> None:
    body = {"input_file_id": "file-a", "endpoint": CHAT, "completion_window": "24h"} | fields
    refused = api.post("/v1/batches", body)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)


def test_batches_are_listed_and_unknown_ones_are_not_found(batches: Any) -> None:
    api = batches()
    made = [api.create([line("a")]) for _ in range(3)]
    listed = api.api.request("GET", "/v1/batches?limit=2").json()
    assert ([each["id"] for each in listed["data"]], listed["has_more"]) == ([made[2]["id"], made[1]["id"]], True)
    for method, path in (("GET", "/v1/batches/none"), ("POST", "/v1/batches/none/cancel")):
        refused = api.api.request(method, path)
        assert (refused.status_code, "No batch found" in refused.text) == (404, True)


def test_a_batch_is_cancelled(batches: Any) -> None:
    api = batches(ttft_ms=50.0, itl_ms=1.0, max_num_seqs=8)
    created = api.create([line(str(number)) for number in range(200)])
    api.wait(created, "in_progress")
    cancelling = api.api.request("POST", f"/v1/batches/{created['id']}/cancel").json()
    assert cancelling["status"] == "cancelling"
    done = api.wait(created, "cancelled")
    good, bad = api.results(done["output_file_id"]), api.results(done["error_file_id"])
    assert len(good) + len(bad) == 200
    assert len(bad) > 100
    assert {each["error"]["code"] for each in bad.values()} == {"batch_cancelled"}
    assert done["request_counts"] == {"total": 200, "completed": len(good), "failed": len(bad)}
    assert api.api.request("POST", f"/v1/batches/{created['id']}/cancel").json() == done


def test_a_batch_that_has_ended_is_not_cancelled(batches: Any) -> None:
    api = batches()
    done = api.wait(api.create([line("a")]))
    refused = api.api.request("POST", f"/v1/batches/{done['id']}/cancel")
    assert (refused.status_code, refused.json()["error"]["message"]) == (
        409,
        "Cannot cancel a batch with status 'completed'.",
    )


async def test_a_batch_expires_in_virtual_time() -> None:
    """Lines of ten hours each, two at once: after a day four are done."""
    app = create_app(ClusterConfig(ttft_ms=36e6, itl_ms=0.0, max_num_seqs=4, instances=1))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
        text = "\n".join(json.dumps(line(str(number))) for number in range(9))
        file = await client.post("/v1/files", files={"file": ("a", text.encode())}, data={"purpose": "batch"})
        body = {"input_file_id": file.json()["id"], "endpoint": CHAT, "completion_window": "24h"}
        batch = (await client.post("/v1/batches", json=body)).json()
        while batch["status"] in ("validating", "in_progress"):
            await asyncio.sleep(600)
            batch = (await client.get(f"/v1/batches/{batch['id']}")).json()
        late = (await client.get(f"/v1/files/{batch['error_file_id']}/content")).text.splitlines()
    assert (batch["status"], batch["request_counts"]) == ("expired", {"total": 9, "completed": 4, "failed": 5})
    assert [json.loads(each)["error"]["code"] for each in late] == ["batch_expired"] * 5
    assert batch["expired_at"] - batch["expires_at"] in (0, 1)
    assert 86_400 <= asyncio.get_running_loop().time() <= 87_600


def test_others_come_first(batches: Any) -> None:
    """A line begins while seats are free, half of them at most; nobody else waits for a batch."""
    api = batches(ttft_ms=None, itl_ms=None, max_num_seqs=4, instances=1, speed=50.0)
    created = api.create([line(str(number), max_tokens=400) for number in range(40)])
    api.wait(created, "in_progress")
    most = 0
    for _ in range(20):
        text = api.api.request("GET", "/metrics").text
        [running] = [each for each in text.splitlines() if each.startswith("llmirage:batch_lines_running")]
        most = max(most, int(float(running.split()[1])))
        api.runner.run(asyncio.sleep(0.01))
    assert most == 2
    assert api.api.chat(max_tokens=2).status_code == 200
    assert api.wait(created)["request_counts"]["completed"] == 40


def test_deleting_the_input_does_not_hurt_and_two_batches_share_it(batches: Any) -> None:
    api = batches(ttft_ms=20.0, itl_ms=1.0)
    file_id = api.upload([line(str(number)) for number in range(100)])
    two = [api.create([], input_file_id=file_id) for _ in range(2)]
    api.wait(two[1], "in_progress")
    assert api.api.request("DELETE", f"/v1/files/{file_id}").json()["deleted"]
    for batch in two:
        assert api.wait(batch)["request_counts"]["completed"] == 100
    assert file_id not in api.api.request("GET", "/v1/files").text
    assert api.api.app.files.count() == 2


def test_a_batch_goes_on_after_a_restart(batches: Any, tmp_path: Path) -> None:
    settings = {"state": str(tmp_path / "state.db"), "ttft_ms": 20.0, "itl_ms": 1.0, "max_num_seqs": 8}
    api = batches(**settings)
    created = api.create([line(str(number)) for number in range(60)])
    while api.get(created)["request_counts"]["completed"] < 10:
        api.runner.run(asyncio.sleep(0.01))
    before = api.get(created)["request_counts"]["completed"]
    api.api.app.batches.close()  # as after a kill: nothing more is written
    api.runner.run(asyncio.sleep(0))
    again = batches(**settings | {"state": str(left_by_a_kill(tmp_path / "state.db"))})
    begun = again.get(created)
    assert begun["status"] == "in_progress"
    done = again.wait(created)
    assert 10 <= before < 60
    assert done["request_counts"] == {"total": 60, "completed": 60, "failed": 0}
    results = again.results(done["output_file_id"])
    assert len(results) == 60
    assert done["usage"]["output_tokens"] == 180
    text = again.api.request("GET", f"/v1/files/{done['output_file_id']}/content").text
    assert len(text.splitlines()) == 60
    assert again.api.request("GET", f"/v1/files/{done['output_file_id']}").json()["bytes"] == len(text.encode())


def test_sleep_holds_a_batch_up(batches: Any) -> None:
    api = batches(ttft_ms=20.0, itl_ms=1.0, max_num_seqs=8)
    created = api.create([line(str(number)) for number in range(60)])
    api.wait(created, "in_progress")
    assert api.api.request("POST", "/sleep").status_code == 200
    api.runner.run(asyncio.sleep(0.1))
    assert api.get(created)["status"] == "in_progress"
    assert api.api.request("POST", "/wake_up").status_code == 200
    assert api.wait(created)["request_counts"] == {"total": 60, "completed": 60, "failed": 0}


def test_rate_limits_do_not_count_lines(batches: Any) -> None:
    api = batches(rate_limit=5)
    done = api.wait(api.create([line(str(number)) for number in range(20)]))
    assert done["request_counts"]["completed"] == 20


def test_results_without_room_fail_the_batch(batches: Any) -> None:
    api = batches(files_mib=1)
    lines = [line(str(number), max_tokens=400, ignore_eos=True) for number in range(800)]
    failed = api.wait(api.create(lines), "failed")
    assert [each["code"] for each in failed["errors"]["data"]] == ["storage_limit_exceeded"]
    assert failed["output_file_id"] is None
    assert api.api.app.files.count() == 1
    assert api.api.app.batches._gate.inside() == 0


def test_too_many_at_once(batches: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner_module, "MOST_UNENDED", 2)
    monkeypatch.setattr(runner_module, "MOST_BATCHES", 3)
    api = batches()
    ended = [api.wait(api.create([line("a")])) for _ in range(4)]
    assert [each["id"] for each in api.api.request("GET", "/v1/batches").json()["data"]] == [
        each["id"] for each in ended[:0:-1]
    ]
    slow = batches(ttft_ms=60_000.0, itl_ms=1.0)
    file_id = slow.upload([line("a")])
    body = {"input_file_id": file_id, "endpoint": CHAT, "completion_window": "24h"}
    statuses = [slow.api.post("/v1/batches", body).status_code for _ in range(3)]
    assert statuses == [200, 200, 429]


def test_faults_on_order_meet_lines(batches: Any) -> None:
    api = batches()
    assert api.api.post("/llmirage/faults", {"kind": "status", "status": 500}).status_code == 200
    done = api.wait(api.create([line("a")]))
    assert api.results(done["error_file_id"])["a"]["response"]["status_code"] == 500


def test_metrics_count_files_and_batches(batches: Any) -> None:
    api = batches()
    api.wait(api.create([line("a")]))
    text = api.api.request("GET", "/metrics").text
    assert 'llmirage:batches{status="completed"} 1.0' in text
    assert "llmirage:files 2.0" in text


def test_the_result_is_json_a_line(batches: Any) -> None:
    api = batches(replies="echo")
    said = "a\nb\u2028\U0001f600"
    done = api.wait(api.create([line("x", messages=[{"role": "user", "content": said}], max_tokens=None)]))
    content = api.api.request("GET", f"/v1/files/{done['output_file_id']}/content").content
    [only] = content.splitlines()
    assert json.loads(only)["response"]["status_code"] == 200


def test_a_line_of_too_many_values_fails_the_batch(batches: Any) -> None:
    api = batches()
    values = [0] * 1_100_000
    failed = api.wait(api.create([line("a"), line("b", "/v1/embeddings", input=values)]), "failed")
    assert [each["code"] for each in failed["errors"]["data"]] == ["request_too_large"]


def test_long_lines_of_batches_wait_for_room(batches: Any) -> None:
    api = batches(unread_mib=16, ttft_ms=50.0)
    budget, seen = api.api.app.unread, []
    created = api.create([line(str(number), user="x" * 400_000) for number in range(6)])
    takes = budget.change

    def watched(by: int, most: int) -> bool:
        taken = takes(by, most)
        seen.append((budget.taken, api.api.app.batches._gate.inside()))
        return bool(taken)

    budget.change = watched
    assert api.wait(created)["request_counts"] == {"total": 6, "completed": 6, "failed": 0}
    assert max(inside for _, inside in seen) == 2  # of 1.6 MB each, in a quarter of the room
    assert 3_000_000 < max(taken for taken, _ in seen) <= 4 << 20
    assert not budget.taken


def test_lines_wait_for_room_for_their_replies(batches: Any) -> None:
    api = batches(unread_mib=2)
    fields = {"max_tokens": 400, "ignore_eos": True, "logprobs": True, "top_logprobs": 20}
    done = api.wait(api.create([line(str(number), **fields) for number in range(6)]))  # 0.6 MB each: one has half
    assert done["request_counts"] == {"total": 6, "completed": 6, "failed": 0}
    too_large = api.wait(api.create([line("a", **fields | {"max_tokens": 1000})]))
    assert too_large["request_counts"] == {"total": 1, "completed": 0, "failed": 1}
    assert not api.api.app.unread.taken
