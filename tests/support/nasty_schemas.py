"""JSON Schemas that are hard to obey: chosen ones, drawn ones, and judges of the values that were made for them."""

import random
from collections.abc import Callable
from typing import Any

import jsonschema_rs
from jsonschema import Draft202012Validator

TREE = {"type": "object", "properties": {"next": {"$ref": "#"}, "value": {"type": "integer"}}, "required": ["value"]}
PET = {"type": "object", "required": ["kind"], "properties": {"kind": {"enum": ["cat", "dog"]}}}

NASTY: dict[str, Any] = {
    # strings
    "capital letters": {"type": "string", "pattern": r"^\p{Lu}+$"},
    "no letter": {"type": "string", "pattern": r"^\P{L}{3,}$"},
    "a script": {"type": "string", "pattern": r"^\p{Script=Cyrillic}{2,5}$", "minLength": 4},
    "code points": {"type": "string", "pattern": r"^\u{1F600}\u0041?$"},
    "a policy of passwords": {"type": "string", "pattern": r"^(?=.*[A-Z])(?=.*\d).{8,}$"},
    "a policy and lengths": {"type": "string", "pattern": r"^(?=.*[a-z])(?=.*[A-Z])(?=.*\d)(?=.*[\W_]).+$",
                             "minLength": 15, "maxLength": 17},
    "not in it": {"type": "string", "pattern": "^(?!.*(admin|root))[a-z]{4,12}$"},
    "patterns of all": {"allOf": [{"pattern": "^a"}, {"pattern": "[0-9]{2}"}, {"pattern": "z$"}, {"maxLength": 6}],
                        "type": "string"},
    "a pattern and none": {"type": "string", "pattern": "^[ab]{2}$", "not": {"pattern": "a"}},
    "a short address": {"type": "string", "format": "email", "maxLength": 10},
    "a long address": {"type": "string", "format": "email", "minLength": 60},
    "an address with a pattern": {"type": "string", "format": "email", "pattern": r"@corp\.example$", "maxLength": 20},
    "a date of May": {"type": "string", "format": "date", "pattern": "-05-"},
    "a short URI": {"type": "string", "format": "uri", "maxLength": 12},
    "a host": {"type": "string", "format": "hostname", "minLength": 30, "maxLength": 32},
    "formats": {"type": "object", "required": ["a", "b", "c", "d", "e", "f", "g", "h"], "properties": {
        "a": {"format": "date-time", "type": "string"}, "b": {"format": "ipv6", "type": "string", "maxLength": 8},
        "c": {"format": "uuid", "type": "string", "pattern": "^f"}, "d": {"format": "duration", "type": "string"},
        "e": {"format": "json-pointer", "type": "string", "minLength": 20}, "f": {"format": "time", "type": "string"},
        "g": {"format": "regex", "type": "string"}, "h": {"format": "uri-reference", "type": "string", "maxLength": 3}}},
    "an exact length": {"type": "string", "minLength": 37, "maxLength": 37},
    # numbers
    "cents": {"type": "number", "multipleOf": 0.01, "minimum": 0.1, "maximum": 0.7},
    "two factors": {"type": "integer", "allOf": [{"multipleOf": 6}, {"multipleOf": 10}], "minimum": 31, "maximum": 89},
    "a factor that is none": {"type": "integer", "multipleOf": 1.5, "minimum": 1},
    "no multiple": {"type": "integer", "minimum": 10, "maximum": 12, "not": {"multipleOf": 5}},
    "not whole": {"type": "number", "not": {"type": "integer"}, "minimum": 3, "maximum": 4},
    "narrow": {"type": "number", "exclusiveMinimum": 1, "exclusiveMaximum": 1.0000000000000004},
    "huge": {"type": "integer", "minimum": 10**300, "maximum": 10**300 + 3},
    "far below": {"type": "number", "maximum": -1e300},
    "tiny": {"type": "number", "exclusiveMinimum": 0, "maximum": 5e-324},
    # enums
    "mixed": {"enum": [None, True, 1, "1", [1], {"a": 1}], "type": ["array", "object"]},
    "a constant of another type": {"anyOf": [{"const": 5, "type": "string"}, {"const": [], "type": "array"}]},
    "one of many": {"enum": list(range(500)), "minimum": 498.5},
    "true is not 1": {"enum": [1, True], "type": "boolean"},
    # arrays
    "ten of ten": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 9}, "uniqueItems": True,
                   "minItems": 10},
    "both": {"type": "array", "items": {"type": "boolean"}, "uniqueItems": True, "minItems": 2},
    "all words of two": {"type": "array", "items": {"type": "string", "pattern": "^[xy]{2}$"}, "uniqueItems": True,
                         "minItems": 4},
    "distinct objects": {"type": "array", "uniqueItems": True, "minItems": 4, "items": {
        "type": "object", "required": ["a", "b"], "additionalProperties": False,
        "properties": {"a": {"type": "boolean"}, "b": {"type": "boolean"}}}},
    "a tuple": {"type": "array", "prefixItems": [{"const": 1}, {"enum": [1, 2]}], "items": False, "minItems": 2,
                "uniqueItems": True},
    "an item in it": {"type": "array", "prefixItems": [{"type": "string"}], "contains": {"type": "integer"},
                      "minContains": 2, "maxContains": 3, "items": {"type": ["integer", "boolean"]}, "maxItems": 4},
    "none in it": {"type": "array", "items": {"type": "integer"}, "contains": {"minimum": 5}, "minContains": 0,
                   "maxContains": 0, "minItems": 3},
    "contained twice": {"type": "array", "maxItems": 2,
                        "allOf": [{"contains": {"minimum": 5}}, {"contains": {"maximum": 7}}]},
    "unevaluated items": {"type": "array", "prefixItems": [{"const": 0}], "contains": {"type": "string"}, "minItems": 4,
                          "unevaluatedItems": {"type": "null"}},
    "items twice": {"type": "array", "not": {"uniqueItems": True}, "items": {"type": "integer"}},
    # objects
    "names of a pattern": {"type": "object", "patternProperties": {"^x_[a-c]$": {"type": "integer"}},
                           "additionalProperties": False, "minProperties": 3},
    "names of names": {"type": "object", "propertyNames": {"pattern": r"^\p{Ll}\d{2}$"}, "minProperties": 5},
    "two for one name": {"type": "object", "required": ["ab"],
                         "patternProperties": {"^a": {"type": "integer"}, "b$": {"minimum": 5, "maximum": 6}}},
    "others": {"type": "object", "additionalProperties": {"type": "integer"}, "minProperties": 4, "required": ["z"],
               "properties": {"a": {"type": "string"}}},
    "optional ones needed": {"type": "object", "properties": {name: {"type": "string"} for name in "abcdef"},
                             "minProperties": 6, "additionalProperties": False},
    "a name with needs": {"type": "object", "required": ["a"], "dependentRequired": {"a": ["b"], "b": ["c"]},
                          "properties": {"c": {"const": 7}}},
    "a name with a schema": {"type": "object", "properties": {"card": {"type": "string"}}, "required": ["card"],
                             "dependentSchemas": {"card": {"required": ["address"],
                                                           "properties": {"address": {"minLength": 9}}}}},
    "never both": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
                   "dependentSchemas": {"a": {"properties": {"b": False}}}, "minProperties": 1},
    "as it was written": {"type": "object", "required": ["a"], "dependencies": {"a": ["b"], "b": {"required": ["c"]}}},
    "unevaluated": {"type": "object", "allOf": [{"properties": {"a": {"type": "string"}}}], "unevaluatedProperties": False,
                    "anyOf": [{"properties": {"b": {"const": 1}}, "required": ["b"]}, {"properties": {"c": {"const": 2}}}],
                    "required": ["a", "c"]},
    # alternatives
    "kinds": {"type": "object", "oneOf": [{**PET, "properties": {"kind": {"const": "cat"}, "lives": {"type": "integer"}}},
                                          {**PET, "properties": {"kind": {"const": "dog"}, "good": {"const": True}}}]},
    "overlapping": {"oneOf": [{"type": "integer", "multipleOf": 2}, {"type": "integer", "multipleOf": 3}], "minimum": 6,
                    "maximum": 9},
    "overlapping objects": {"type": "object", "oneOf": [{"required": ["a"]}, {"required": ["b"]}],
                            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
    "one of a kind": {"oneOf": [{"type": "string"}, {"type": "string", "maxLength": 5}]},
    "if": {"type": "object", "properties": {"kind": {"enum": ["a", "b"]}}, "required": ["kind"],
           "if": {"properties": {"kind": {"const": "a"}}}, "then": {"required": ["x"]}, "else": {"required": ["y"]}},
    "if not": {"type": "integer", "if": {"minimum": 10}, "then": {"multipleOf": 10}, "else": {"const": 3}, "maximum": 9},
    "anything but": {"not": {"type": ["string", "object", "array", "null", "boolean"]}},
    "not with": {"type": "object", "properties": {"a": {}, "b": {}}, "not": {"required": ["a", "b"]}, "minProperties": 1},
    "neither": {"type": "string", "not": {"anyOf": [{"minLength": 4}, {"maxLength": 2}]}},
    "not all of it": {"type": "object", "not": {"properties": {"a": {"type": "string"}}}},
    "not only these": {"type": "object", "not": {"additionalProperties": False, "properties": {"a": {}}}},
    "not one": {"type": "integer", "minimum": 0, "maximum": 6,
                "not": {"oneOf": [{"multipleOf": 2}, {"multipleOf": 3}]}},
    # references
    "a tree": TREE,
    "two that need one another": {"$ref": "#/$defs/a", "$defs": {
        "a": {"type": "object", "properties": {"b": {"$ref": "#/$defs/b"}}, "required": ["b"]},
        "b": {"type": "array", "items": {"$ref": "#/$defs/a"}}}},
    "lists of lists": {"$ref": "#/$defs/l", "$defs": {"l": {"type": "array", "items": {"$ref": "#/$defs/l"}}}},
    "a way out": {"$defs": {"e": {"anyOf": [{"type": "object", "required": ["l", "r"],
                                             "properties": {"l": {"$ref": "#/$defs/e"}, "r": {"$ref": "#/$defs/e"}}},
                                            {"type": "number"}]}}, "$ref": "#/$defs/e"},
    "beside a reference": {"$ref": "#/$defs/s", "maxLength": 4, "$defs": {"s": {"type": "string", "minLength": 3}}},
    "an anchor": {"$ref": "#here", "$defs": {"x": {"$anchor": "here", "type": "string", "minLength": 4}}},
    "a resource in it": {"$id": "https://example.com/root", "$ref": "inner", "$defs": {
        "inner": {"$id": "inner", "$ref": "#/$defs/x", "$defs": {"x": {"const": "inner"}}}, "x": {"const": "outer"}}},
    "a dynamic tree": {"$id": "https://example.com/strict", "$dynamicAnchor": "node", "$ref": "tree",
                       "unevaluatedProperties": False, "$defs": {"tree": {
                           "$id": "tree", "$dynamicAnchor": "node", "type": "object", "required": ["children"],
                           "properties": {"data": True, "children": {
                               "type": "array", "items": {"$dynamicRef": "#node"}}}}}},
    "a schema elsewhere": {"$ref": "#/x-types/y~1z", "x-types": {"y/z": {"type": "integer", "minimum": 7}}},
    # what nobody asks for
    "an unsupported option": {"anyOf": [{"type": "string", "pattern": r"^(a)\1$"}, {"type": "integer"}]},
    "an unsupported property": {"type": "object", "properties": {"a": {"type": "string", "pattern": r"^(a)\1$"},
                                                                 "b": {"type": "integer"}}, "required": ["b"]},
}  # fmt: skip

# What nothing satisfies, and what the refusal says.
CONTRADICTORY: dict[str, tuple[Any, str]] = {
    "lengths": ({"type": "object", "required": ["a"], "properties": {
        "a": {"type": "array", "minItems": 1, "items": {"type": "string", "minLength": 5, "maxLength": 4}}}},
        "a.0: minLength 5 is more than maxLength 4"),
    "bounds": ({"type": "integer", "exclusiveMinimum": 4, "maximum": 4}, "exclusiveMinimum 4, maximum 4"),
    "no whole number": ({"type": "integer", "minimum": 1.1, "maximum": 1.9}, "minimum 1.1, maximum 1.9"),
    "no multiple": ({"type": "number", "multipleOf": 0.01, "exclusiveMinimum": 1, "exclusiveMaximum": 1.01},
                    "multipleOf 0.01"),
    "types": ({"allOf": [{"type": "string"}, {"type": "number"}]}, "no type is allowed"),
    "an enum": ({"enum": [1], "type": "string"}, "is valid"),
    "false": ({"type": "object", "properties": {"a": False}, "required": ["a"]}, "allows no value"),
    "too many items": ({"type": "array", "items": {"type": "boolean"}, "uniqueItems": True, "minItems": 3},
                       "true and false"),
    "too few names": ({"type": "object", "maxProperties": 1, "required": ["a", "b"]}, "maxProperties 1"),
    "no name": ({"type": "object", "propertyNames": {"maxLength": 0}, "minProperties": 2}, "minProperties is 2"),
    "a pattern": ({"type": "string", "pattern": "^abc$", "maxLength": 2}, "matches '^abc$'"),
    "two patterns": ({"type": "string", "allOf": [{"pattern": "^a"}, {"pattern": "^b"}]}, "'^a' and '^b'"),
    "a format": ({"type": "string", "format": "uuid", "maxLength": 8}, "characters"),
    "not anything": ({"not": {}}, "'not'"),
    "all of one": ({"oneOf": [{"type": "string"}, {"type": "string"}]}, "is valid under each of"),
    "only itself": (
        {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}, "only contains itself"),
    "contains": ({"type": "array", "contains": {"type": "integer"}, "items": {"type": "string"}}, "no type"),
    "unsupported": ({"type": "object", "required": ["a"], "properties": {"a": {"type": "string", "pattern": r"^(a)\1$"}}},
                    "a: the regular expression uses back-references"),
}  # fmt: skip

_NAMES = ("a", "b", "c", "ab", "x1")
_SCALARS = (None, True, False, 0, 1, 2, -3, 0.5, 2.5, 1.0, "", "a", "ab", "x1", "B7", 3, 10)
_PATTERNS = ("^a", "b$", "[0-9]", "^[A-Z]", "^.{2,4}$", r"^(?=.*[a-z])(?=.*\d)", "^[ab]*$", r"\p{Lu}", "^(?!a)", r"^\w+$",
             "^a|b$", "^[^a]*$")  # fmt: skip
_TYPES = ("string", "integer", "number", "object", "array", "null", "boolean", ["string", "null"], ["integer", "object"],
          ["array", "number"])  # fmt: skip
_FORMATS = ("email", "date", "uuid", "ipv4", "time", "date-time", "hostname", "uri", "duration", "json-pointer")
_FLAT: dict[str, Callable[[random.Random], Any]] = {
    "type": lambda rng: rng.choice(_TYPES),
    "enum": lambda rng: [drawn_value(rng) for _ in range(rng.randint(1, 3))],
    "const": lambda rng: drawn_value(rng),
    "multipleOf": lambda rng: rng.choice((1, 2, 3, 0.5, 0.01, 0.1, 7)),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
                    lambda rng: rng.choice((0, 1, 2, 5, -2, 0.5, 1.5, 100, 1e300, -1e300))),
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"),
                    lambda rng: rng.randrange(4)),
    "pattern": lambda rng: rng.choice(_PATTERNS),
    "uniqueItems": lambda rng: True,
    "required": lambda rng: rng.sample(_NAMES, rng.randint(1, 2)),
    "dependentRequired": lambda rng: {rng.choice(_NAMES): rng.sample(_NAMES, rng.randrange(3))},
    "format": lambda rng: rng.choice(_FORMATS),
    "$ref": lambda rng: rng.choice(("#/$defs/one", "#/$defs/two", "#/$defs/two/properties/a")),
}  # fmt: skip
_DEEP = ("not", "if", "items", "contains", "additionalProperties", "propertyNames", "unevaluatedItems",
         "unevaluatedProperties", "allOf", "anyOf", "oneOf", "prefixItems", "properties", "patternProperties",
         "dependentSchemas")  # fmt: skip


def drawn_value(rng: random.Random, depth: int = 2) -> Any:
    """Return a JSON value."""
    if not depth or rng.random() < 0.6:
        return rng.choice(_SCALARS)
    if rng.random() < 0.5:
        return [drawn_value(rng, depth - 1) for _ in range(rng.randrange(4))]
    return {rng.choice(_NAMES): drawn_value(rng, depth - 1) for _ in range(rng.randrange(4))}


def drawn_schema(seed: int) -> dict[str, Any]:
    """Return a schema of few keywords on each of up to four levels; with more, nothing would be valid."""
    rng = random.Random(seed)
    schema = _schema(rng, rng.choice((1, 2, 2, 3)))
    tree = {
        "type": rng.choice(("object", "array")),
        "properties": {"a": {"$ref": "#/$defs/two"}},
        "items": {"$ref": "#/$defs/two"},
    }
    return {
        **(schema if isinstance(schema, dict) else {"allOf": [schema]}),
        "$defs": {"one": _schema(rng, 1, refers=False), "two": tree},
    }


def _schema(rng: random.Random, depth: int, refers: bool = True) -> Any:
    if not depth and rng.random() < 0.15:
        return rng.choice((True, True, False))
    schema: dict[str, Any] = {}
    for _ in range(rng.choice((1, 1, 2, 2, 3, 4))):
        if not depth or rng.random() < 0.45:
            keyword = rng.choice(list(_FLAT)[: None if refers else -1])
            schema[keyword] = _FLAT[keyword](rng)
        else:
            _add_deep(rng, schema, rng.choice(_DEEP), lambda: _schema(rng, depth - 1, refers))
    return schema


def _add_deep(rng: random.Random, schema: dict[str, Any], keyword: str, inner: Callable[[], Any]) -> None:
    if keyword in ("allOf", "anyOf", "oneOf", "prefixItems"):
        schema[keyword] = [inner() for _ in range(rng.randint(1, 3))]
    elif keyword in ("properties", "dependentSchemas"):
        schema[keyword] = {name: inner() for name in rng.sample(_NAMES, rng.randint(1, 3))}
    elif keyword == "patternProperties":
        schema[keyword] = {rng.choice(("^a", "1$", "^[A-Z]", "b")): inner()}
    else:
        schema[keyword] = inner()
    if keyword == "if":
        schema |= {"then": inner(), "else": inner()}
    if keyword == "contains":
        bounds = {"minContains": rng.randrange(3), "maxContains": rng.randrange(3)}
        schema |= {bound: value for bound, value in bounds.items() if rng.random() < 0.5}


# Values that satisfy many schemas: if one of them satisfies one that is refused, the refusal was wrong.
SAMPLES = [*[drawn_value(random.Random(seed)) for seed in range(300)], {}, [], "aB7", "A", "Ab1", "zz", "a1", "B", "aaaa",
           [1, 2], ["a", "a"], [[], []], {"A": 1}, {"a1": "a1"}, [0, 0, 0], 100, 200, 1e301, -1e301, "b", "ba", 0.25, 7, 14,
           {"a": {}, "b": {}, "c": {}}]  # fmt: skip


class Judges:
    """The validators of others: jsonschema-rs, which asserts formats, and python-jsonschema, which does not.

    python-jsonschema is not asked where a format may be negated, nor where `re` cannot read a pattern.
    """

    def __init__(self, schema: Any) -> None:
        self._rust = jsonschema_rs.Draft202012Validator(schema, validate_formats=True)
        written = str(schema)
        negated = "'format'" in written and any(f"'{word}'" in written for word in ("not", "oneOf", "if", "contains"))
        self._python = (
            None if negated or "\\p" in written or "\\P" in written or "\\u{" in written else Draft202012Validator(schema)
        )

    def accept(self, value: Any) -> bool:
        """Return True if both call the value valid."""
        return bool(self._rust.is_valid(value)) and (self._python is None or self._python.is_valid(value))
