"""Requests as large as a body may be, drawn at random: in bytes, in items, in numbers, or in what they are answered with."""

import base64
import json
import random
from collections.abc import Callable
from typing import Any

from attacks import MODEL, Request

MOST_BYTES, MOST_OBJECTS, MOST_VALUES = 30 << 20, 11_500, 550_000  # somewhat below what is refused unread


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
            ("/generate", {"text": text, "sampling_params": {"max_new_tokens": 5}}),
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
        return _chat(messages=_user([rng.choice((image, sound))]), max_tokens=5)
    url = f"data:application/pdf;base64,{data}"
    document = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": data}}
    return rng.choice(
        (
            _chat(messages=_user([{"type": "file", "file": {"filename": "a.pdf", "file_data": url}}]), max_tokens=5),
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
            _chat(messages=items, max_tokens=5),
            _chat(messages=_user(parts), max_tokens=5),
            _chat(tools=[{"type": "function", "function": {"name": "f", "parameters": schemas}}]),
            _chat(messages=_user([{"type": "image_url", "image_url": {"url": "http://a/b"}}] * (many // 2)), max_tokens=5),
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
            ("/generate", {"input_ids": [[1000] * (many // 10)] * 10, "sampling_params": {"max_new_tokens": 5}}),
            ("/v1/embeddings", {"model": MODEL, "input": [[5] * (many // 2_000)] * 1_500}),
            _chat(logit_bias={f"{token}": 1 for token in range(many // 6)}, max_tokens=5),
            _chat(unknown=[[]] * (many // 5), max_tokens=5),
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


def _chat(**fields: Any) -> Request:
    return "/v1/chat/completions", {"model": MODEL, "messages": _user("Hello"), "max_tokens": 50, **fields}


LARGE: tuple[Callable[[random.Random, float], Request], ...] = (_long_text, _file, _many_objects, _many_values, _long_answer)
