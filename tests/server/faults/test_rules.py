"""Which requests a fault happens to, how faults are written, and what a wrong one is told."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import httpx
import pytest
from faulty import CHAT, HttpxReply, ask, new_app
from hypothesis import given
from hypothesis import strategies as st

from llmirage_client.simulator.memory import MemoryTransport
from llmirage_server.app import create_app
from llmirage_server.config import ClusterConfig, ConfigError
from llmirage_server.faults.registry import FAULTS
from llmirage_server.faults.rule import read_faults_file, read_rules
from llmirage_shared import virtual_time
from llmirage_shared.yaml_lines import node_of, parse_mapping

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


def test_a_window_begins_when_the_fault_is_added() -> None:
    async def main() -> list[int]:
        app, statuses = new_app(), []
        await ask(app, max_tokens=1)
        await asyncio.sleep(100)
        await ask(app, path="/llmirage/faults", **fault(from_s=5, until_s=15))
        for _ in range(3):
            statuses.append((await ask(app, max_tokens=1)).status)
            await asyncio.sleep(8)
        return statuses

    assert virtual_time.run(main()) == [MISS, HIT, MISS]


def test_the_first_that_fits_happens() -> None:
    faults = [fault(model="a", status=500), fault(times=1, status=502), fault(status=504)]
    assert outcomes(faults, [{"model": "a"}, {"model": "b"}, {"model": "b"}, {"model": "a"}]) == [500, 502, 504, 500]


def test_a_fault_of_streams_leaves_other_requests_alone() -> None:
    async def main() -> list[HttpxReply]:
        app = new_app()
        await ask(app, path="/llmirage/faults", kind="cut", times=1)
        return [await ask(app, stream=stream) for stream in (False, True, True)]

    whole, *_ = virtual_time.run(main())
    assert whole.error is not None  # a cut meets replies in one piece, too
    assert outcomes([{"kind": "missing_done", "times": 1}, fault()], [{}, {"stream": True}]) == [HIT, MISS]


def test_delays_scale_with_the_speed() -> None:
    async def main(speed: float | str) -> float:
        return (await ask(new_app(speed=speed), "ttft; added_s=30", max_tokens=1)).took_s

    assert virtual_time.run(main(10.0)) == pytest.approx(3.01)
    assert asyncio.run(main(float("inf"))) < 5


def test_a_client_that_leaves_while_it_waits() -> None:
    async def main() -> Any:
        app = new_app()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(10):
                await ask(app, "ttft; added_s=1000")
        await asyncio.sleep(1)
        return app.service.journal.entries[-1].shown()

    entry = virtual_time.run(main())
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
        return app.service.journal.entries[-1].shown()

    entry = virtual_time.run(main())
    assert (entry["fault"], entry["outcome"], entry["status"]) == (given, outcome, status)


def test_the_journal_names_the_model_of_a_request_that_was_refused_before_it_was_read() -> None:
    async def main() -> list[tuple[Any, Any]]:
        app = new_app()
        for model in ("gpt-4o", 5, None):
            await ask(app, "status; status=429", model=model)
        return [(entry.status, entry.model) for entry in app.service.journal.entries]

    assert virtual_time.run(main()) == [(429, "gpt-4o"), (429, ""), (429, "")]


def test_a_refused_request_stays_as_it_is() -> None:
    async def main() -> HttpxReply:
        return await ask(new_app(), "cut", max_tokens=-1)

    reply = virtual_time.run(main())
    assert (reply.status, reply.error) == (400, None)


# --- at run time ---


def test_faults_are_listed_with_what_they_did_and_removed() -> None:
    async def main() -> None:
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

    virtual_time.run(main())


async def admin(app: Any, method: str, more: str = "") -> tuple[int, Any]:
    async with httpx.AsyncClient(transport=MemoryTransport(app), base_url="http://test") as client:
        response = await client.request(method, f"/llmirage/faults{more}")
    return response.status_code, response.json()


def test_nothing_is_added_if_one_is_wrong() -> None:
    async def main() -> tuple[HttpxReply, HttpxReply]:
        app = new_app()
        return await ask(app, path="/llmirage/faults", faults=[fault(), {"kind": "stattus"}, fault(statsu=1)]), await ask(
            app
        )

    refused, after = virtual_time.run(main())
    message = json.loads(refused.body)["error"]["message"]
    assert "faults[1].kind: there is no fault 'stattus' (did you mean 'status'?)" in message
    assert "faults[2].statsu: unknown key (did you mean 'status'?)" in message
    assert (refused.status, after.status) == (400, MISS)


# --- by header ---


def test_a_header_counts_only_where_it_is_allowed(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> list[int]:
        app = new_app(allow_fault_header=False)
        return [(await ask(app, "status")).status for _ in range(2)]

    assert virtual_time.run(main()) == [200, 200]
    assert caplog.text.count("--allow-fault-header") == 1


@pytest.mark.parametrize(
    ("header", "said"),
    [
        ("stal", "there is no fault 'stal' (did you mean 'stall'?)"),
        ("stall; for_s=-1", "for_s: must be at least 0 and at most 86,400, not -1"),
        ("stall; for_s=soon", "for_s: must be a number, not 'soon'"),
        ("stall", "the request needs stream true"),
        ("cut; clean=perhaps", "clean: must be true or false"),
        ("", "there is no fault ''"),
    ],
)
def test_a_wrong_header_is_refused(header: str, said: str) -> None:
    async def main() -> HttpxReply:
        return await ask(new_app(), header or " ;")

    reply = virtual_time.run(main())
    assert reply.status == 400
    assert said in json.loads(reply.body)["error"]["message"]


@pytest.mark.parametrize(("method", "path"), [("GET", "/v1/models"), ("PUT", "/generate"), ("POST", "/tokenize")])
def test_a_header_counts_for_whatever_is_asked(method: str, path: str) -> None:
    async def main() -> tuple[int, float]:
        loop = asyncio.get_running_loop()
        async with httpx.AsyncClient(transport=MemoryTransport(new_app()), base_url="http://test") as client:
            body = None if method == "GET" else {"prompt": "Hi", "text": "Hi", "sampling_params": {"max_new_tokens": 1}}
            refused = await client.request(method, path, json=body, headers={"X-Llmirage-Fault": "status; status=418"})
            sent_s = loop.time()
            later = await client.request(method, path, json=body, headers={"X-Llmirage-Fault": "ttft; added_s=50"})
        assert later.status_code in (200, 400), later.text  # /tokenize knows no `text`
        return refused.status_code, loop.time() - sent_s

    status, took_s = virtual_time.run(main())
    assert (status, took_s) == (418, pytest.approx(50, abs=0.5))


def test_a_fault_of_streams_is_refused_where_there_is_none() -> None:
    async def main() -> httpx.Response:
        async with httpx.AsyncClient(transport=MemoryTransport(new_app()), base_url="http://test") as client:
            return await client.get("/v1/models", headers={"X-Llmirage-Fault": "stall"})

    answer = virtual_time.run(main())
    assert answer.status_code == 400
    assert "stall happens to streams" in answer.text


@pytest.mark.parametrize("by", ["header", "post", "file", "script"])
def test_an_instance_that_is_not_there_is_refused(file: Callable[[str], str], by: str) -> None:
    said = "instance: must be at most 1, the last of the cluster, not 2"
    lines = "faults:\n  - {kind: cut, instance: 1}\n  - {kind: cut, instance: 2}\n"
    if by == "file":
        path = file(lines)
        with pytest.raises(ConfigError, match=re.escape(f"{path}:3: {said}")):
            create_app(ClusterConfig(faults=path))
        return
    if by == "script":
        with pytest.raises(ConfigError, match=re.escape(said)):
            create_app(ClusterConfig(), script={"rules": [{"reply": "a", "fault": "cut; instance=2"}]})
        return

    async def main() -> HttpxReply:
        if by == "header":
            return await ask(new_app(), "cut; instance=2")
        return await ask(new_app(), path="/llmirage/faults", kind="cut", instance=2)

    reply = virtual_time.run(main())
    assert reply.status == 400
    assert said in json.loads(reply.body)["error"]["message"]


# --- in a file ---


@pytest.fixture
def file(tmp_path: Path) -> Callable[[str], str]:
    def write(text: str) -> str:
        path = tmp_path / "faults.yaml"
        path.write_text(text)
        return str(path)

    return write


def test_every_example_is_a_fault() -> None:
    lines = "".join(f"- {kind.example}\n" for kind in FAULTS.values())
    [entry] = parse_mapping("faults:\n" + lines, "x", "a file of faults")
    assert entry.node.items is not None
    assert [item.value["kind"] for item in entry.node.items] == list(FAULTS)


def test_the_faults_of_a_file_are_in_force(file: Callable[[str], str]) -> None:
    path = file("faults:\n  - {kind: status, status: 503, times: 1}\n  - cut; after_tokens=2\n")

    async def main() -> list[HttpxReply]:
        app = create_app(ClusterConfig(faults=path))
        assert [rule.source for rule in app.service.faults.rules] == [f"{path}:2", f"{path}:3"]
        return [await ask(app) for _ in range(2)]

    first, second = virtual_time.run(main())
    assert first.status == 503
    assert second.error is not None


def test_all_problems_of_a_file_are_told_with_line_and_field(file: Callable[[str], str]) -> None:
    path = file(
        "faults:\n"
        "  - {kind: status, status: 200}\n"
        "  - kind: cut\n    after_tokens: many\n    modle: x\n"
        "  - {status: 500}\n"
        "  - {kind: stall, from_s: 5, until_s: 4}\n"
        "  - {kind: rate_limit, instance: 1, requests_per_min: 3}\n"
        "  - 7\n"
        "fault: []\n"
    )
    with pytest.raises(ConfigError) as caught:
        read_faults_file(path)
    told = [problem.removeprefix(f"{path}:") for problem in caught.value.problems]
    assert told[:3] == [
        "2: faults[0].status: must be at least 400 and at most 599, not 200",
        "4: faults[1].after_tokens: must be a whole number, not 'many'",
        "5: faults[1].modle: unknown key (did you mean 'model'?); cut has after_tokens, after_bytes, clean, model, "
        "endpoint, key, instance, probability, times, from_s, until_s",
    ]
    assert told[3].startswith("6: faults[2]: kind is missing: one of status, ")
    assert told[4:] == [
        "7: faults[3]: until_s (4) must be later than from_s (5)",
        "8: faults[4]: instance does not go with rate_limit: a request is counted before it gets an instance",
        "9: faults[5]: must be a fault such as {kind: status, status: 503}",
        "10: fault: unknown key (did you mean 'faults'?); known: faults",
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "1: faults: is missing: a file of faults begins with `faults:`"),
        ("faults: []\nfaults: []\n", "2: faults: given twice"),
        ("faults:\n  - {kind: cut, kind: stall}\n", "2: faults[0].kind: given twice"),
        ("faults:\n  - cut; times=1; times=2\n", "2: faults[0].times: given twice"),
        (
            "faults:\n  - {kind: cut, after_tokens: 1, after_bytes: 7}\n",
            "2: faults[0]: after_bytes does not go with after_tokens",
        ),
        (
            "faults:\n  - {kind: stall, endpoint: embeddings}\n",
            "2: faults[0]: stall happens to streams only, and embeddings has none",
        ),
        (
            "faults:\n  - {kind: stall, endpoint: /v1/models}\n",
            "2: faults[0]: stall happens to streams only, and /v1/models",
        ),
        ("faults:\n  - {kind: finish_reason, reason: ''}\n", "2: faults[0].reason: must not be empty"),
        ("faults: " + "[" * 3000, " nested more than 32 deep"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_its_line(file: Callable[[str], str], text: str, said: str) -> None:
    path = file(text)
    with pytest.raises(ConfigError) as caught:
        read_faults_file(path)
    [problem] = caught.value.problems
    assert problem.removeprefix(f"{path}:").startswith(said)


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats()
        | st.text()
        | st.sampled_from([*FAULTS, "cut; after_tokens=1"]),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["kind", "faults", "times", "model", "x"]) | st.text(), inner, max_size=4)
        ),
        max_leaves=12,
    )
)
def test_any_json_is_read_or_refused(given_json: Any) -> None:
    problems: list[str] = []
    rules = read_rules(node_of(given_json), "faults", lambda _, place, problem: problems.append(f"{place}: {problem}"))
    assert problems or isinstance(given_json, list)
    assert problems or len(rules) == len(given_json)
