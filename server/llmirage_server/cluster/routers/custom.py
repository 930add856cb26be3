"""Routers of the user's own: extensions, named `module:name` or by an entry point.

The name is one of these two:

- a function of a request and the instances that may take it, which returns the position of one of them in that list:

      def pick(request: RequestView, instances: Sequence[InstanceView]) -> int:
          return max(range(len(instances)), key=lambda i: instances[i].cached_tokens)

- a factory of one argument, the seed, which returns a `Router`. A class with `__init__(self, seed)` is one. A Router sees
  requests and instances themselves (`Request`, `InstanceBase`), and must change nothing about them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from llmirage_server.cluster.instances.base import InstanceBase
from llmirage_server.cluster.request import Request, TokenIds
from llmirage_server.cluster.routers.builtin import Router, RouterError, key_of
from llmirage_shared.extensions import error_text, find_extension


@dataclass(frozen=True)
class RequestView:
    """The view of a request that a user's router gets; the length of its reply is not part of it."""

    prompt: TokenIds  # int32, shape (prompt_tokens,), read-only
    session_key: str | None
    model: str | None
    max_tokens: int  # allowed by the caller; 0 if not stated
    priority: int  # lower is served first, by engines that schedule by priority
    _request: Request

    @classmethod
    def of(cls, request: Request) -> RequestView:
        return cls(request.prompt, request.session_key, request.model, request.max_tokens, request.priority, request)

    @cached_property
    def _key(self) -> bytes:
        return key_of(self._request)


class InstanceView:
    """The present state of an instance, as a user's router sees it."""

    def __init__(self, instance: InstanceBase, request: RequestView) -> None:
        self._instance = instance
        self._request = request

    @property
    def index(self) -> int:
        """Number of the instance, constant for as long as the cluster runs."""
        return self._instance.index

    @property
    def running(self) -> int:
        """Number of requests in its batch."""
        return self._instance.running

    @property
    def waiting(self) -> int:
        """Number of requests in its queue."""
        return self._instance.waiting

    @property
    def kv_used_tokens(self) -> int:
        """Tokens of KV held by its requests, a shared prefix counted once."""
        return self._instance.kv_used_tokens

    @property
    def kv_total_tokens(self) -> int:
        """Capacity of its KV memory in tokens."""
        return self._instance.kv_total_tokens

    @property
    def cached_tokens(self) -> int:
        """Leading tokens of this request's prompt that are in its prefix cache."""
        return self._instance.match(self._request._key)


class CustomRouter(Router):
    """A router of the user's own, whose answers are validated."""

    def __init__(
        self, name: str, choose: Callable[[Request, Sequence[InstanceBase]], Any], forget: Callable[[int], Any]
    ) -> None:
        self._name = name
        self._choose = choose
        self._forget = forget

    def choose(self, request: Request, instances: Sequence[InstanceBase]) -> int:
        """Return the position that the user's router chose; raise RouterError if it is invalid or the router raises."""
        try:
            position = self._choose(request, instances)
        except Exception as error:
            raise RouterError(f"router {self._name!r} raised {error_text(error)}") from error
        if isinstance(position, bool) or not hasattr(position, "__index__"):
            raise RouterError(
                f"router {self._name!r} returned {position!r} of type {type(position).__name__}: it must return an int, the "
                "position of one of the instances"
            )
        number = position.__index__()
        if not 0 <= number < len(instances):
            raise RouterError(
                f"router {self._name!r} returned {number}: there are {len(instances)} instances to choose from, "
                f"positions 0 to {len(instances) - 1}"
            )
        return int(number)

    def forget(self, index: int) -> None:
        try:
            self._forget(index)
        except Exception as error:
            raise RouterError(f"router {self._name!r} raised {error_text(error)} in forget") from error


def custom_router(name: str, seed: int) -> Router:
    """Return the router named `module:name`. Raises ValueError, in one line, if it cannot be imported or does not fit."""
    found = find_extension("router", name)
    if not callable(found):
        raise ValueError(f"router {name!r}: it is {_article(type(found).__name__)}, not something that can be called")
    match _required_arguments(name, found):
        case 1:
            try:
                router = found(seed)
            except Exception as error:
                raise ValueError(f"router {name!r}: making it with the seed failed: {error_text(error)}") from error
            if not isinstance(router, Router):
                raise ValueError(
                    f"router {name!r}: a factory of one argument, the seed, must return an "
                    f"llmirage.Router, not {_article(type(router).__name__)}; a function that chooses takes "
                    "two, the request and the instances"
                )
            return CustomRouter(name, router.choose, router.forget)
        case 2:

            def choose(request: Request, instances: Sequence[InstanceBase]) -> Any:
                view = RequestView.of(request)
                return found(view, [InstanceView(instance, view) for instance in instances])

            return CustomRouter(name, choose, lambda index: None)
        case n:
            raise ValueError(
                f"router {name!r}: it must take two arguments, the request and the instances, or one, the seed; it takes {n}"
            )


def _required_arguments(name: str, function: Callable[..., Any]) -> int:
    """Return the number of arguments that must be given by position."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError) as error:
        raise ValueError(f"router {name!r}: its arguments are not known: {error_text(error)}") from error
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.kind in by_position and p.default is p.empty for p in parameters)


def _article(noun: str) -> str:
    return f"{'an' if noun[:1].lower() in 'aeiou' else 'a'} {noun}"
