"""Requests that ask for more work than any server has time for, drawn at random.

`attack` returns a path and a body. What is asked for stands in every place of every API that takes a schema, a regular
expression or a grammar, or is a number of prompts, choices or documents. `large` returns one that is itself large: as many
bytes, items or numbers as a body may have.
"""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Callable
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
    keyword, levels = rng.choice(("anyOf", "oneOf", "allOf")), rng.randint(8, 13)
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


# --- large bodies -------------------------------------------------------------------------------------------------------

MOST_BYTES, MOST_OBJECTS, MOST_VALUES = 30 << 20, 19_000, 900_000  # somewhat below what is refused unread


def large(rng: random.Random, scale: float = 1.0) -> Request:
    """A large body. scale: the share of the largest that is read."""
    return rng.choice(LARGE)(rng, scale)


def _text(rng: random.Random, characters: int) -> str:
    unit = rng.choice(
        ("some words of a long text; ", " ", "\n\t", "<|user|>", "<|", "\u017c\u00f3\u0142\u0107 ", "0123456789", "{[:,")
    )
    written = len(json.dumps(unit)) - 2  # bytes in a body
    return unit * (characters // written)


def _user(content: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content}]


def _long_text(rng: random.Random, scale: float) -> Request:
    text = _text(rng, int(MOST_BYTES * scale))
    model: dict[str, Any] = {"model": MODEL}
    parts = [f"{number} {text[:10_000]}" for number in range(min(2_000, 1 + len(text) // 15_000))]
    return rng.choice(
        (
            ("/v1/chat/completions", {**model, "messages": _user(text), "max_tokens": 5}),
            ("/v1/responses", {**model, "input": text}),
            ("/v1/responses/input_tokens", {**model, "input": text}),
            ("/v1/responses/compact", {**model, "input": text}),
            ("/v1/messages", {**model, "messages": _user(text), "max_tokens": 5}),
            ("/v1/messages/count_tokens", {**model, "messages": _user(text)}),
            ("/v1/completions", {**model, "prompt": text, "max_tokens": 5}),
            ("/v1/conversations", {"items": _user(text)}),
            ("/v1/embeddings", {**model, "input": text}),
            ("/v1/moderations", {"input": text}),
            ("/v1/moderations", {"input": parts}),
            ("/classify", {**model, "input": text}),
            ("/pooling", {**model, "input": parts}),
            ("/rerank", {"model": "bge-m3", "query": "a", "documents": parts}),
            ("/rerank", {"query": "a", "texts": [text]}),
            ("/tokenize", {"prompt": text}),
            ("/tokenize", {"messages": _user(text), "return_token_strs": True}),
            ("/tokenize", {"prompt": text[: len(text) // 28], "return_token_strs": True}),
            ("/generate", {"text": text}),
        )
    )


def _file(rng: random.Random, scale: float) -> Request:
    size = int(MOST_BYTES * scale * 3 / 4)
    unit = rng.choice(
        (b"%PDF-1.7 /Type /Page \n", b"%PDF-1.7 /Type" + b" " * 5_000, b"some words ", b"\0\1\2\3", b"\x89PNG\r\n\x1a\n\xff")
    )
    data = base64.b64encode((unit * (size // len(unit) + 1))[:size]).decode()
    if unit.startswith(b"\x89"):
        image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
        sound = {"type": "input_audio", "input_audio": {"format": "wav", "data": data}}
        return _chat(rng, messages=_user([rng.choice((image, sound))]), max_tokens=5)
    url = f"data:application/pdf;base64,{data}"
    document = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": data}}
    return rng.choice(
        (
            _chat(rng, messages=_user([{"type": "file", "file": {"filename": "a.pdf", "file_data": url}}]), max_tokens=5),
            ("/v1/responses", {"model": MODEL, "input": _user([{"type": "input_file", "filename": "a", "file_data": url}])}),
            ("/v1/messages", {"model": MODEL, "max_tokens": 5, "messages": _user([document])}),
        )
    )


def _many_objects(rng: random.Random, scale: float) -> Request:
    many = int(MOST_OBJECTS * scale)
    items, parts = _user("hello there") * many, [{"type": "text", "text": "a"}] * many
    half = range(many // 2)
    calls = [{"type": "function_call", "call_id": f"c{each}", "name": "f", "arguments": "{}"} for each in half]
    outputs = [{"type": "function_call_output", "call_id": f"c{each}", "output": "x"} for each in half]
    schemas = {"type": "object", "properties": {f"p{each}": {"type": "string"} for each in range(many // 2)}}
    return rng.choice(
        (
            _chat(rng, messages=items, max_tokens=5),
            _chat(rng, messages=_user(parts), max_tokens=5),
            _chat(rng, tools=[{"type": "function", "function": {"name": "f", "parameters": schemas}}]),
            _chat(
                rng, messages=_user([{"type": "image_url", "image_url": {"url": "http://a/b"}}] * (many // 2)), max_tokens=5
            ),
            ("/v1/responses", {"model": MODEL, "input": items, "max_output_tokens": 16}),
            ("/v1/responses", {"model": MODEL, "input": items, "max_output_tokens": 16, "truncation": "auto"}),
            ("/v1/responses", {"model": MODEL, "input": [*calls, *outputs], "max_output_tokens": 16, "store": False}),
            ("/v1/responses/input_tokens", {"model": MODEL, "input": items}),
            ("/v1/responses/compact", {"model": MODEL, "input": items}),
            ("/v1/messages", {"model": MODEL, "max_tokens": 5, "messages": items}),
            ("/v1/messages/count_tokens", {"model": MODEL, "messages": _user(parts)}),
            ("/v1/conversations", {"items": [{"role": "user", "content": [{"type": "input_text", "text": "a"}] * many}]}),
            ("/tokenize", {"messages": items}),
            (
                "/v1/responses",
                {"model": MODEL, "input": [{"type": "item_reference", "id": f"msg_{each}"} for each in range(many)]},
            ),
        )
    )


def _many_values(rng: random.Random, scale: float) -> Request:
    many = int(MOST_VALUES * scale)
    return rng.choice(
        (
            ("/v1/completions", {"model": MODEL, "prompt": [1000] * many, "max_tokens": 5}),
            ("/v1/completions", {"model": MODEL, "prompt": [[1000] * (many // 30)] * 30, "max_tokens": 5, "echo": True}),
            ("/detokenize", {"tokens": [1000] * (many // 3)}),
            ("/generate", {"input_ids": [[1000] * (many // 10)] * 10}),
            ("/v1/embeddings", {"model": MODEL, "input": [[5] * (many // 2_000)] * 1_500}),
            _chat(rng, logit_bias={f"{token}": 1 for token in range(many // 6)}, max_tokens=5),
            _chat(rng, unknown=[[]] * (many // 5), max_tokens=5),
        )
    )


def _long_answer(rng: random.Random, scale: float) -> Request:
    many = int(2_048 * scale)
    model = {"model": "text-embedding-3-large"}
    return rng.choice(
        (
            ("/v1/embeddings", {**model, "input": ["some text"] * many}),
            ("/v1/embeddings", {**model, "input": ["some text"] * many, "encoding_format": "base64"}),
            ("/pooling", {**model, "input": ["some text"] * many}),
            ("/pooling", {**model, "input": "a b " * (many // 3), "task": "token_embed"}),
            ("/classify", {**model, "input": ["some text"] * many}),
        )
    )


LARGE: tuple[Callable[[random.Random, float], Request], ...] = (_long_text, _file, _many_objects, _many_values, _long_answer)
