"""From the bytes of a request body to a dict, or to the error a client can act on."""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

from llmirage_shared.wire import errors


def parse_object(body: bytes) -> dict[str, Any]:
    """Return the JSON object in `body`; lone surrogates in its strings become U+FFFD.

    Raises ApiError (400): empty body, bytes that are not UTF-8, invalid JSON, nesting too deep, or not an object.
    """
    if not body.strip():
        raise errors.bad_json("the body is empty")
    try:
        value = _DECODER.decode(body.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise errors.bad_json("the body is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise errors.bad_json(f"{error.msg} at line {error.lineno}, column {error.colno}") from None
    except RecursionError:
        raise errors.bad_json("it is nested too deeply") from None
    except ValueError as error:
        raise errors.bad_json(errors.shorten(error)) from None
    if not isinstance(value, dict):
        raise errors.bad_json(f"the body must be an object, but is {errors.describe_type(value)}")
    if b"\\ud" in body or b"\\uD" in body:
        try:
            value = _without_lone_surrogates(value)
        except RecursionError:
            raise errors.bad_json("it is nested too deeply") from None
    assert isinstance(value, dict)
    return value


def _reject_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _finite(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise ValueError(f"{errors.shorten(digits, 20)} is too large a number")
    return value


_DECODER = json.JSONDecoder(parse_constant=_reject_constant, parse_float=_finite)


def _without_lone_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [_without_lone_surrogates(item) for item in value]
    if isinstance(value, dict):
        return {_without_lone_surrogates(key): _without_lone_surrogates(item) for key, item in value.items()}
    return value
