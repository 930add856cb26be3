"""Definitions of a few bytes that ask for more work than a server has time for: an answer or a refusal in bounded steps."""

from typing import Any

import pytest

from llmirage_server.replies.structured.budget import BRIEF, FULL, Budget, BudgetError, limited, spend, working_on
from llmirage_server.replies.structured.grammar import text_for
from llmirage_server.replies.structured.matcher import GrammarError
from llmirage_server.replies.structured.regex_syntax import PatternError
from llmirage_server.replies.structured.schema import SchemaError
from llmirage_server.replies.structured.strings import whole_match
from llmirage_server.replies.structured.values import value_for


def nested(levels: int, keyword: str, leaf: Any) -> Any:
    for _ in range(levels):
        leaf = {keyword: [leaf, leaf]}
    return leaf


def doubling(levels: int, key: str, more: Any) -> Any:
    steps = {f"a{i}": {**more, key: [{"$ref": f"#/$defs/a{i + 1}"}, {"$ref": f"#/$defs/a{i + 1}"}]} for i in range(levels)}
    return {"$ref": "#/$defs/a0", "$defs": {**steps, f"a{levels}": {"type": "string"}}}


TREES = {
    f"a{i}": {"type": "object", "required": ["x", "y"], "properties": {key: {"$ref": f"#/$defs/a{i + 1}"} for key in "xy"}}
    for i in range(40)
}
TOO_MUCH: dict[str, Any] = {
    "minLength": {"type": "string", "minLength": 10**9},
    "minItems": {"type": "array", "minItems": 10**9},
    "minProperties": {"type": "object", "minProperties": 10**9},
    "minContains": {"type": "array", "contains": {}, "minContains": 10**9},
    "unique booleans": {"type": "array", "items": {"type": "boolean"}, "uniqueItems": True, "minItems": 100_000},
    "repeated": {"type": "string", "pattern": "a{1000000000}"},
    "nested repetitions": {"type": "string", "pattern": "^(([a-z]{100}){100}){4}$"},
    "names": {"type": "object", "patternProperties": {"^(a+)+$": {}}, "minProperties": 300, "additionalProperties": False},
    "anyOf": nested(16, "anyOf", {"type": "string"}),
    "oneOf": nested(15, "oneOf", {"type": "string"}),
    "allOf": nested(17, "allOf", {"type": "string"}),
    "trees": {"$ref": "#/$defs/a0", "$defs": {**TREES, "a40": {"type": "string"}}},
}
LARK_TOO_MUCH = {
    "empty texts": 'start: (""~1000000)~1000000',
    "a long text": 'start: "a"~1000000000',
    "doubling rules": "start: r0\n" + "\n".join(f'r{i}: r{i + 1} r{i + 1} ""' for i in range(40)) + '\nr40: ""',
    "a long chain": "\n".join(f"r{i}: r{i + 1}" for i in range(30_000)),
    "a regular expression": "start: /(a+)+b{100000}/",
}


@pytest.mark.parametrize("name", TOO_MUCH)
def test_a_schema_that_asks_for_too_much(name: str) -> None:
    with pytest.raises(BudgetError):
        limited(lambda: value_for(TOO_MUCH[name], 1), Budget(FULL))


@pytest.mark.parametrize("name", LARK_TOO_MUCH)
def test_a_grammar_that_asks_for_too_much(name: str) -> None:
    with pytest.raises(BudgetError):
        limited(lambda: text_for(LARK_TOO_MUCH[name], 1), Budget(FULL))


@pytest.mark.parametrize(
    "definition",
    ["start: " + "[" * 60_000, "start: " + "?" * 60_000, "start: " + "(" * 5_000 + '"a"' + ")" * 5_000,
     'start: "a"{' + "1" * 60_000, "start: /" + "[a]" * 40, 'start: "' + "a" * 60_000],
    ids=lambda definition: definition[7:12],
)  # fmt: skip
def test_a_grammar_that_is_hard_to_read(definition: str) -> None:
    with pytest.raises((BudgetError, GrammarError)):
        limited(lambda: text_for(definition, 1), Budget(FULL))


@pytest.mark.parametrize(
    ("schema", "most_steps"),
    [
        (doubling(40, "anyOf", {}), FULL // 10),  # each reference is followed once
        (doubling(40, "allOf", {}), FULL // 10),
        ({"allOf": [{"anyOf": [{"minLength": i + j, "type": "string"} for i in range(400)]} for j in range(3)]}, FULL // 10),
        ({"type": "string", "pattern": r"^([A-Za-z]+\s?)+$"}, BRIEF),
        ({"type": "string", "pattern": "^.{1,65536}$"}, BRIEF),
        ({"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(100)}}, BRIEF),
        ({"type": "string", "minLength": 4_000}, BRIEF),
    ],
)
def test_what_is_no_attack_is_cheap(schema: Any, most_steps: int) -> None:
    budget = Budget(FULL)
    limited(lambda: value_for(schema, 1), budget)
    assert FULL - budget.left < most_steps


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "minimum": 10**400},
        {"type": "number", "multipleOf": 1e-320, "minimum": 1e308},
        {"type": "integer", "exclusiveMinimum": 1e308, "maximum": -1e308},
        {"type": "number", "minimum": 1.7e308, "exclusiveMaximum": 1.7e308},
        {"type": "array", "minItems": 10, "maxItems": 1},
    ],
    ids=str,
)
def test_numbers_that_nothing_satisfies(schema: Any) -> None:
    with pytest.raises(SchemaError):
        limited(lambda: value_for(schema, 1), Budget(FULL))


@pytest.mark.parametrize(
    "schema",
    [{"type": "number", "multipleOf": 1e-320}, {"type": "integer", "minimum": 10**300},
     {"type": "number", "minimum": 1e308, "maximum": 1.7e308},
     {"type": "number", "exclusiveMinimum": 5e-324, "maximum": 1e-300}, {"const": 10**400}],
    ids=lambda schema: str(schema)[:40],
)  # fmt: skip
def test_numbers_at_the_edge(schema: Any) -> None:
    assert limited(lambda: value_for(schema, 1), Budget(FULL)) is not None


def test_the_part_of_the_request_is_told() -> None:
    def work() -> None:
        working_on("tools[0]")
        spend(5)
        working_on("tools[1]")
        spend(6)

    with pytest.raises(BudgetError) as caught:
        limited(work, Budget(10))
    assert caught.value.part == "tools[1]"


def test_a_budget_ends_with_its_work() -> None:
    with pytest.raises(BudgetError):
        limited(lambda: spend(2), Budget(1))
    spend(10**9)  # nothing is limited outside

    def forever() -> None:
        forever()

    with pytest.raises(BudgetError):
        limited(forever, Budget(1))


def test_a_text_of_an_expression_is_bounded() -> None:
    for expression in ("(a{30000}){30000}", "((a{30}){30}){30}" * 10, ".{10000000}"):
        with pytest.raises((BudgetError, PatternError)):
            limited(lambda expression=expression: whole_match(expression, 1), Budget(FULL))  # type: ignore[misc]
