"""Requests of a few kilobytes that ask for more work than any server has time for, drawn at random.

`attack` returns a path and a body. What is asked for stands in every place of every API that takes a schema, a regular
expression or a grammar, or is a number of prompts, choices or documents.
"""

import random
from typing import Any

Request = tuple[str, dict[str, Any]]
MODEL = "attacked"


def attack(rng: random.Random) -> Request:
    """One attack."""
    kind = rng.choice((_of_schema, _of_schema, _of_schema, _of_pattern, _of_grammar, _of_number))
    return kind(rng)


# --- schemas ------------------------------------------------------------------------------------------------------------


def schema(rng: random.Random) -> Any:
    """A schema whose check, value or validation takes long, or seems to."""
    made = rng.choice(_SCHEMAS)(rng)
    for _ in range(rng.choice((0, 0, 1, 2))):
        made = rng.choice(_WRAPPERS)(made)
    return made


def _large(rng: random.Random) -> int:
    return int(10 ** rng.uniform(3, 12))


def _minima(rng: random.Random) -> Any:
    large = _large(rng)
    return rng.choice(
        (
            {"type": "string", "minLength": large},
            {"type": "string", "minLength": large, "maxLength": large},
            {"type": "array", "minItems": large},
            {"type": "array", "minItems": large, "items": {"type": "object", "additionalProperties": {"type": "string"}}},
            {"type": "array", "contains": {"const": 5}, "minContains": large},
            {"type": "array", "items": {"type": "boolean"}, "uniqueItems": True, "minItems": large},
            {"type": "array", "items": {"enum": [1, 2, 3]}, "uniqueItems": True, "minItems": rng.randint(4, 5000)},
            {"type": "object", "minProperties": large},
            {"type": "object", "minProperties": large, "propertyNames": {"pattern": "^[ab]$"}},
        )
    )


def _patterns(rng: random.Random) -> Any:
    return rng.choice(
        (
            {"type": "string", "pattern": pattern(rng)},
            {"type": "string", "pattern": pattern(rng), "minLength": rng.randint(10, 5000)},
            {"type": "object", "patternProperties": {pattern(rng): {}}, "additionalProperties": False, "minProperties": 50},
            {"type": "object", "propertyNames": {"pattern": pattern(rng)}, "minProperties": rng.randint(1, 1000)},
        )
    )


def _trees(rng: random.Random) -> Any:
    keyword, levels = rng.choice(("anyOf", "oneOf", "allOf")), rng.randint(8, 12)
    made: Any = rng.choice(({"type": "string"}, {"type": "object", "properties": {"a": {"type": "integer"}}}))
    for level in range(levels):
        made = {keyword: [made, {**made, "title": str(level)}]}
    return made


def _references(rng: random.Random) -> Any:
    levels = rng.randint(5, 60)
    within = rng.choice(
        (
            lambda ref: {rng.choice(("anyOf", "oneOf", "allOf")): [ref, {**ref, "title": "again"}]},
            lambda ref: {"type": "object", "required": ["x", "y"], "properties": {"x": ref, "y": ref}},
            lambda ref: {"type": "array", "minItems": 2, "items": ref},
            lambda ref: {"not": ref},
            lambda ref: {"if": ref, "then": ref, "else": ref},
        )
    )
    last = rng.choice(({"type": "string"}, {"$ref": "#/$defs/a0"}, {}))
    steps = {f"a{level}": within({"$ref": f"#/$defs/a{level + 1}"}) for level in range(levels)}
    return {"$ref": "#/$defs/a0", "$defs": {**steps, f"a{levels}": last}}


def _circles(rng: random.Random) -> Any:
    count = rng.randint(3, 14)
    return {
        "$ref": "#/$defs/a0",
        "$defs": {
            f"a{one}": {
                rng.choice(("anyOf", "allOf", "oneOf")): [
                    {"type": "object", "required": ["x"], "properties": {"x": {"$ref": f"#/$defs/a{other}"}}}
                    for other in range(count)
                    if other != one
                ]
            }
            for one in range(count)
        },
    }


def _products(rng: random.Random) -> Any:
    each, parts = rng.randint(5, 60), rng.randint(2, 8)
    options = [[{"type": "string", "minLength": part * each + one} for one in range(each)] for part in range(parts)]
    return {"allOf": [{rng.choice(("anyOf", "oneOf")): some} for some in options]}


def _numbers(rng: random.Random) -> Any:
    number = rng.choice((10**400, -(10**400), 1e308, -1e308, 5e-324, 1e-320, 10**300, 2**63))
    keyword = rng.choice(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"))
    more = rng.choice(({}, {"multipleOf": abs(rng.choice((1e-320, 10**400, 1e308, 3)))}))
    return {"type": rng.choice(("number", "integer")), keyword: number, **more}


def _deep(rng: random.Random) -> Any:
    made: Any = {"type": "string"}
    within = rng.choice(
        (
            lambda inner: {"not": inner},
            lambda inner: {"type": "object", "properties": {"a": inner}, "required": ["a"]},
            lambda inner: {"type": "array", "items": inner, "minItems": 1},
            lambda inner: {"anyOf": [inner]},
            lambda inner: {"const": inner},
            lambda inner: {"x-unknown": [inner]},
        )
    )
    for _ in range(rng.randint(30, 450)):
        made = within(made)
    return made


def _wide(rng: random.Random) -> Any:
    names = [f"p{number}" for number in range(rng.randint(100, 3000))]
    more = rng.choice(
        (
            {},
            {"required": names},
            {"dependentRequired": dict.fromkeys(names[:100], names[:100])},
            {"patternProperties": {f"^p{number}(0|1)*$": {} for number in range(200)}, "required": names},
            {"unevaluatedProperties": False, "anyOf": [{"required": names[:10]}, {"minProperties": 1}]},
        )
    )
    return {"type": "object", "properties": {name: {"type": "string"} for name in names}, **more}


_SCHEMAS = (_minima, _patterns, _trees, _references, _circles, _products, _numbers, _deep, _wide)
_WRAPPERS = (
    lambda inner: {"type": "array", "items": inner, "minItems": 40},
    lambda inner: {"anyOf": [inner, {"type": "null"}]},
    lambda inner: {"allOf": [inner, {"title": "both"}]},
    lambda inner: {"type": "object", "properties": {"a": inner, "b": inner}, "required": ["a", "b"]},
    lambda inner: {"not": {"not": inner}},
    lambda inner: {"oneOf": [inner, inner]},
    lambda inner: {"type": "object", "additionalProperties": inner, "minProperties": 5},
)


# --- regular expressions and grammars -----------------------------------------------------------------------------------


def pattern(rng: random.Random) -> str:
    """A regular expression that is long to match, to write, or to read."""
    count = rng.choice((30, 1000, 100_000, 1_000_000_000))
    return rng.choice(
        (
            f"a{{{count}}}",
            f"^(([a-z]{{{min(count, 1000)}}}x){{{rng.randint(2, 1000)}}})$",
            "^(a+)+$", r"^([A-Za-z]+\s?)+$", "^(a|a)*b$", "(x+x+)+y", r"^((a*)*)*c$", "(.*)*(.*)*(.*)*d",
            "^(?=.*a)(?=.*b)(?=.*c).{500}$", "^((?=.*a)(?=.*b).)*$",
            "a?" * rng.randint(10, 500) + "a" * rng.randint(10, 500),
            "(" * count_of(rng) + "a" + ")" * count_of(rng),
            "|".join([f"w{number}" for number in range(rng.randint(100, 5000))]),
            "[" + "".join(map(chr, range(0x100, 0x100 + rng.randint(10, 5000)))) + f"]{{{min(count, 5000)}}}",
            r"(a)\1", "(?>a+)b", "a++b", "(?(1)a|b)", "[a-", "[[[[", "(?i)" + "[a-z]" * 500, r"\p{L}{5000}", "(?<=a+)b",
            r"(\b\w+\b ){" + str(min(count, 5000)) + "}",
        )
    )  # fmt: skip


def count_of(rng: random.Random) -> int:
    return rng.choice((10, 200, 5000))


def lark(rng: random.Random) -> str:
    """A grammar that is long to read, to measure or to follow."""
    many, levels = _large(rng), rng.randint(10, 60)
    return rng.choice(
        (
            f'start: (""~{many})~{many}', f'start: "a"~{many}', f'start: ("ab" x)~{many}\nx: "c"~{many}',
            "start: r0\n" + "\n".join([f"r{at}: r{at + 1} r{at + 1}" for at in range(levels)]) + f'\nr{levels}: "a"',
            "start: r0\n" + "\n".join([f"r{at}: r{at + 1} | r{at + 1}" for at in range(levels)]) + f'\nr{levels}: ""',
            "\n".join([f"r{number}: r{number + 1}" for number in range(rng.randint(100, 20_000))]) + '\nr0: "a"',
            "start: " + "(" * count_of(rng) + '"a"' + ")" * count_of(rng),
            "start: " + rng.choice("[?{(*+|.\"'/~") * rng.randint(100, 60_000),
            "start: /" + "[a]" * 500, 'start: "a"{' + "1" * 5000, f"start: /{pattern(rng)}/", "start: start", "start: a",
            "start: " + " | ".join([f'"w{number}"' for number in range(rng.randint(1000, 20_000))]),
            "# comment\n" * 5000 + 'start: "a"', 'start: "' + "a" * 60_000 + '"', "start: (((((a*)*)*)*)*)*\na: \"x\"+",
        )
    )  # fmt: skip


# --- where they stand ---------------------------------------------------------------------------------------------------


def _chat(rng: random.Random, **fields: Any) -> Request:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Give me some JSON."}], "max_tokens": 200, **fields}
    return "/v1/chat/completions", body


def _of_schema(rng: random.Random) -> Request:
    given = schema(rng)
    where = rng.randrange(10)
    form = {"name": "answer", "schema": given}
    tool = {"name": "use", "parameters": given}
    n = {"n": rng.choice((1, 1, 1, 20, 128))}
    if where == 0:
        return _chat(rng, response_format={"type": "json_schema", "json_schema": form}, **n)
    if where in (1, 2):
        tools = [{"type": "function", "function": tool}]
        forced: Any = rng.choice(("required", "auto", {"type": "function", "function": {"name": "use"}}))
        return _chat(rng, tools=tools, tool_choice=forced, **n)
    if where == 3:
        return _chat(rng, functions=[tool], function_call={"name": "use"})
    if where == 4:
        return _chat(rng, guided_json=given, **n)
    if where == 5:
        prompts = ["Some JSON:"] * rng.choice((1, 1, 8, 60))
        return "/v1/completions", {"model": MODEL, "prompt": prompts, "max_tokens": 50, "guided_json": given, **n}
    if where == 6:
        text = {"format": {"type": "json_schema", "name": "answer", "schema": given}}
        return "/v1/responses", {"model": MODEL, "input": "Some JSON, please.", "max_output_tokens": 200, "text": text}
    if where == 7:
        tools = [{"type": "function", "strict": False, **tool}]
        return "/v1/responses", {"model": MODEL, "input": "Call it.", "tools": tools, "tool_choice": "required"}
    body = {"model": MODEL, "max_tokens": 200, "messages": [{"role": "user", "content": "Call it."}]}
    if where == 8:
        return "/v1/messages", {**body, "output_format": {"type": "json_schema", "schema": given}}
    return "/v1/messages", {**body, "tools": [{"name": "use", "input_schema": given}], "tool_choice": {"type": "any"}}


def _of_pattern(rng: random.Random) -> Request:
    given = pattern(rng)
    if rng.random() < 0.3:
        return _custom_tool(rng, {"type": "grammar", "syntax": "regex", "definition": given})
    if rng.random() < 0.5:
        return _chat(rng, guided_regex=given, n=rng.choice((1, 10, 128)))
    return "/v1/completions", {"model": MODEL, "prompt": "x", "structured_outputs": {"regex": given}}


def _of_grammar(rng: random.Random) -> Request:
    given = lark(rng)
    if rng.random() < 0.4:
        return _custom_tool(rng, {"type": "grammar", "syntax": "lark", "definition": given})
    if rng.random() < 0.5:
        return _chat(rng, structured_outputs={"grammar": given})
    return "/v1/completions", {"model": MODEL, "prompt": "x", "guided_grammar": given, "n": rng.choice((1, 30))}


def _custom_tool(rng: random.Random, form: dict[str, Any]) -> Request:
    if rng.random() < 0.5:
        tool = {"type": "custom", "name": "use", "format": form}
        return "/v1/responses", {"model": MODEL, "input": "Use it.", "tools": [tool], "tool_choice": "required"}
    grammar = {"syntax": form["syntax"], "definition": form["definition"]}
    custom = {"name": "use", "format": {"type": "grammar", "grammar": grammar}}
    return _chat(rng, tools=[{"type": "custom", "custom": custom}], tool_choice="required")


def _of_number(rng: random.Random) -> Request:
    many = rng.choice((100, 1024, 2048, 5000, 50_000))
    where = rng.randrange(6)
    if where == 0:
        prompts: list[Any] = rng.choice((["x"], [[1, 2, 3]])) * many
        return "/v1/completions", {"model": MODEL, "prompt": prompts, "n": rng.choice((1, 8, 128)), "max_tokens": 5}
    if where == 1:
        return _chat(rng, n=128, max_tokens=rng.choice((5, 2000)))
    if where == 2:
        model = "all-MiniLM-L6-v2"  # short vectors: of long ones the answer itself is long
        return "/v1/embeddings", {"model": model, "input": ["some text"] * many}
    if where == 3:
        texts = [f"text {number % 999}" for number in range(many)]
        return "/v1/rerank", {"model": "bge-m3", "query": "some", "documents": texts}
    if where == 4:
        return "/v1/score", {"model": "bge-m3", "text_1": ["a"] * many, "text_2": ["b"] * rng.choice((many, 1))}
    return "/v1/moderations", {"input": ["a text"] * many}
