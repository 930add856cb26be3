"""Which rule of a script replies: its conditions, its turn, and the fault that comes before its reply or in it."""

import time
from collections.abc import Callable
from typing import Any

import pytest
from scripted import MODEL, said

from llmirage_server.config import ConfigError
from llmirage_server.replies.scripts.conditions import TextMatch
from llmirage_server.replies.structured.budget import BRIEF, Budget, BudgetError, limited

MESSAGES = [{"role": "user", "content": "Hello"}]


@pytest.mark.parametrize(
    ("when", "fields", "headers", "fits"),
    [
        ({"user": "WEATHER"}, {}, {}, True),
        ({"user": {"exact": "weather"}}, {}, {}, False),
        ({"user": {"regex": "^what.s"}}, {}, {}, False),
        ({"user": {"contains": ["what", "weather"]}}, {}, {}, True),
        ({"user": {"contains": ["what", "rain"]}}, {}, {}, False),
        ({"system": "terse"}, {}, {}, True),
        ({"system": "long"}, {}, {}, False),
        ({"model": "gpt-*"}, {"model": "gpt-4o"}, {}, True),
        ({"model": "gpt-4"}, {"model": "gpt-4o"}, {}, False),
        ({"turn": 2}, {}, {}, True),
        ({"turn": {"from": 3}}, {}, {}, False),
        ({"endpoint": ["messages", "chat"]}, {}, {}, True),
        ({"header": {"X-Tenant": "acme"}}, {}, {"x-tenant": "acme"}, True),
        ({"header": {"X-Tenant": "acme"}}, {}, {"x-tenant": "acme2"}, False),
        ({"header": {"X-Tenant": "*"}}, {}, {}, False),
        ({"metadata": {"run": "a*"}}, {"metadata": {"run": "abc"}}, {}, True),
        ({"metadata": {"run": "a*"}}, {}, {}, False),
        ({"tool_result": False}, {}, {}, True),
        ({"tool_result": True}, {}, {}, False),
    ],
)
def test_conditions(scripted: Callable[..., Any], when: Any, fields: Any, headers: Any, fits: bool) -> None:
    messages = [
        {"role": "system", "content": "Be terse"},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello"},
        {"role": "user", "content": [{"type": "text", "text": "What's the weather?"}]},
    ]
    api = scripted({"when": when, "reply": "yes"}, {"reply": "no"})
    body = {"model": MODEL, "messages": messages} | fields
    assert said(api.post("/v1/chat/completions", body, headers=headers)) == ("yes" if fits else "no")


def test_expressions_that_backtracking_engines_never_end_take_no_time(scripted: Callable[..., Any]) -> None:
    rules = [{"when": {"user": {"regex": f"(a|aa)+N{number}$"}}, "reply": "yes"} for number in range(100)]
    api = scripted(*rules, {"reply": "no"})
    started_s = time.process_time()
    assert said(api.chat("a" * 3000)) == "no"
    assert time.process_time() - started_s < 0.5


def test_a_request_has_one_budget_for_all_expressions(scripted: Callable[..., Any]) -> None:
    rules = [{"when": {"user": {"regex": f"[ab]*a[ab]{{300}}c{number}"}}, "reply": "yes"} for number in range(100)]
    refused = scripted(*rules, {"reply": "no"}).chat("ab" * 30_000)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "messages")


def test_texts_that_rules_look_for_count_too() -> None:
    condition = TextMatch.of("contains", "needle")
    with pytest.raises(BudgetError):
        limited(lambda: [condition.fits("some " * 20_000) for _ in range(10_000)], Budget(BRIEF))
    assert not limited(lambda: any(condition.fits("some") for _ in range(BRIEF)), Budget(BRIEF))


@pytest.mark.parametrize("written", ["(?=a)b", r"(a)\1", "a++", "(?<!x)a", "(", r"[\W]"])
def test_expressions_that_must_be_tried_in_several_ways_are_refused_when_the_script_is_read(
    scripted: Callable[..., Any], written: str
) -> None:
    with pytest.raises(ConfigError, match="is not a regular expression of RE2"):
        scripted({"when": {"user": {"regex": written}}, "reply": "yes"})


@pytest.mark.parametrize(
    ("written", "text", "fits"),
    [
        (r"^\w+$", "Größe", True),
        (r"^[\w-]+$", "é-٣", True),
        (r"^\d+$", "٣", True),
        (r"^\W$", "é", False),
        (r"^\D+$", "x٣", False),
        (r"a\sb", "a\u2003b", True),
        (r"^[\s]\S$", "\xa0\x1c", False),
        (r"a\Z", "ba", True),
        (r"[\]a]b", "]b", True),
        (r"[]a]b", "]b", True),
        (r"[^]a]b", "]b", False),
        (r"(?i)STRASSE|ÄÖ", "äö", True),
        (r"\\w", "w", False),
        (r"[[]x", "[x", True),
        (r"^[a[]$", "[", True),
        (r"^[a[^]$", "^", True),
    ],
)
def test_expressions_mean_what_python_means(scripted: Callable[..., Any], written: str, text: str, fits: bool) -> None:
    api = scripted({"when": {"user": {"regex": written}}, "reply": "yes"}, {"reply": "no"})
    assert said(api.chat(text)) == ("yes" if fits else "no")


def test_nth_sequences_and_counters(scripted: Callable[..., Any]) -> None:
    api = scripted(
        {"when": {"user": "a", "nth": 2}, "reply": "second"},
        {"when": {"user": "a", "nth": {"from": 4}}, "reply": "late {count}"},
        {"reply": ["first", {"text": "then"}, "finally {count}"]},
    )
    assert [said(api.chat("a")) for _ in range(7)] == [
        "first", "second", "then", "late 1", "late 2", "late 3", "late 4",
    ]  # fmt: skip
    assert [said(api.chat("b")) for _ in range(2)] == ["finally 3", "finally 4"]


def test_choices_one_for_each(scripted: Callable[..., Any]) -> None:
    reply = scripted({"reply": {"choices": ["one", {"refusal": "two"}]}}).chat(n=3).json()
    messages = [choice["message"] for choice in reply["choices"]]
    assert [(message["content"], message["refusal"]) for message in messages] == [
        ("one", None),
        (None, "two"),
        ("one", None),
    ]


def test_each_prompt_has_its_rule(scripted: Callable[..., Any]) -> None:
    api = scripted({"when": {"user": "one"}, "reply": "1"}, {"when": {"user": "two"}, "reply": "2"})
    reply = api.complete(["number two", "number one", "number three"], max_tokens=3).json()
    texts = [choice["text"] for choice in reply["choices"]]
    assert texts[:2] == ["2", "1"]
    assert texts[2] not in ("", "1", "2")  # no rule fits: generated


def test_the_journal_names_the_rule_and_the_misses(scripted: Callable[..., Any]) -> None:
    api = scripted({"when": {"user": "a"}, "reply": "yes"})
    api.chat("a")
    api.chat("none", max_tokens=1)
    entries = api.request("GET", "/llmirage/journal").json()["entries"]
    assert [(entry["rule"], entry["reply"] == "yes") for entry in entries] == [
        ("script rules[0]", True),
        ("fallback: generated", False),
    ]


def test_the_same_requests_get_the_same_replies(scripted: Callable[..., Any]) -> None:
    rules = [{"when": {"user": "a"}, "reply": {"tokens": 30}}, {"reply": ["x", "y"]}]
    asked = ["a", "b", "a", "c"]
    first, second = ([said(api.chat(text)) for text in asked] for api in (scripted(*rules), scripted(*rules)))
    assert first == second


# --- faults -------------------------------------------------------------------------------------------------------------


def test_a_fault_first_and_then_a_reply(scripted: Callable[..., Any]) -> None:
    api = scripted({"reply": [{"fault": {"kind": "status", "status": 503}}, "ok"]})
    refused = api.chat()
    assert (refused.status_code, api.request("GET", "/llmirage/journal").json()["entries"][0]["fault"]) == (503, "status")
    assert said(api.chat()) == "ok"


def test_a_scripted_reply_is_cut(scripted: Callable[..., Any]) -> None:
    api = scripted({"reply": "one two three four five six", "fault": "error_event; after_tokens=2"})
    body = {"model": MODEL, "messages": MESSAGES, "stream": True}
    stream = api.post("/v1/chat/completions", body).text
    assert '"error"' in stream
    assert "six" not in stream
    assert api.app.journal.entries[-1].fault == "error_event"


def test_conditions_of_a_fault_hold_in_a_script(scripted: Callable[..., Any]) -> None:
    api = scripted({"reply": "ok", "fault": {"kind": "status", "status": 429, "times": 2}})
    assert [api.chat().status_code for _ in range(3)] == [429, 429, 200]


def test_a_wrong_fault_is_refused_with_its_field(scripted: Callable[..., Any]) -> None:
    with pytest.raises(ConfigError) as refused:
        scripted({"reply": "ok", "fault": {"kind": "statsu"}}, {"reply": {"fault": {"kind": "status", "statsu": 5}}})
    first, second = refused.value.problems
    assert first.startswith("script: rules[0].fault.kind: there is no fault 'statsu' (did you mean 'status'?)")
    assert second.startswith("script: rules[1].reply.fault.statsu: unknown key (did you mean 'status'?)")
