"""The page of a run: whole, safe, small, and saying what matters first."""

import base64
import dataclasses
import hashlib
import json
import re
import uuid

import pytest
from drawn import Document, charts_of
from made_runs import family, many, record, run

from llmirage_client.measure.record import RequestError, RunResult
from llmirage_client.report.html import run_view
from llmirage_client.report.html.page import PageHead, Section, table
from llmirage_client.report.html.page import page as page_with
from llmirage_client.report.html.run_page import run_page
from llmirage_client.report.html.run_view import view_run

HOSTILE = "\"><img src=x onerror=alert(1)><script>alert(2)</script>'</title></style>\x00\ud800"


def page_of(result: RunResult) -> str:
    return run_page([("run", result)])


@pytest.fixture(scope="module")
def usual() -> str:
    return page_of(run(many(30, 6) + family()))


def test_the_page_has_every_section_of_a_run(usual: str) -> None:
    said = Document(usual).text
    for heading in (
        "Distributions",
        "Over time",
        "Conversations",
        "Turns and branches",
        "What it depends on",
        "Slowest requests",
    ):
        assert re.search(rf"<h2 [^>]*>{heading}</h2>", usual), heading
    for title in ("Time to first token (TTFT)", "Time per output token (TPOT)", "Between chunks (ITL)", "Request latency"):
        assert title in said
    for title in ("Cache hits by turn", "Requests in flight", "Output tokens per second"):
        assert title in said


def test_the_navigation_leads_to_every_section(usual: str) -> None:
    links = [a["href"] for tag, a in Document(usual).elements if tag == "a"]
    places = [a["id"] for tag, a in Document(usual).elements if tag == "h2"]
    assert links == [f"#{place}" for place in places]


def test_nothing_is_fetched_from_anywhere(usual: str) -> None:
    for tag, attributes in Document(usual).elements:
        assert tag not in ("link", "img", "iframe", "object", "embed", "base", "form"), tag
        assert "src" not in attributes
        assert not any(name.startswith("on") for name in attributes), attributes
        assert (attributes.get("href") or "#").startswith("#")
    assert "url(" not in usual
    assert "@import" not in usual
    assert "@font-face" not in usual


def test_no_script_but_its_own_may_run(usual: str) -> None:
    document = Document(usual)
    policy = next(a["content"] for tag, a in document.elements if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    scripts = re.findall(r"<script>(.*?)</script>", usual, re.DOTALL)
    assert len(scripts) == document.count("script") == 1
    allowed = base64.b64encode(hashlib.sha256(scripts[0].encode()).digest()).decode()
    assert f"script-src 'sha256-{allowed}'" in policy
    assert policy.startswith("default-src 'none'")


def test_strings_of_a_run_cannot_become_markup() -> None:
    records = [
        record(HOSTILE, 0, 0.0),
        record(HOSTILE, 1, 1.0, joined=("child",)),
        record("child", 0, 0.5, parent=HOSTILE, root=HOSTILE, mode="fork", parent_turn=0, depth=1),
        record("failed", error=RequestError(500, HOSTILE, HOSTILE)),
    ]
    result = run(
        records,
        model=HOSTILE,
        url=f"http://user:secret@{HOSTILE}",
        workload_path=HOSTILE,
        workload_format=HOSTILE,
        cancelled=True,
        cancel_reason=HOSTILE,
        notes=[HOSTILE],
        options={"concurrency": HOSTILE},
        version=HOSTILE,
    )
    plain = {
        tag for tag, _ in Document(page_of(run([*family(), record("failed", error=RequestError(500, "a", "b"))]))).elements
    }
    for page in (page_of(result), run_page([(HOSTILE, result), ("b", result)])):
        document = Document(page)  # every element closes: nothing broke out of its place
        assert {tag for tag, _ in document.elements} <= plain | {"ul", "li"}
        assert document.count("script") == 1
        assert document.count("img") == 0
        assert "alert(1)" in document.text
        assert "secret" not in page
        assert charts_of(page)


def test_every_chart_has_its_values_without_a_script(usual: str) -> None:
    drawn = charts_of(usual)
    assert len(drawn) >= 14
    assert not [chart.title for chart in drawn if not re.search(r"\d", chart.table)]
    ttft = next(chart for chart in drawn if chart.title == "Time to first token (TTFT)")
    assert " ".join(ttft.rows[-1]).replace(" ", "") in ttft.table.replace(" ", "")


def test_the_library_is_in_the_page_once_with_its_licence_and_only_where_it_draws(usual: str) -> None:
    assert usual.count("var uPlot=") == 1
    assert "uPlot 1.6.32" in usual
    assert "Permission is hereby granted" in usual
    assert "uPlot" not in page_with(PageHead("No chart"), [Section("Text", [table(["a"], [["b"]])])])


def test_a_page_of_fifty_thousand_requests_is_under_two_megabytes() -> None:
    page = page_of(run(many(2500, 20, tokens=2)))
    assert len(page.encode()) < 2_000_000
    assert "of 2,500 conversation trees" in page
    assert re.search(r"Drawn are 4,000 of 4\d,\d{3} requests, the highest among them", page)


def test_a_page_of_ten_thousand_requests_is_under_a_megabyte_and_has_them_all() -> None:
    records = many(10_000, 1)
    for one in records:
        one.request_id = str(uuid.uuid5(uuid.NAMESPACE_OID, one.request_id))
    page = page_of(run(records))
    assert len(page.encode()) < 1_000_000
    chart = next(a for _, a in Document(page).elements if a.get("id") == "swimlane")
    assert len(json.loads(chart["data-lanes"] or "")["start"]) == 10_000


def test_whole_conversations_have_figures_of_their_own(usual: str) -> None:
    summary = view_run(run(many(30, 6) + family())).metrics.per_conversation["conversation_latency"]
    assert f"Conversation Latency (ms) {summary.avg:,.1f} {summary.p50:,.1f}" in Document(usual).text


def test_success_is_said() -> None:
    assert [v.headline for v in run_view.verdicts(view_run(run(family())))] == ["All 7 requests succeeded"]


def test_failures_come_first_and_in_figures() -> None:
    records = [*family(), record("bad", error=RequestError(500, "boom", "it broke"))]
    found = run_view.verdicts(view_run(run(records, cancelled=True, cancel_reason="Ctrl-C")))
    assert [(v.state, v.headline) for v in found] == [
        ("bad", "1 of 8 requests failed (12 %)"),
        ("warn", "The run was cut short (Ctrl-C)"),
    ]
    assert found[0].reasons[0] == "1 failed (500, boom): it broke"
    page = page_of(run(records))
    assert re.search(r"<h2 [^>]*>Errors</h2>", page)


def test_a_run_without_a_success_says_there_is_nothing_to_measure() -> None:
    page = page_of(run([record("bad", error=RequestError(None, "connection_refused", "nothing listens"))]))
    assert "1 of 1 request failed: there is nothing to measure" in Document(page).text
    assert "nothing listens" in page


def test_an_empty_run_has_a_page() -> None:
    assert "No request was finished" in Document(page_of(run([], cancelled=True))).text


def test_a_slow_client_is_a_warning() -> None:
    slow = run(family(), client_lag_s=(0.5,) * 50)
    assert [v.state for v in run_view.verdicts(view_run(slow))] == ["warn", "good"]
    assert "This client was late" in page_of(slow)


def test_figures_of_the_page_are_those_of_the_metrics(usual: str) -> None:
    view = view_run(run(many(30, 6) + family()))
    shown = {card.label: card.value for card in run_view.cards(view)}
    summary = view.metrics.per_request["time_to_first_token"]
    assert shown["TTFT, median"] == f"{summary.p50:.2f}"[: len(shown["TTFT, median"])]
    assert shown["Requests"] == f"{view.metrics.whole_run['request_count']:.0f}"
    assert f">{shown['Output tokens']} <small>" in usual


def test_replies_in_one_piece_leave_out_what_cannot_be_known() -> None:
    plain = record()
    plain.exchange.streamed = False
    said = Document(page_of(run([plain]))).text
    assert "Request latency" in said
    assert "Time to first token (TTFT) over time" not in said
    assert "Replies were not streamed" in said


def test_unreported_caches_are_left_out() -> None:
    said = Document(page_of(run([record(cached=None), record(turn=1, start_s=1.0, cached=None)]))).text
    assert "Cache hits by turn" not in said
    assert "TTFT against input tokens that were not cached" not in said


def test_the_load_is_said_in_the_words_of_the_command_line() -> None:
    assert run_view.load_text({"concurrency": 8, "arrival_pattern": "poisson", "speed": 3.0}) == "concurrency 8"
    assert (
        run_view.load_text({"request_rate": 2.5, "arrival_pattern": "gamma", "fixed_schedule": False})
        == "request rate 2.5, arrival pattern gamma"
    )
    assert run_view.load_text({"fixed_schedule": True, "api_key": "secret"}) == "fixed schedule"
    assert run_view.load_text({"concurrency": None}) == "one conversation after the other"
    assert run_view.load_text({}) == ""


def test_pages_of_the_same_run_are_the_same(usual: str) -> None:
    assert page_of(run(many(30, 6) + family())) == usual


def test_the_head_says_which_cluster_served_and_its_price() -> None:
    pool = {"model": "m", "gpu": "h100_sxm", "engine": "vllm", "weights": "fp8", "kv_cache_dtype": "bf16", "instances": 2}
    pool |= {"tensor_parallel_size": 4, "expert_parallel_size": 8, "gpus_per_instance": 4, "usd_per_h": [16.0, 40.0]}
    served = dataclasses.replace(run(family()), deployment=[pool | {"router": "prefix"}])
    said = run_view.facts(view_run(served))
    assert said["Cluster"] == "2 instances of 4x h100_sxm, TP4 EP8, fp8 weights, bf16 KV, vllm, router prefix"
    assert said["Price"] == "16.00 to 40.00 USD/h (on-demand prices of the catalogue)"


def test_the_head_says_nothing_of_a_cluster_that_is_not_known() -> None:
    assert not {"Cluster", "Price"} & set(run_view.facts(view_run(run(family()))))
    partly = dataclasses.replace(run(family()), deployment=[{"gpu": "h100_sxm"}, {"gpu": "own", "usd_per_h": None}])
    assert run_view.facts(view_run(partly))["Cluster"] == "h100_sxm; own"
