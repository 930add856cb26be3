"""The validator of values and the check of schemas, compared with python-jsonschema; and their bounds."""

import re
from contextlib import suppress
from typing import Any

import jsonschema
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from llmirage_server.replies.structured.budget import FULL, Budget, BudgetError, limited
from llmirage_server.replies.structured.schema import SchemaError
from llmirage_server.replies.structured.schema_check import MOST_LEVELS, check_schema
from llmirage_server.replies.structured.validity import Validator

NAMES = st.sampled_from(["a", "b", "x1"])
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-3, 6), st.sampled_from([0.5, 1.0, 2.5, "", "a", "ab", "x1"])),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(NAMES, inner, max_size=3)),
    max_leaves=5,
)
COUNTS = st.integers(0, 3)


def schemas() -> st.SearchStrategy[Any]:
    names = st.lists(st.sampled_from(["a", "b", "c"]), unique=True, max_size=2)
    words: dict[str, st.SearchStrategy[Any]] = {
        "type": st.sampled_from(["string", "integer", "number", "object", "array", "null", "boolean", ["string", "null"]]),
        "enum": st.lists(VALUES, max_size=3), "const": VALUES, "multipleOf": st.sampled_from([1, 2, 0.5, 3]),
        "minimum": COUNTS, "exclusiveMaximum": COUNTS, "maximum": COUNTS, "exclusiveMinimum": COUNTS, "minLength": COUNTS,
        "maxLength": COUNTS, "pattern": st.sampled_from(["^a", "b$", "[0-9]"]), "minItems": COUNTS, "maxItems": COUNTS,
        "uniqueItems": st.booleans(), "required": names, "minProperties": COUNTS, "maxProperties": COUNTS,
        "dependentRequired": st.dictionaries(st.sampled_from(["a", "b"]), names, max_size=1),
        "minContains": COUNTS, "maxContains": COUNTS, "format": st.sampled_from(["email", "date", "other"]),
        "$ref": st.sampled_from(["#/$defs/one", "#/$defs/two"]),
    }  # fmt: skip

    def deeper(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        parts, by_name = (
            st.lists(inner, min_size=1, max_size=3),
            st.dictionaries(st.sampled_from(["a", "b"]), inner, max_size=2),
        )
        by_pattern = st.dictionaries(st.sampled_from(["^a", "1$"]), inner, max_size=2)
        within = dict.fromkeys(("not", "if", "then", "else", "items", "contains", "additionalProperties", "propertyNames",
                                "unevaluatedItems", "unevaluatedProperties"), inner)  # fmt: skip
        within |= dict.fromkeys(("allOf", "anyOf", "oneOf", "prefixItems"), parts)
        within |= {"properties": by_name, "patternProperties": by_pattern, "dependentSchemas": by_name}
        return st.fixed_dictionaries({}, optional=words | within)

    return st.recursive(st.one_of(st.booleans(), st.fixed_dictionaries({}, optional=words)), deeper, max_leaves=4)


def few(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Schemas of a few keywords: with all of them, nothing is valid."""

    def kept(schema: Any, places: list[int]) -> Any:
        if not isinstance(schema, dict) or not schema:
            return schema
        items = list(schema.items())
        return dict(items[place % len(items)] for place in places)

    return st.builds(kept, strategy, st.lists(st.integers(0, 60), min_size=1, max_size=3))


LEAVES = [
    {"type": "string"},
    {"items": {"$ref": "#/$defs/two"}},
    {"minimum": 2},
    {"properties": {"a": {"$ref": "#/$defs/one"}}},
]


@given(few(schemas()), st.sampled_from(LEAVES), st.sampled_from(LEAVES), VALUES)
def test_valid_is_what_jsonschema_calls_valid(schema: Any, one: Any, two: Any, value: Any) -> None:
    if isinstance(schema, dict):
        schema = {**schema, "$defs": {"one": one, "two": two}}
    reference = Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER)
    assert Validator(schema).is_valid(value) == reference.is_valid(value)


@given(few(schemas()), VALUES)
@example({"prefixItems": [{"type": "string", "allOf": [False]}]}, [None])
def test_messages_are_those_of_jsonschema(schema: Any, value: Any) -> None:
    if "$ref" in str(schema):
        return
    reference = Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER)
    expected = {(error.message, tuple(error.absolute_path)) for error in reference.iter_errors(value)}
    found = {(problem.message, problem.path) for problem in Validator(schema).problems(value)}
    # One message of each keyword is enough: of several missing properties the first is told.
    # (python-jsonschema does not always tell the whole place of a schema `false`.)
    plain = {(_in_order(message), () if message.startswith("False schema") else path) for message, path in found}
    told = {(_in_order(message), () if message.startswith("False schema") else path) for message, path in expected}
    assert not [
        message for message, path in plain if not any(path == place and _same(message, full) for full, place in told)
    ]
    assert bool(found) == bool(expected)


def _same(message: str, full: str) -> bool:
    """Long values are cut, and end with three points."""
    return message == full or re.fullmatch(".+".join(map(re.escape, message.split("..."))), full, re.DOTALL) is not None


def test_a_long_value_is_cut_in_a_message() -> None:
    schema = {"not": {"enum": ["x" * 300]}}
    [problem] = Validator(schema).problems("x" * 300)
    [reference] = Draft202012Validator(schema).iter_errors("x" * 300)
    assert problem.message != reference.message
    assert _same(problem.message, reference.message)
    assert not _same(problem.message, reference.message.replace("should", "must"))


def _in_order(message: str) -> str:
    """Of python-jsonschema, these are in the order of the value, and as often as they are wrong."""
    if not message.startswith("Unevaluated properties are not valid"):
        return message
    names = message.partition("(")[2].partition(" w")[0].split(", ")
    return f"Unevaluated and invalid: {sorted(set(names))}"


def test_unevaluated_properties_that_are_invalid_are_listed_in_order() -> None:
    schema = {"unevaluatedProperties": {"type": "string", "enum": []}}
    [problem] = Validator(schema).problems({"b": 1, "a": 2})
    assert "('a', 'b' were unevaluated and invalid)" in problem.message
    [reference] = {_in_order(error.message) for error in Draft202012Validator(schema).iter_errors({"b": 1, "a": 2})}
    assert reference == _in_order(problem.message)


MISTAKES: list[Any] = [
    {"type": "strin"}, {"type": []}, {"type": ["string", "string"]}, {"type": None}, {"minLength": -1}, {"minLength": 1.5},
    {"properties": 5}, {"properties": {"a": 5}}, {"properties": {"a": {"type": "x"}}}, {"required": ["a", "a"]},
    {"required": "a"}, {"enum": 5}, {"pattern": "[a-"},
    {"pattern": 5}, {"patternProperties": {"[a-": {}}},
    {"multipleOf": 0}, {"minimum": "a"}, {"minimum": True}, {"allOf": []}, {"anyOf": 5}, {"anyOf": {}}, {"items": [{}]},
    {"$ref": 5}, {"$anchor": "1"}, {"$id": "#a"}, {"dependentRequired": {"a": 5}}, {"dependencies": {"a": 5}}, {"$defs": []},
    {"title": 5}, {"description": ["x"]}, {"uniqueItems": 1}, {"examples": 5}, {"contentSchema": 5}, {"if": 5}, 5, [], None,
    {"type": "strin", "minLength": -1}, {"not": {"not": {"maximum": "x"}}}, {"prefixItems": [True, 5]}, {"minContains": "a"},
]  # fmt: skip


@pytest.mark.parametrize("schema", MISTAKES, ids=str)
def test_a_mistake_is_told_in_the_words_of_jsonschema(schema: Any) -> None:
    with pytest.raises(jsonschema.SchemaError) as expected:
        Draft202012Validator.check_schema(schema)
    with pytest.raises(SchemaError) as found:
        check_schema(schema)
    assert (str(found.value), found.value.path) == (expected.value.message, ".".join(map(str, expected.value.absolute_path)))


@given(few(schemas()), st.sampled_from(["", "anyOf", "properties", "not", "minItems", "required", "type"]), VALUES)
def test_a_schema_is_what_jsonschema_calls_one(schema: Any, key: str, value: Any) -> None:
    if key and isinstance(schema, dict):
        schema = {**schema, key: value}
    try:
        Draft202012Validator.check_schema(schema)
    except jsonschema.SchemaError:
        with pytest.raises(SchemaError):
            check_schema(schema)
    else:
        check_schema(schema)


@pytest.mark.parametrize(
    ("schema", "said"), [({"minimum": 10**400}, "too large a number"), ({"multipleOf": 10**400}, "too large a number")]
)
def test_what_this_server_cannot_follow_is_refused(schema: Any, said: str) -> None:
    with pytest.raises(SchemaError, match=said):
        check_schema(schema)


def test_an_expression_that_is_not_supported_hurts_only_where_a_value_must_match_it() -> None:
    schema = {"properties": {"a": {"type": "string", "pattern": r"(a)\1"}}}
    assert Validator(schema).is_valid({"b": 1})
    assert not Validator(schema).is_valid({"a": 1})
    with pytest.raises(SchemaError, match="back-references"):
        Validator(schema).is_valid({"a": "aa"})


def test_steps_that_end_anywhere_leave_a_validator_as_it_was() -> None:
    parts = {f"p{place}": {"$anchor": f"a{place}", "$ref": f"#a{place + 1}"} for place in range(9)}
    schema = {"$ref": "#a0", "$defs": {**parts, "end": {"$anchor": "a9", "type": "string", "pattern": r"^\w+(?!x)$"}}}
    for steps in range(60):
        validator = Validator(schema)
        with suppress(BudgetError):
            limited(lambda validator=validator: validator.is_valid("text"), Budget(steps))  # type: ignore[misc]
        assert validator.is_valid("text")
        assert not validator.is_valid(5)


def _nested(levels: int, key: str) -> Any:
    schema: Any = {}
    for _ in range(levels):
        schema = {key: schema}
    return schema


def test_nesting_is_limited_everywhere() -> None:
    check_schema(_nested(MOST_LEVELS - 1, "not"))
    for key in ("not", "x-anything", "const"):
        with pytest.raises(SchemaError, match="nested too deeply"):
            check_schema(_nested(MOST_LEVELS, key))
    values: Any = 1
    for _ in range(MOST_LEVELS):
        values = [values]
    with pytest.raises(SchemaError, match="nested too deeply"):
        check_schema({"enum": [values]})


def _doubling(keyword: str, levels: int) -> Any:
    steps = {f"a{i}": {keyword: [{"$ref": f"#/$defs/a{i + 1}"}, {"$ref": f"#/$defs/a{i + 1}"}]} for i in range(levels)}
    return {"$ref": "#/$defs/a0", "$defs": {**steps, f"a{levels}": {"type": "string"}}}


@pytest.mark.parametrize("keyword", ["anyOf", "allOf", "oneOf"])
def test_what_is_behind_a_reference_is_validated_once(keyword: str) -> None:
    budget = Budget(FULL)
    valid = limited(lambda: Validator(_doubling(keyword, 40)).is_valid("text"), budget)
    assert valid == (keyword != "oneOf")
    assert FULL - budget.left < 2_000


@pytest.mark.parametrize("schema", [{"$ref": "#"}, {"allOf": [{"$ref": "#"}]}, {"not": {"$ref": "#"}}])
def test_references_in_a_circle_are_refused(schema: Any) -> None:
    with pytest.raises(SchemaError, match="never come to an end"):
        Validator(schema).is_valid(1)


def test_a_recursive_schema_validates_a_deep_value() -> None:
    tree = {"type": "object", "properties": {"next": {"$ref": "#"}}, "additionalProperties": False}
    value: Any = {}
    for _ in range(60):
        value = {"next": value}
    assert Validator(tree).is_valid(value)
    assert not Validator(tree).is_valid({"next": {"nex": {}}})


def test_too_much_work_is_refused() -> None:
    schema: Any = {"type": "string"}
    for _ in range(20):
        schema = {"oneOf": [schema, {"not": schema}]}  # the same objects: 2**20 ways through them
    with pytest.raises(BudgetError):
        limited(lambda: Validator(schema).is_valid(1), Budget(FULL))
