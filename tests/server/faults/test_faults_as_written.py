"""How faults are written, in a header and in a file, and what a wrong one is told."""

import asyncio
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from faulty import HttpxReply, ask, new_app
from hypothesis import given
from hypothesis import strategies as st

from llmirage_client.simulator.memory import MemoryTransport
from llmirage_server.app import create_app
from llmirage_server.config import ClusterConfig, ConfigError
from llmirage_server.faults.rule import FAULTS, read_faults_file, read_rules
from llmirage_shared import virtual_time
from llmirage_shared.yaml_lines import node_of, parse_mapping

# --- by header ---


async def test_a_header_counts_only_where_it_is_allowed(caplog: pytest.LogCaptureFixture) -> None:
    app = new_app(allow_fault_header=False)
    assert [(await ask(app, "status")).status for _ in range(2)] == [200, 200]
    assert caplog.text.count("allow_fault_header=true") == 1


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
async def test_a_wrong_header_is_refused(header: str, said: str) -> None:
    reply = await ask(new_app(), header or " ;")
    assert reply.status == 400
    assert said in json.loads(reply.body)["error"]["message"]


@pytest.mark.parametrize(("method", "path"), [("GET", "/v1/models"), ("PUT", "/generate"), ("POST", "/tokenize")])
async def test_a_header_counts_for_whatever_is_asked(method: str, path: str) -> None:
    loop = asyncio.get_running_loop()
    async with httpx.AsyncClient(transport=MemoryTransport(new_app()), base_url="http://test") as client:
        body = None if method == "GET" else {"prompt": "Hi", "text": "Hi", "sampling_params": {"max_new_tokens": 1}}
        refused = await client.request(method, path, json=body, headers={"X-Llmirage-Fault": "status; status=418"})
        sent_s = loop.time()
        later = await client.request(method, path, json=body, headers={"X-Llmirage-Fault": "ttft; added_s=50"})
    assert later.status_code in (200, 400), later.text  # /tokenize knows no `text`
    status, took_s = refused.status_code, loop.time() - sent_s
    assert (status, took_s) == (418, pytest.approx(50, abs=0.5))


async def test_a_fault_of_streams_is_refused_where_there_is_none() -> None:
    async with httpx.AsyncClient(transport=MemoryTransport(new_app()), base_url="http://test") as client:
        answer = await client.get("/v1/models", headers={"X-Llmirage-Fault": "stall"})
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


async def test_the_faults_of_a_file_are_in_force(file: Callable[[str], str]) -> None:
    path = file("faults:\n  - {kind: status, status: 503, times: 1}\n  - cut; after_tokens=2\n")
    app = create_app(ClusterConfig(faults=path))
    assert [rule.source for rule in app.faults.rules] == [f"{path}:2", f"{path}:3"]
    first, second = [await ask(app) for _ in range(2)]
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
        ("faults: []\nfaults: []\n", "2: not valid YAML: the key 'faults' stands twice in a mapping, first in line 1"),
        ("faults:\n  - {kind: cut, kind: stall}\n", "2: not valid YAML: the key 'kind' stands twice"),
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
        ("faults: " + "[" * 3000, "1: not valid YAML: nested too deep"),
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
