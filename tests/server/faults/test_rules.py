"""Which requests a fault happens to, what the journal says of it, and faults added and removed at run time."""

import asyncio
import json
from collections.abc import Iterable
from typing import Any

import httpx
import pytest
from faulty import CHAT, ask, new_app

from llmirage_client.simulator.memory import MemoryTransport
from llmirage_server.faults.rule import FAULTS
from llmirage_shared import virtual_time

Requests = Iterable[dict[str, Any]]
MISS, HIT = 200, 503


def outcomes(faults: list[Any], requests: Requests, gap_s: float = 0.0, **settings: Any) -> list[int]:
    """The statuses of requests, one after the other, while these faults are in force."""

    async def main() -> list[int]:
        app = new_app(**settings)
        added = await ask(app, path="/llmirage/faults", faults=faults)
        assert added.status == 200, added.body
        statuses = []
        for request in requests:
            statuses.append((await ask(app, **request)).status)
            await asyncio.sleep(gap_s)
        return statuses

    return virtual_time.run(main())


def fault(**conditions: Any) -> dict[str, Any]:
    return {"kind": "status", "status": HIT, **conditions}


def test_without_conditions_it_happens_to_all_that_generate() -> None:
    paths = [CHAT, "/v1/completions", "/v1/responses", "/v1/messages"]
    assert outcomes([fault()], [{"path": path} for path in paths]) == [HIT] * 4
    assert outcomes([fault()], [{"path": "/tokenize", "model": "x", "prompt": "Hi"}]) == [MISS]


@pytest.mark.parametrize(
    ("endpoint", "hit"),
    [("chat", True), (CHAT, True), ("/v1/*", True), ("completions", False), ("/v1/models", False), ("*chat*", None)],
)
def test_by_endpoint(endpoint: str, hit: bool | None) -> None:
    if hit is None:
        with pytest.raises(AssertionError, match="must be one of chat"):
            outcomes([fault(endpoint=endpoint)], [{}])
    else:
        assert outcomes([fault(endpoint=endpoint)], [{}]) == [HIT if hit else MISS]


def test_by_endpoint_of_several() -> None:
    asked = [{}, {"path": "/v1/completions"}, {"path": "/v1/embeddings", "model": "x", "input": "Hi"}]
    assert outcomes([fault(endpoint="completions")], asked) == [MISS, HIT, MISS]
    assert outcomes([fault(endpoint="/v1/*")], asked) == [HIT, HIT, HIT]


def test_by_model_as_the_request_names_it() -> None:
    asked: list[dict[str, Any]] = [{"model": name} for name in ("gpt-4o", "gpt-4o-mini", "qwen")]
    assert outcomes([fault(model="gpt-4o")], asked) == [HIT, MISS, MISS]
    assert outcomes([fault(model="gpt-*")], asked) == [HIT, HIT, MISS]


def test_only_a_star_stands_for_something_else() -> None:
    asked: list[dict[str, Any]] = [{"model": name} for name in ("a[1]?", "a1x", "a[1]??")]
    assert outcomes([fault(model="a[1]?")], asked) == [HIT, MISS, MISS]
    assert outcomes([fault(model="*[1]*")], asked) == [HIT, MISS, HIT]


def test_by_key() -> None:
    assert outcomes([fault(key="sk-a")], [{"key": "sk-a"}, {"key": "sk-b"}]) == [HIT, MISS]


@pytest.mark.parametrize("stream", [False, True])
def test_by_instance(stream: bool) -> None:
    requests = [{"stream": stream}] * 4
    found = outcomes([fault(instance=1, retry_after_s=1)], requests, router="round_robin")
    assert found == [MISS, HIT, MISS, HIT]


def test_the_first_n_then_none() -> None:
    assert outcomes([fault(times=2)], [{}] * 4) == [HIT, HIT, MISS, MISS]


def test_a_share_of_the_requests_by_the_seed() -> None:
    drawn = [outcomes([fault(probability=0.3)], [{}] * 200, seed=seed) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert 40 <= drawn[0].count(HIT) <= 80


def test_a_window_of_the_cluster_s_time() -> None:
    requests: list[dict[str, Any]] = [{"max_tokens": 1}] * 5
    assert outcomes([fault(from_s=12, until_s=32)], requests, gap_s=10) == [MISS, MISS, HIT, HIT, MISS]
    # At ten times the speed, as much of the cluster's time passes in a tenth of the client's.
    assert outcomes([fault(from_s=12, until_s=32)], requests, gap_s=1, speed=10.0) == [MISS, MISS, HIT, HIT, MISS]


async def test_a_window_begins_when_the_fault_is_added() -> None:
    app, statuses = new_app(), []
    await ask(app, max_tokens=1)
    await asyncio.sleep(100)
    await ask(app, path="/llmirage/faults", **fault(from_s=5, until_s=15))
    for _ in range(3):
        statuses.append((await ask(app, max_tokens=1)).status)
        await asyncio.sleep(8)
    assert statuses == [MISS, HIT, MISS]


def test_the_first_that_fits_happens() -> None:
    faults = [fault(model="a", status=500), fault(times=1, status=502), fault(status=504)]
    assert outcomes(faults, [{"model": "a"}, {"model": "b"}, {"model": "b"}, {"model": "a"}]) == [500, 502, 504, 500]


async def test_a_cut_meets_replies_in_one_piece_too() -> None:
    app = new_app()
    await ask(app, path="/llmirage/faults", kind="cut", times=1)
    whole, *_ = [await ask(app, stream=stream) for stream in (False, True, True)]
    assert whole.error is not None


def test_a_fault_of_streams_leaves_other_requests_alone() -> None:
    assert outcomes([{"kind": "missing_done", "times": 1}, fault()], [{}, {"stream": True}]) == [HIT, MISS]


def test_delays_scale_with_the_speed() -> None:
    async def main(speed: float | str) -> float:
        return (await ask(new_app(speed=speed), "ttft; added_s=30", max_tokens=1)).took_s

    assert virtual_time.run(main(10.0)) == pytest.approx(3.01)
    assert asyncio.run(main(float("inf"))) < 5


async def test_a_client_that_leaves_while_it_waits() -> None:
    app = new_app()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(10):
            await ask(app, "ttft; added_s=1000")
    await asyncio.sleep(1)
    entry = app.journal.entries[-1].shown()
    assert (entry["outcome"], entry["fault"], entry["output_tokens"]) == ("client_left", "ttft", 0)


@pytest.mark.parametrize(
    ("given", "outcome", "status"),
    [
        ("cut", "cut", 200),
        ("reset", "cut", None),
        ("error_event", "cut", 200),
        ("status", "complete", 500),
        ("stall", "complete", 200),
    ],
)
def test_the_journal_names_the_fault(given: str, outcome: str, status: int | None) -> None:
    async def main() -> Any:
        app = new_app()
        await ask(app, given, stream=True)
        await asyncio.sleep(1)
        return app.journal.entries[-1].shown()

    entry = virtual_time.run(main())
    assert (entry["fault"], entry["outcome"], entry["status"]) == (given, outcome, status)


async def test_the_journal_names_the_model_of_a_request_that_was_refused_before_it_was_read() -> None:
    app = new_app()
    for model in ("gpt-4o", 5, None):
        await ask(app, "status; status=429", model=model)
    assert [(entry.status, entry.model) for entry in app.journal.entries] == [(429, "gpt-4o"), (429, ""), (429, "")]


async def test_a_refused_request_stays_as_it_is() -> None:
    reply = await ask(new_app(), "cut", max_tokens=-1)
    assert (reply.status, reply.error) == (400, None)


# --- at run time ---


async def test_faults_are_listed_with_what_they_did_and_removed() -> None:
    app = new_app()
    await ask(app, path="/llmirage/faults", faults=["cut; after_tokens=3", fault(times=1, key="sk-secret")])
    await ask(app, key="sk-secret")
    _, shown = await admin(app, "GET")
    cut, status = shown["faults"]
    assert (cut["kind"], cut["after_tokens"], cut["happened"]) == ("cut", 3, 1)
    assert (status["kind"], status["status"], status["happened"]) == ("status", HIT, 0)
    assert (status["key"], status["source"]) == ("[redacted]", "POST /llmirage/faults")
    assert "sk-secret" not in str(shown)
    assert [kind["name"] for kind in shown["kinds"]] == list(FAULTS)
    assert shown["kinds"][0]["example"] == {"kind": "status", "status": 429, "retry_after_s": 2, "times": 2}
    assert [condition["name"] for condition in shown["conditions"]][:3] == ["model", "endpoint", "key"]
    assert [(await admin(app, "DELETE", f"/{cut['id']}"))[0] for _ in range(2)] == [200, 404]
    assert (await ask(app, key="sk-secret")).status == HIT
    await ask(app, path="/llmirage/faults", **fault())
    assert await admin(app, "DELETE") == (200, {"faults": []})
    assert (await ask(app, key="sk-secret")).status == MISS


async def admin(app: Any, method: str, more: str = "") -> tuple[int, Any]:
    async with httpx.AsyncClient(transport=MemoryTransport(app), base_url="http://test") as client:
        response = await client.request(method, f"/llmirage/faults{more}")
    return response.status_code, response.json()


async def test_nothing_is_added_if_one_is_wrong() -> None:
    app = new_app()
    refused = await ask(app, path="/llmirage/faults", faults=[fault(), {"kind": "stattus"}, fault(statsu=1)])
    after = await ask(app)
    message = json.loads(refused.body)["error"]["message"]
    assert "faults[1].kind: there is no fault 'stattus' (did you mean 'status'?)" in message
    assert "faults[2].statsu: unknown key (did you mean 'status'?)" in message
    assert (refused.status, after.status) == (400, MISS)


def test_the_number_of_faults_in_force_is_bounded(api: Any) -> None:
    fault = {"kind": "status", "status": 500}
    given = api.post("/llmirage/faults", {"faults": [fault] * 999})
    assert given.status_code == 200, given.text
    two = api.post("/llmirage/faults", {"faults": [fault] * 2})
    assert two.status_code == 400
    assert two.json()["error"]["message"] == "at most 1000 faults can be in force; with these there would be 1001"
    assert api.post("/llmirage/faults", fault).status_code == 200
    assert api.request("DELETE", "/llmirage/faults").status_code == 200  # the other tests share the server


def test_a_pattern_is_short_and_a_number_is_one_that_can_be_counted_to(api: Any) -> None:
    for wrong, name in (
        ({"model": "x" * 1_001}, "model"),
        ({"times": 10**400}, "times"),
        ({"probability": 10**400}, "probability"),
        ({"endpoint": "/" * 1_001}, "endpoint"),
    ):
        refused = api.post("/llmirage/faults", {"kind": "status", "status": 500, **wrong})
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid_fault")
        assert f"faults[0].{name}" in refused.json()["error"]["message"]
