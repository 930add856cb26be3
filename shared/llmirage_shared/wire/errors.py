"""Errors in the OpenAI API's words: {"error": {"message", "type", "param", "code"}}, always with all four keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

INVALID_REQUEST = "invalid_request_error"


_MOST_CHARACTERS = 4_000  # of a message


class ApiError(Exception):
    """An error response: an HTTP status and the four fields of the error object."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        type: str = INVALID_REQUEST,
        param: str | None = None,
        code: str | None = None,
        headers: Sequence[tuple[bytes, bytes]] = (),
    ) -> None:
        """Create an error, shortening parts of the body in its message and param.

        headers: of the response, beside the usual ones, names in lower case.
        """
        self.message = shorten(message, _MOST_CHARACTERS)
        super().__init__(self.message)
        self.status = status
        self.type = type
        self.param = None if param is None else shorten(param, _MOST_CHARACTERS)
        self.code = code
        self.headers = headers

    def body(self) -> dict[str, Any]:
        """Return the JSON object of the response."""
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}


class ContextOverflowError(ApiError):
    """A prompt, or a prompt and the requested tokens, beyond the context window; each API has its own words for it."""

    def __init__(self, message: str, param: str, limit_tokens: int, prompt_tokens: int, max_tokens: int | None) -> None:
        super().__init__(message, param=param, code="context_length_exceeded")
        self.limit_tokens = limit_tokens
        self.prompt_tokens = prompt_tokens
        self.max_tokens = max_tokens


def bad_json(detail: str) -> ApiError:
    return ApiError(
        "We could not parse the JSON body of your request. (HINT: This likely means you aren't using your HTTP library "
        f"correctly. The OpenAI API expects a JSON payload, but what was sent was not valid JSON: {detail}.)"
    )


def missing(param: str) -> ApiError:
    return ApiError(f"Missing required parameter: '{param}'.", param=param, code="missing_required_parameter")


def unknown_parameter(param: str) -> ApiError:
    return ApiError(f"Unknown parameter: '{param}'.", param=param, code="unknown_parameter")


def wrong_type(param: str, expected: str, value: object) -> ApiError:
    return ApiError(
        f"Invalid type for '{param}': expected {expected}, but got {describe_type(value)} instead.",
        param=param,
        code="invalid_type",
    )


def not_a_choice(param: str, value: str, choices: Sequence[str]) -> ApiError:
    quoted = [f"'{choice}'" for choice in choices]
    listed = " and ".join(quoted) if len(quoted) < 3 else f"{', '.join(quoted[:-1])}, and {quoted[-1]}"
    return ApiError(f"Invalid value: '{shorten(value)}'. Supported values are: {listed}.", param=param, code="invalid_value")


def invalid_value(param: str, message: str, code: str = "invalid_value") -> ApiError:
    return ApiError(f"Invalid '{param}': {message}", param=param, code=code)


def wrong_pattern(param: str, pattern: str) -> ApiError:
    """Return the error for a string that does not match the regular expression `pattern`."""
    return invalid_value(param, f"string does not match pattern. Expected a string that matches the pattern '{pattern}'.")


def below_minimum(param: str, kind: str, minimum: float, value: float) -> ApiError:
    """Return the error for a number too small. kind: "integer" or "decimal", by the field's type, not the value's."""
    message = f"{kind} below minimum value. Expected a value >= {minimum}, but got {shorten(value)} instead."
    return invalid_value(param, message, f"{kind}_below_min_value")


def above_maximum(param: str, kind: str, maximum: float, value: float) -> ApiError:
    """Return the error for a number too large. kind: "integer" or "decimal", by the field's type, not the value's."""
    message = f"{kind} above maximum value. Expected a value <= {maximum}, but got {shorten(value)} instead."
    return invalid_value(param, message, f"{kind}_above_max_value")


def empty_array(param: str) -> ApiError:
    message = "empty array. Expected an array with minimum length 1, but got an empty array instead."
    return invalid_value(param, message, "empty_array")


def too_long(param: str, kind: str, maximum: int, length: int) -> ApiError:
    """Return the error for a value too long. kind: "an array" or "a string"."""
    name = kind.partition(" ")[2]
    expected = f"Expected {kind} with maximum length {maximum}, but got {kind} with length {length} instead."
    return invalid_value(param, f"{name} too long. {expected}", f"{name}_above_max_length")


def too_many_properties(param: str, maximum: int, count: int) -> ApiError:
    expected = f"Expected an object with at most {maximum} properties, but got an object with {count} properties instead."
    return invalid_value(param, f"too many properties. {expected}", "object_above_max_properties")


def only_with(param: str, message: str) -> ApiError:
    """Return the error for a field that has no meaning without another."""
    return ApiError(message, param=param, code="invalid_value")


def two_limits() -> ApiError:
    return ApiError(
        "Setting 'max_tokens' and 'max_completion_tokens' at the same time is not supported.",
        param="max_tokens",
        code="invalid_parameter_combination",
    )


def no_token_id(key: str) -> ApiError:
    """Return the error for a key of `logit_bias`."""
    message = f"Invalid key in 'logit_bias': {shorten(key)}. You should only be submitting non-negative integers."
    return ApiError(message, param="logit_bias")


def invalid_schema(what: str, problem: str, param: str, code: str | None) -> ApiError:
    return ApiError(f"Invalid schema for {what}: {problem}", param=param, code=code)


def too_much_to_plan(param: str) -> ApiError:
    """Return the error for a schema, a pattern, a grammar or a script's rules that take too much work for one request."""
    return invalid_value(
        param,
        "to follow it takes more work than this server does for one request. Use smaller bounds, fewer alternatives or less "
        "nesting; if a script replies, a shorter text or fewer rules.",
    )


def too_many_choices(param: str, maximum: int, prompts: int, n: int) -> ApiError:
    """Return the error for more completions than one request may ask for."""
    return invalid_value(param, f"{prompts} prompts with {n} choices each are more than {maximum} choices in one request.")


def unsupported(param: str, message: str) -> ApiError:
    """Return the error for a feature of the real API that this server lacks: ignoring it would mislead the client."""
    return ApiError(message, param=param, code="unsupported_parameter")


def context_length_exceeded(
    limit_tokens: int, prompt_tokens: int, max_tokens: int | None, param: str, counted: bool = True
) -> ApiError:
    """Return the error for a prompt, or a prompt and its requested tokens, beyond the context window.

    counted: the prompt was counted to its end.
    """
    noun = "messages" if param == "messages" else "prompt"
    if max_tokens is None or prompt_tokens >= limit_tokens:
        least = "" if counted else "at least "
        found = f"your {noun} resulted in {least}{prompt_tokens} tokens. Please reduce the length of the {noun}."
    else:
        found = (
            f"you requested {prompt_tokens + max_tokens} tokens ({prompt_tokens} in the {noun}, {max_tokens} in the "
            f"completion). Please reduce the length of the {noun} or completion."
        )
    message = f"This model's maximum context length is {limit_tokens} tokens. However, {found}"
    return ContextOverflowError(message, param, limit_tokens, prompt_tokens, max_tokens)


def model_not_found(model: str, served: Sequence[str], longest: int) -> ApiError:
    """Return 404 for an unknown model.

    served: the names there are; other names of at most `longest` characters are refused with --set accept_models=served.
    """
    listed = ", ".join(f"`{name}`" for name in served)
    refused = f"names have at most {longest:,} characters" if len(model) > longest else "--set accept_models=served"
    here = f"This server serves {listed}; {refused if model else 'no name was given'}."
    said = f"The model `{shorten(model)}` does not exist or you do not have access to it. ({here})"
    return ApiError(said, status=404, param="model", code="model_not_found")


def no_rule(endpoint: str, user: str) -> ApiError:
    """Return 404 for a server whose script replies to all requests or to none.

    user: the last user message, or the prompt.
    """
    return ApiError(
        f"No rule of the script fits this request (endpoint {endpoint}, user message '{shorten(user)}'). The script says "
        "fallback: error.",
        status=404,
        code="no_rule",
    )


def unknown_url(method: str, path: str, absent: str | None = None, headers: Sequence[tuple[bytes, bytes]] = ()) -> ApiError:
    """Return 404. absent: a feature of the real API at that URL, which this server lacks."""
    why = "" if absent is None else f": {absent}"
    return ApiError(f"Invalid URL ({method} {shorten(path)}){why}", status=404, code="unknown_url", headers=headers)


def method_not_supported(method: str, path: str, allowed: Sequence[str]) -> ApiError:
    return ApiError(
        f"Not allowed to {method} on {shorten(path)}. (HINT: Perhaps you meant {' or '.join(allowed)}.)",
        status=405,
        code="method_not_supported",
    )


def no_websocket() -> ApiError:
    """Return 426, at which clients that can do either use HTTP."""
    return ApiError(
        "No WebSocket connections are taken here: send the request over HTTP.",
        status=426,
        code="websocket_not_supported",
        headers=((b"upgrade", b"HTTP/1.1"), (b"connection", b"close")),
    )


def invalid_stream_id() -> ApiError:
    return ApiError(
        "The 'stream_id' field must be a non-empty string with at most 256 characters and may only contain letters, "
        "numbers, underscores, hyphens, and periods.",
        param="stream_id",
        code="invalid_stream_id",
    )


def too_many_streams(limit: int) -> ApiError:
    return ApiError(
        f"This WebSocket connection has reached its maximum number of distinct stream IDs ({limit}). Reuse an existing "
        "stream_id or open a new WebSocket connection.",
        param="stream_id",
        code="websocket_stream_limit_reached",
    )


def websocket_too_old(limit_s: float) -> ApiError:
    """Return the error that ends a WebSocket connection at its maximum age."""
    limit = f"{limit_s / 60:g} minutes" if limit_s >= 60 else f"{limit_s:g} s"
    return ApiError(
        f"Responses websocket connection limit reached ({limit}). Create a new websocket connection to continue.",
        code="websocket_connection_limit_reached",
    )


def internal_error(message: str = "The server had an error while processing your request.") -> ApiError:
    return ApiError(message, status=500, type="server_error")


def no_remote_kv(name: str) -> ApiError:
    """Return vLLM's error of a KV load that failed (kv_load_failure_policy fail)."""
    return internal_error(f"The KV of the prompt could not be loaded: nothing is kept as {shorten(name)!r} (any more).")


def in_use(field: str, name: str) -> ApiError:
    return ApiError(f"Another request has the {field} {shorten(name)!r}.", status=409, param=field)


def no_instance() -> ApiError:
    return _unavailable("No instance that serves this model is up, and none will start.")


# Of requests that a gateway's flow control drops: status, reason and message, by outcome, as in llm-d's router
# (pkg/epp/requestcontrol/admission.go, pkg/common/error), which answers 500 where no endpoint is valid.
_DROPPED = {
    "RejectedCapacity": (429, "rejected-saturated", "The gateway's queue is full: the instances are saturated."),
    "RejectedNoEndpoints": (503, "rejected-no-endpoints", "The gateway's queue is full, and no instance is up."),
    "EvictedTTL": (429, "rejected-ttl-expired", "The request has waited too long in the gateway's queue."),
    "NoValidEndpoint": (503, "no-valid-endpoint", "No instance is predicted to meet the request's objective."),
    "EvictedNoEndpoints": (503, "rejected-no-endpoints", "The request has waited too long, and no instance is up."),
}


def lost(dropped: str) -> ApiError:
    """Return the error of a request that a gateway drops with this outcome; without one, its instance was lost."""
    if not dropped:
        return instance_lost()
    status, reason, message = _DROPPED[dropped]
    type = "requests" if status == 429 else "server_error"
    headers = [(b"x-llm-d-request-dropped-reason", reason.encode())]
    return ApiError(message, status=status, type=type, code=reason, headers=headers)


def instance_lost() -> ApiError:
    return _unavailable("The instance that served this request was lost.")


def asleep() -> ApiError:
    return _unavailable("The server sleeps: POST /wake_up wakes it.")


def shutting_down() -> ApiError:
    return _unavailable("The server is shutting down.", "server_shutdown")


def state_unavailable(problem: str) -> ApiError:
    """Return 503 for stored data that cannot be read or written."""
    return _unavailable(f"The state file cannot be used: {problem}.", "state_unavailable")


def too_many_unread_bytes(limit_bytes: int) -> ApiError:
    """Return 503. The connection ends with this response: the rest of the body is not read."""
    return _unavailable(
        f"The bodies and long replies of requests have {limit_bytes} bytes, their most (--set unread_mib=N).",
        "server_busy",
        ((b"connection", b"close"), (b"retry-after", b"1")),
    )


def too_much_in_background(limit_bytes: int) -> ApiError:
    return _unavailable(
        f"The events of unfinished responses in the background may have {limit_bytes} bytes, and are about to.",
        "server_busy",
        ((b"retry-after", b"1"),),
    )


def _unavailable(message: str, code: str = "service_unavailable", headers: Sequence[tuple[bytes, bytes]] = ()) -> ApiError:
    return ApiError(message, status=503, type="server_error", code=code, headers=headers)


def no_upstream(problem: str) -> ApiError:
    return ApiError(f"The upstream did not answer: {problem}", status=502, type="server_error", code="upstream_unreachable")


def no_recording(detail: str) -> ApiError:
    return ApiError(f"No recording answers this request. {detail}", status=404, code="no_recording")


def no_api_key() -> ApiError:
    return ApiError(
        "You didn't provide an API key. You need to provide your API key in an Authorization header using Bearer auth (i.e. "
        "Authorization: Bearer YOUR_KEY).",
        status=401,
    )


def foreign_page(path: str, origin: str) -> ApiError:
    """Return 403 for a page of another server that calls what such pages may not call."""
    message = f"{path} may not be called by a page of {origin}. (HINT: --cors lets pages of an origin use the API.)"
    return ApiError(message, status=403, code="foreign_origin")


def outside_base_path() -> ApiError:
    """Return 400 for a path that leads out of the upstream's base path."""
    return ApiError("Paths with `..` are not passed on: they may lead out of the upstream's.", code="invalid_path")


def not_local(path: str) -> ApiError:
    return ApiError(
        f"{path} changes the server or shows what others ask it: without --api-key it may be called from this machine only. "
        "(HINT: --set open_admin=true opens it to all.)",
        status=403,
        code="not_local",
    )


def wrong_api_key(key: str) -> ApiError:
    """Return 401. The message shows only the end of the key."""
    shown = f"{'*' * min(max(len(key) - 4, 4), 40)}{key[-4:] if len(key) >= 12 else ''}"
    return ApiError(f"Incorrect API key provided: {shorten(shown)}.", status=401, code="invalid_api_key")


def rate_limited(
    model: str, kind: str, limit: int, used: int, requested: int, wait: str, headers: Sequence[tuple[bytes, bytes]]
) -> ApiError:
    """Return 429 for a rate limit.

    kind: "requests" or "tokens".
    wait: until the request would be served, in Go's format.
    """
    per_minute = {"requests": "requests per min (RPM)", "tokens": "tokens per min (TPM)"}[kind]
    return ApiError(
        f"Rate limit reached for {shorten(model)} on {per_minute}: Limit {limit}, Used {used}, Requested {requested}. "
        f"Please try again in {wait}.",
        status=429,
        type=kind,
        code="rate_limit_exceeded",
        headers=headers,
    )


def too_many_batches(limit: int) -> ApiError:
    return ApiError(
        f"{limit} batches have not ended yet, and no more are taken. Please try again when one of them has ended.",
        status=429,
        type="requests",
        code="rate_limit_exceeded",
        headers=((b"retry-after", b"60"),),
    )


def larger_than_limit(model: str, limit: int, requested: int) -> ApiError:
    """Return 429 for a request with more tokens than the limit of a minute: waiting does not help."""
    return ApiError(
        f"Request too large for {shorten(model)} on tokens per min (TPM): Limit {limit}, Requested {requested}. The input "
        "or output tokens must be reduced in order to run successfully.",
        status=429,
        type="tokens",
        code="rate_limit_exceeded",
        headers=((b"x-should-retry", b"false"),),
    )


def body_too_large(limit_bytes: int) -> ApiError:
    """Return 413. The connection ends with this response: the rest of the body is not read."""
    return ApiError(
        f"The request body is too large: at most {limit_bytes} bytes are read (max_body_mib).",
        status=413,
        code="request_too_large",
        headers=((b"connection", b"close"),),
    )


def answer_too_large(limit_bytes: int, wanted_bytes: int) -> ApiError:
    return ApiError(
        f"The answer would be too large: its log probabilities have about {wanted_bytes} bytes, and at most {limit_bytes} "
        "are sent in one piece. Ask for fewer tokens or fewer log probabilities."
    )


def plan_too_large(limit: int) -> ApiError:
    return ApiError(
        f"The choices together are too long: at most {limit} tokens are planned for one request. Ask for fewer tokens or "
        "choices."
    )


def too_many_values(limit: int, found: int, entry: int) -> ApiError:
    """Return 413. entry: the number of values an entry of an object counts as."""
    return ApiError(
        f"The request body has too many values: it has {found}, of which at most {limit} are read. An entry of an object "
        f"counts as {entry} values.",
        status=413,
        code="request_too_large",
    )


def texts_too_large(limit_bytes: float, found_bytes: int) -> ApiError:
    return ApiError(
        f"The texts of the request body would take {found_bytes} bytes of memory, at most {limit_bytes:.0f}: one character "
        "beyond U+FFFF, such as an emoji, makes all characters of its text take four bytes each.",
        status=413,
        code="request_too_large",
    )


def too_many_objects(limit: int) -> ApiError:
    return ApiError(
        f"The request body has too many objects: at most {limit} are read.", status=413, code="request_too_large"
    )


def unsupported_content_type(given: str, accepted: str = "application/json") -> ApiError:
    return ApiError(
        f"Unsupported content type: '{shorten(given)}'. This API method only accepts '{accepted}' requests, but you "
        f"specified the header 'Content-Type: {shorten(given)}'. Please try again with a supported content type.",
        status=415,
        code="unsupported_content_type",
    )


def unsupported_content_encoding(given: str) -> ApiError:
    return ApiError(
        f"Unsupported content encoding: '{shorten(given)}'. Bodies may be sent as they are, or with gzip or deflate.",
        status=415,
        code="unsupported_content_encoding",
    )


def describe_type(value: object) -> str:
    """Return the JSON name of a value's type with its article."""
    names = {bool: "a boolean", int: "an integer", float: "a decimal number", str: "a string", list: "an array"}
    return "null" if value is None else names.get(type(value), "an object")


def shorten(value: object, limit: int = 100) -> str:
    """Return the value as text, shortened so that an error message stays readable."""
    try:
        text = str(value)
    except ValueError:  # an integer of more digits than Python prints
        return "a number too long to print"
    return text if len(text) <= limit else text[: limit - 3] + "..."
