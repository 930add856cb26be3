"""Stores by names that clients give, such as sessions and keys, stay small for any name."""

from __future__ import annotations

import gc
import re
import tracemalloc
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from llmirage_server.http.access import RateLimits, short_name


def held(api: Any) -> dict[str, float]:
    text = api.request("GET", "/metrics").text
    found = re.findall(r'^llmirage:held_bytes{holder="(.*)"} (\S+)$', text, re.MULTILINE)
    return {holder: float(count) for holder, count in found}


@given(st.text(max_size=300), st.text(max_size=300))
def test_short_names_tell_names_apart_and_stay(one: str, other: str) -> None:
    one, other = one * 3, other * 3
    assert len(short_name(one)) <= 128
    assert (short_name(one) == short_name(other)) == (one == other)
    assert short_name(short_name(one)) == short_name(one)
    assert short_name(one[:100]) == one[:100]


def test_long_names_of_sessions_are_not_kept(make_api: Any) -> None:
    api = make_api(router="session", instances=2)
    api.chat(user="warm" * 100_000, max_tokens=1)
    tracemalloc.start()
    try:
        for number in range(20):
            assert api.chat(user=f"{number}" + "x" * 400_000, max_tokens=1).status_code == 200
        assert held(api)["journal"] > 8_000_000  # whole requests, up to a limit of their own
        api.request("DELETE", "/llmirage/journal")
        gc.collect()  # the requests of the client
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 1_000_000  # the names have 8,000,000
    assert held(api)["sessions"] == 21 * 384
    assert held(api)["journal"] == 0


def test_a_session_stays_together_by_a_long_name(make_api: Any) -> None:
    api = make_api(router="session", instances=4)
    for _ in range(5):
        for name in ("a" * 1000, "a" * 1001):
            api.chat(user=name, max_tokens=1)
    assert held(api)["sessions"] == 2 * 384


def test_long_keys_are_not_kept(make_api: Any) -> None:
    api = make_api(rate_limit=1000)
    for number in range(10):
        key = {"authorization": f"Bearer {number}" + "k" * 20_000}
        body = {"model": "Qwen/Qwen3-30B-A3B-Instruct-2507", "prompt": "a", "max_tokens": 1}
        assert api.post("/v1/completions", body, headers=key).status_code == 200
    limits = api.app.face.limits
    assert isinstance(limits, RateLimits)
    assert max(map(len, limits._accounts)) <= 128
    assert held(api)["rate_limits"] == 10 * 1024
