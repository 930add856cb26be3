"""JSON values for schemas: valid, readable, deterministic."""

import random
import re
from contextlib import suppress
from typing import Any

import attacks
import pytest
from cyclic_garbage import cyclic_garbage_of_thread
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from nasty_schemas import CONTRADICTORY, NASTY, SAMPLES, Judges, drawn_schema

from llmirage_server.replies.structured.budget import FULL, Budget, BudgetError, limited
from llmirage_server.replies.structured.schema import SchemaError
from llmirage_server.replies.structured.values import value_for

TREE = {
    "$ref": "#/$defs/node",
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "value": {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
                "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
                "children": {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 2},
            },
            "required": ["value", "next", "children"],
            "additionalProperties": False,
        }
    },
}
NAMED = [
    {"type": "string", "pattern": "^[A-Z]{2}-\\d{4}$"},
    {"type": "string", "minLength": 40, "maxLength": 60},
    {"type": "string", "format": "date-time"},
    {"type": "string", "format": "uuid"},
    {"enum": ["a", 1, None, {"b": 2}]},
    {"const": {"x": [1, 2]}},
    {"type": ["integer", "null"], "minimum": 3, "maximum": 3},
    {"type": "integer", "exclusiveMinimum": 4, "exclusiveMaximum": 6},
    {"type": "number", "multipleOf": 0.25, "minimum": 1, "maximum": 1.5},
    {"type": "array", "items": {"enum": [1, 2, 3]}, "minItems": 3, "uniqueItems": True},
    {"type": "array", "prefixItems": [{"type": "string"}, {"type": "integer"}], "items": False, "minItems": 2},
    {"type": "array", "contains": {"const": 7}, "items": {"type": "integer"}},
    {"type": "object", "additionalProperties": {"type": "integer"}, "minProperties": 4},
    {"type": "object", "patternProperties": {"^x_[a-z]{3}$": {"type": "boolean"}}, "additionalProperties": False},
    {"type": "object", "propertyNames": {"pattern": "^k[0-9]$"}, "minProperties": 2},
    {"allOf": [{"type": "object", "properties": {"a": {"type": "integer", "minimum": 2}}, "required": ["a"]},
               {"properties": {"a": {"maximum": 2}}}]},
    {"oneOf": [{"type": "integer", "multipleOf": 2}, {"type": "integer", "multipleOf": 3}], "minimum": 1, "maximum": 9},
    {"not": {"type": ["string", "object"]}},
    {"if": {"properties": {"kind": {"const": "a"}}, "required": ["kind"]}, "then": {"required": ["x"]},
     "else": {"required": ["y"]}, "type": "object", "properties": {"kind": {"enum": ["a", "b"]}}, "required": ["kind"]},
    {"type": "object", "dependentRequired": {"card": ["address"]}, "properties": {"card": {"type": "integer"}}},
    TREE,
    {}, True,
]  # fmt: skip


@pytest.mark.parametrize("schema", NAMED, ids=lambda schema: str(schema)[:60])
@pytest.mark.parametrize("seed", range(12))
def test_every_value_is_valid(schema: Any, seed: int) -> None:
    value = value_for(schema, seed)
    Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER).validate(value)


def test_the_seed_decides() -> None:
    schema = {"type": "object", "properties": {name: {"type": "string"} for name in "abcdef"}}
    assert value_for(schema, 3) == value_for(schema, 3)
    assert len({str(value_for(schema, seed)) for seed in range(10)}) > 5


def test_names_steer_the_values() -> None:
    names = ["email", "homepage_url", "city", "birthDate", "age", "temperature_celsius"]
    kinds = {"age": "integer", "temperature_celsius": "number"}
    schema = {"type": "object", "properties": {n: {"type": kinds.get(n, "string")} for n in names}, "required": names}
    value = value_for(schema, 1)
    assert "@" in value["email"]
    assert value["homepage_url"].startswith("https://")
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", value["birthDate"])
    assert value["city"].isalpha()
    assert 18 <= value["age"] <= 80
    assert -5 <= value["temperature_celsius"] <= 35


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"type": "strin"}, "strin"),
        ({"$ref": "#/$defs/missing"}, "points to nothing"),
        ({"$ref": "https://example.com/schema"}, "does not point into this schema"),
        ({"$ref": "#"}, "never come to an end"),
        ({"type": "integer", "minimum": 5, "maximum": 4}, "found no value"),
        ({"enum": [1], "type": "string"}, "found no value"),
        (False, "found no value"),
        ({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}, "found no value"),
    ],
)  # fmt: skip
def test_a_schema_nothing_satisfies_is_refused(schema: Any, said: str) -> None:
    with pytest.raises(SchemaError, match=re.escape(said)):
        value_for(schema, 0)


@pytest.mark.parametrize("name", NASTY)
def test_a_schema_that_is_hard_to_obey_is_obeyed(name: str) -> None:
    judges = Judges(NASTY[name])
    for seed in range(6):
        value = limited(lambda seed=seed: value_for(NASTY[name], seed), Budget(FULL))  # type: ignore[misc]
        assert judges.accept(value), value


@pytest.mark.parametrize("name", CONTRADICTORY)
def test_a_contradiction_is_told_with_its_place(name: str) -> None:
    schema, said = CONTRADICTORY[name]
    with pytest.raises(SchemaError, match=re.escape(said)):
        limited(lambda: value_for(schema, 1), Budget(FULL))


def test_drawn_schemas_are_obeyed_or_refused() -> None:
    """Where one of the sample values satisfies a schema, it is not refused."""
    refused = 0
    for seed in range(1_000):
        schema = drawn_schema(seed)
        judges = Judges(schema)
        try:
            value = limited(lambda schema=schema, seed=seed: value_for(schema, seed), Budget(FULL))  # type: ignore[misc]
        except SchemaError:
            refused += 1
            value = None
            wrong = any(map(judges.accept, SAMPLES))
        else:
            wrong = not judges.accept(value)
        assert not wrong, (seed, schema, value)
    assert refused < 100


def test_a_multiple_as_json_writes_it() -> None:
    """Of binary floats, 19.99 / 0.01 is not whole, as python-jsonschema has it: it is taken where nothing else is left."""
    narrow = {"type": "number", "multipleOf": 0.01, "exclusiveMinimum": 19.98, "exclusiveMaximum": 20}
    assert value_for(narrow, 1) == 19.99
    wide = {**narrow, "exclusiveMaximum": 25}
    assert all(Draft202012Validator(wide).is_valid(value_for(wide, seed)) for seed in range(30))


def test_what_was_asked_before_does_not_change_a_value() -> None:
    """Validators and languages are kept, with what they have learnt."""
    fresh = {name: str(value_for({**schema, "title": "x"}, 5)) for name, schema in NASTY.items()}
    for schema in NASTY.values():
        value_for(schema, 9)
    assert fresh == {name: str(value_for(schema, 5)) for name, schema in NASTY.items()}


def schemas(depth: int = 3) -> st.SearchStrategy[Any]:
    leaves = st.one_of(
        st.builds(lambda a, n: {"type": "string", "minLength": a, "maxLength": a + n}, st.integers(0, 9), st.integers(0, 9)),
        st.builds(lambda a, n: {"type": "integer", "minimum": a, "maximum": a + n}, st.integers(-99, 99), st.integers(0, 9)),
        st.builds(
            lambda a, n: {"type": "number", "exclusiveMinimum": a, "maximum": a + n}, st.integers(-9, 9), st.integers(1, 9)
        ),
        st.builds(lambda v: {"enum": v}, st.lists(st.one_of(st.integers(), st.text(max_size=3), st.none()), min_size=1)),
        st.sampled_from([{"type": "boolean"}, {"type": "null"}, {"type": "string", "format": "email"}, {}]),
    )

    def deeper(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        return st.one_of(
            st.builds(lambda i, a, n: {"type": "array", "items": i, "minItems": a, "maxItems": a + n},
                      inner, st.integers(0, 3), st.integers(0, 3)),
            st.builds(lambda p, k: {"type": "object", "properties": p, "required": sorted(p)[:k],
                                    "additionalProperties": False},
                      st.dictionaries(st.sampled_from(["name", "city", "count", "items", "is_ok"]), inner, max_size=4),
                      st.integers(0, 4)),
            st.builds(lambda o: {"anyOf": o}, st.lists(inner, min_size=1, max_size=3)),
            st.builds(lambda a: {"allOf": [a, {}]}, inner),
        )  # fmt: skip

    return st.recursive(leaves, deeper, max_leaves=8)


@given(schemas(), st.integers(0, 2**63))
def test_values_of_any_schema_are_valid(schema: Any, seed: int) -> None:
    Draft202012Validator(schema).validate(value_for(schema, seed))


def test_a_pattern_that_a_usual_value_matches_gives_the_usual_value() -> None:
    schema = {"type": "string", "format": "email", "pattern": r"^[\w.+'-]+@([A-Za-z0-9-]+\.)+[A-Za-z]{2,}$"}
    assert all(value_for(schema, seed).endswith("@example.com") for seed in range(20))
    assert all(len(value_for(schema | {"maxLength": 12}, seed)) <= 12 for seed in range(20))


def test_a_thread_that_ends_leaves_nothing_to_the_collector_of_cycles() -> None:
    def work() -> None:
        for schema in [TREE, *NAMED, *NASTY.values(), *[attacks.schema(random.Random(seed)) for seed in range(40)]]:
            with suppress(SchemaError, BudgetError):
                limited(lambda schema=schema: value_for(schema, 1), Budget(FULL // 10))  # type: ignore[misc]

    assert cyclic_garbage_of_thread(work) == []
