"""Keys never reach a file: those that came with the request wherever they stand, others by their form."""

import base64
import itertools
import json
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from llmirage_server.replies.recordings.recording import Chunk, Recording
from llmirage_server.replies.recordings.redaction import Redactor, secrets_of

# What a header can hold, and quotes, backslashes and slashes, which JSON and URLs write differently.
SECRETS = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=8, max_size=40)
PLACES = ("header", "bearer", "cookie", "query", "basic")


def headers_with(secret: str, place: str) -> tuple[list[tuple[str, str]], str]:
    """A request's headers, and its path with a query."""
    if place == "basic":
        return [("Authorization", "Basic " + base64.b64encode(f"user:{secret}".encode()).decode())], "/v1/x"
    if place == "cookie":
        return [("cookie", f"a=b; session={secret}")], "/v1/x"
    if place == "query":
        return [], f"/v1/x?api-version=1&key={secret}"
    return [("Authorization", f"Bearer {secret}") if place == "bearer" else ("x-api-key", secret)], "/v1/x"


def cut_up(text: str, at: list[int]) -> list[str]:
    edges = sorted({0, len(text), *[place % (len(text) + 1) for place in at]})
    return [text[start:end] for start, end in itertools.pairwise(edges)]


def spoken(pieces: list[str]) -> list[bytes]:
    """A text as the events of each API, piece by piece."""
    events = []
    for piece in pieces:
        events += [
            {"choices": [{"index": 0, "delta": {"content": piece}}]},
            {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "function": {"arguments": piece}}]}}]},
            {"type": "response.output_text.delta", "output_index": 0, "delta": piece},
            {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": piece}},
        ]
    return [b"data: " + json.dumps(event).encode() + b"\n\n" for event in events]


def written(redactor: Redactor, body: Any, answer: Any, events: list[bytes], path: str) -> str:
    """The files of an exchange in one piece and of one that is streamed."""
    whole = [Chunk(0.0, redactor.body(json.dumps(answer).encode()))]
    streamed = [Chunk(0.0, event) for event in redactor.events(events)]
    path, body = redactor.path(path), redactor.value(body)
    return "".join(Recording("POST", path, body, 200, {}, chunks, stream).text()
                   for chunks, stream in ((whole, False), (streamed, True)))  # fmt: skip


def said_in(redactor: Redactor, events: list[bytes]) -> str:
    """What a reader of the whole stream would hear."""
    texts: dict[str, str] = {}
    for event in redactor.events(events):
        value = json.loads(event[6:])
        choice = (value.get("choices") or [{"delta": value.get("delta")}])[0]["delta"]
        kind = "plain" if isinstance(choice, str) else next(iter(choice))
        text = choice if isinstance(choice, str) else choice.get("content", choice.get("text"))
        if text is None:
            text = choice["tool_calls"][0]["function"]["arguments"]
        texts[kind] = texts.get(kind, "") + text
    return "\0".join(texts.values())


@given(SECRETS, st.sampled_from(PLACES), st.text(max_size=20), st.lists(st.integers(0, 100), max_size=8))
@example('a/b"c\\d1234', "bearer", "", [])
@example("12345678", "header", "", [3])
def test_a_key_of_the_request_reaches_no_file(secret: str, place: str, around: str, at: list[int]) -> None:
    assume(secret.strip() == secret)
    assume(place not in ("cookie", "query") or not set(secret) & set(';&=+%"#'))
    assume("REDACTED" not in secret)
    assume(secret not in written(Redactor(), {"a": [around]}, {}, spoken([around]), "/v1/x?api-version=1&key="))
    headers, path = headers_with(secret, place)
    redactor = Redactor(secrets_of(headers, path))
    text = f"{around} {secret} {around}"
    body = {"messages": [{"content": text}], secret: secret, "nested": json.dumps({"k": secret})}
    if secret.isdigit() and secret[0] != "0":
        body["number"] = int(secret)
    events = spoken(cut_up(text, at))
    files = written(redactor, body, {"said": text, "json": json.dumps(text)}, events, path)
    for form in {secret, json.dumps(secret)[1:-1], json.dumps(json.dumps(secret))[3:-3]}:
        assert form not in files
    assert secret not in said_in(redactor, events)


KEYS = [
    "sk-proj-Ab12Cd34Ef56", "sk-ant-api03-abcdefgh1234", "ghp_0123456789abcdefghijABCDEFGHIJ012345", "AKIAIOSFODNN7EXAMPLE",
    "hf_abcdefghijklmnopqrstuvwxyz1234", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abcDEF123-_x",
    "-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA\n-----END RSA PRIVATE KEY-----",
]  # fmt: skip


@pytest.mark.parametrize("key", KEYS)
@given(at=st.lists(st.integers(0, 100), max_size=6))
def test_a_key_of_unknown_origin_is_found_by_its_form(key: str, at: list[int]) -> None:
    text = f"Use {key} for it."
    events = spoken(cut_up(text, at))
    files = written(Redactor(), {"messages": [{"content": text}]}, {"said": text}, events, f"/v1/x?a={key.split()[0]}")
    assert key not in files
    assert key.splitlines()[-2:][0] not in files
    assert key not in said_in(Redactor(), events)


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("Authorization: Bearer abcDEF123456", "Authorization: Bearer REDACTED"),
        ("curl https://x/y?key=hunter22&b=1", "curl https://x/y?key=REDACTED&b=1"),
        ('{"password": "hunter2", "user": "me"}', '{"password": "REDACTED", "user": "me"}'),
        ('say {\\"api_key\\":\\"zzz\\"}', 'say {\\"api_key\\":\\"REDACTED\\"}'),
        (
            "OPENAI_API_KEY=abcd1234efgh\nexport DB_PASSWORD='s3cretpass'",
            "OPENAI_API_KEY=REDACTED\nexport DB_PASSWORD='REDACTED'",
        ),
        ("postgres://me:hunter2@db/x", "postgres://me:REDACTED@db/x"),
    ],
)
def test_keys_in_texts(text: str, left: str) -> None:
    assert Redactor().text(text) == left


@pytest.mark.parametrize(
    "text",
    [
        *("the sk-learn estimator", "Bearer authentication", "max_tokens=100"),
        *("a basic understanding", "token: the word", "task-12345678901"),
        *(
            "MAX_TOKENS=100000000",
            "API_KEY = os.environ['KEY_1']",
            "const KEY = process.env.API_KEY1",
            "http://host:8000/a@b",
        ),
    ],
)
def test_words_are_left_alone(text: str) -> None:
    assert Redactor(["test", "x"]).text(text) == text


def test_fields_that_hold_keys_are_redacted_and_schemas_of_them_are_not() -> None:
    tool = {"type": "mcp", "authorization": "abc", "headers": {"X-Api-Key": "def", "githubToken": "g"}}
    schema = {"properties": {"password": {"type": "string"}}}
    redacted = Redactor().value({"tools": [tool], "parameters": schema, "max_tokens": 5, "page_token": "p"})
    keys = {"X-Api-Key": "REDACTED", "githubToken": "REDACTED"}
    assert redacted["tools"][0] == {"type": "mcp", "authorization": "REDACTED", "headers": keys}
    assert (redacted["parameters"], redacted["max_tokens"], redacted["page_token"]) == (schema, 5, "p")


def test_what_has_no_key_keeps_its_bytes() -> None:
    body = b'{"a" : 1,\n "b":  "\\u00e9"}'
    events = [b'data: {"choices":  [{"delta": {"content": "x"}}]}\r\n\r\n', b": ping\n\n", b"data: [DONE]\n\n"]
    assert Redactor(["secret-123"]).body(body) == body
    assert Redactor(["secret-123"]).events(events) == events


def test_an_odd_body_is_searched_too() -> None:
    redactor = Redactor(["secret-123"])
    assert redactor.body(b"\xff secret-123 \xfe") == b"\xff REDACTED \xfe"
    assert redactor.events([b"data: {secret-123\n\n"]) == [b"data: {REDACTED\n\n"]


@given(SECRETS, st.integers(0, 100))
@example("sk-proj-Ab12Cd34Ef56", 13)
def test_of_a_key_that_a_stream_breaks_off_in_less_than_half_is_left(secret: str, at: int) -> None:
    """As whole events, and as an event that has not ended."""
    assume("REDACTED" not in secret)
    assume(secret.strip() == secret)
    cut = secret[: max(8, len(secret) // 2) + at % len(secret)]
    redactor = Redactor([secret])
    events = [*spoken(["Your key: " + cut[:3], cut[3:]]), b'data: {"delta": "' + json.dumps(cut)[1:-1].encode()]
    assume(
        cut
        not in Recording("POST", "/v1/x", {}, 200, {}, [Chunk(0.0, event) for event in spoken(["Your key: "])], True).text()
    )
    written = b"".join(redactor.events(events)).decode()
    assert cut not in said_in(redactor, events[:-1])
    assert json.dumps(cut)[1:-1] not in written


ENDLESS = [
    *("sk-", "-eyJ", "\\", '\\"', "Bearer ", "Basic a ", "-----BEGIN ", '"password"', "://a:", "A_KEY=", "KEY", "monday "),
    *("<br>", "<a", "</a>", "&key=", "eyJ.", "1", "a"),
]


@pytest.mark.parametrize("text", ENDLESS)
def test_long_texts_are_searched_in_one_pass(text: str) -> None:
    """Each was searched again from every place in it: hours for a request that anyone may send."""
    repeated = text * (300_000 // len(text))
    assert Redactor(["abcdef0123456"]).text(repeated) == repeated
