"""Differences between what was asked of an endpoint and what came, by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from made_runs import record, run

import llmirage
from llmirage_client.measure.metrics import compute
from llmirage_client.measure.mismatch import cache_verdict, mismatches_of, other_model
from llmirage_client.measure.record import Record, RequestError
from llmirage_client.report.console import render
from llmirage_client.report.files import summary_json


def asked(reply: int | None = None, sent: int | None = None, **made: Any) -> Record:
    """Return a request that asked for a reply of `reply` tokens with a prompt of `sent`."""
    return replace(record(**made), output_tokens_asked=reply, input_tokens_asked=sent)


@pytest.mark.parametrize(
    ("one", "kinds"),
    [
        (asked(11, 100), []),
        (asked(12, 100), []),  # without its end token
        (asked(50, tokens=100), ["reply_length"]),
        (asked(500, tokens=474), ["reply_length"]),
        (asked(500, tokens=476), []),
        (asked(sent=200, prompt=20), ["prompt_length"]),
        (asked(sent=200, prompt=310), ["prompt_length"]),
        (asked(sent=200, prompt=290), []),  # another tokenizer
        (replace(asked(sent=200, prompt=290), input_tokens=200), ["prompt_length"]),  # the endpoint's own
        (record(), []),  # nothing was asked for
        (asked(50, error=RequestError(500, "server_error", "no")), []),
        (replace(asked(50, tokens=100), phase="warmup"), []),
    ],
)
def test_lengths(one: Record, kinds: list[str]) -> None:
    assert [mismatch.kind for mismatch in mismatches_of([one]).found] == kinds


def test_a_length_without_usage_is_that_of_the_events() -> None:
    silent = asked(50, tokens=100)
    silent.exchange.usage = None
    [mismatch] = mismatches_of([silent]).found
    assert (mismatch.kind, mismatch.asked, mismatch.got) == ("reply_length", 50, 100)


def test_more_chunks_than_tokens() -> None:
    doubled = record(tokens=100)
    doubled.exchange.usage = {"prompt_tokens": 100, "completion_tokens": 50}
    [mismatch] = mismatches_of([doubled, record(tokens=100)]).found
    assert (mismatch.kind, mismatch.requests, mismatch.judged) == ("chunks", 1, 2)
    assert "1 of 2 requests" in mismatch.note
    assert "50 tokens, 100 chunks" in mismatch.note


@pytest.mark.parametrize(
    ("wanted", "came", "other"),
    [
        ("gpt-4o", "gpt-4o-2024-08-06", False),
        ("meta-llama/Llama-3.1-8B", "llama-3.1-8b", False),
        ("llama", "meta/llama", False),
        ("gpt-4o", "gpt-3.5-turbo", True),
        ("llama-70b", "llama-8b", True),
        ("m", None, False),
        (None, "m", False),
        ("", "m", False),
        ({"name": "m"}, "other", False),
    ],
)
def test_names_of_models(wanted: Any, came: str | None, other: bool) -> None:
    assert (other_model(wanted, came) is not None) == other


def test_the_report_begins_with_it_and_the_summary_has_it() -> None:
    wrong = asked(50, tokens=100)
    wrong.exchange.other_model = ("gpt-4o", "tiny")
    result = run([wrong], mismatches=mismatches_of([wrong]))
    assert result.mismatches is not None
    notes = result.mismatches.notes
    assert len(notes) == 2
    assert "all requests name another model: gpt-4o asked, tiny answered" in notes[1]
    found = summary_json(result, compute(result), "")["llmirage"]["mismatches"]
    assert [one["kind"] for one in json.loads(json.dumps(found))] == ["reply_length", "model"]
    plain = run([record()], mismatches=mismatches_of([record()]))
    assert "mismatches" not in summary_json(plain, compute(plain), "")["llmirage"]


def test_the_head_of_the_report_has_it(capsys: pytest.CaptureFixture[str]) -> None:
    records = [asked(50, tokens=100)]
    render(run(records, mismatches=mismatches_of(records)))
    head = capsys.readouterr().out.partition("Latency in ms")[0]
    assert "50 tokens asked, 100 came" in " ".join(head.split())


ENGINE = {"engine": "vllm", "model": "Qwen/Qwen3-8B", "gpu": "h100_sxm", "speed": "max"}
LOAD: dict[str, Any] = {"isl": 400, "osl": 8, "turns": 6, "requests": 120, "concurrency": 4, "set": {"verify_cache": True}}


@pytest.mark.parametrize(
    ("cluster", "verdict"),
    [
        ({"instances": 2, "router": "session"}, "fine"),
        ({"instances": 1, "enable_prefix_caching": False}, "off"),
        ({"instances": 6, "router": "random"}, "scattered"),
        ({"instances": 1, "num_gpu_blocks_override": 300, "max_model_len": 4096}, "evicted"),
        ({"instances": 5, "router": "round_robin"}, "scattered"),  # one more than users: none stays at an instance
    ],
)
def test_the_verdict_names_what_is_wrong(cluster: dict[str, Any], verdict: str) -> None:
    with llmirage.Server(port=0, **ENGINE, **cluster) as server:
        report = llmirage.run(url=server.base_url, **LOAD)
    found = report.summary["cache"]
    assert found["verdict"] == verdict, found
    assert any(note.startswith("Prefix cache: ") for note in report.notes)


def sent(*cached: int | None, prompt: int = 2000) -> list[Any]:
    """A conversation of one growing prompt, one request after the other, with these cached tokens."""
    pairs = []
    for turn, count in enumerate(cached):
        one = record(turn=turn, start_s=float(turn), prompt=prompt, cached=count)
        if count is None:
            one.exchange.usage = {"prompt_tokens": prompt, "completion_tokens": 11}
        pairs.append((one, {"messages": [{"role": "user", "content": "word " * 2000}]}))
    return pairs


@pytest.mark.parametrize(
    ("cached", "prompt", "counters", "verdict", "counted_by"),
    [
        ((0, 2000, 2000), 2000, None, "fine", "usage"),
        ((0, 0, 0), 2000, None, "off", "usage"),
        ((0, 10, 0), 2000, None, "scattered", "usage"),  # a cache that is off has none at all
        ((0, 0, 0), 2000, 3900, "fine", "/metrics"),  # usage says 0 where it says nothing
        ((None, None, None), 2000, None, "not reported", None),
        ((None, None, None), 2000, 0, "off", "/metrics"),
        ((None, None, None), 2000, 1500, "too few hits", "/metrics"),
        ((0, 0, 0), 200, None, "not reported", None),  # hosted APIs do not cache so little
        ((0,), 2000, None, "nothing to judge", None),
    ],
)
def test_what_usage_and_metrics_say(
    cached: tuple[int | None, ...], prompt: int, counters: int | None, verdict: str, counted_by: str | None
) -> None:
    found = cache_verdict(sent(*cached, prompt=prompt), counters)
    assert (found.verdict, found.counted_by) == (verdict, counted_by)
    assert found.notes


def test_only_prompts_whose_first_token_had_come_count() -> None:
    pairs = sent(0, 2000)
    pairs[1][0].exchange.start_s = pairs[0][0].exchange.token_s[0] - 0.01
    assert cache_verdict(pairs, None).verdict == "nothing to judge"
