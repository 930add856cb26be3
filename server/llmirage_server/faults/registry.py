"""Every fault there is, by its kind."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass

from llmirage_server.faults.fault import InjectedFault
from llmirage_server.faults.refusals import AddedTtft, RateLimitFault, StatusFault
from llmirage_server.faults.replies import (
    EmptyBody,
    EmptyReply,
    MissingDone,
    MissingUsage,
    SlowBody,
    WrongContentType,
    WrongFinishReason,
)
from llmirage_server.faults.streams import (
    CrashFault,
    CutFault,
    DuplicateChunk,
    ErrorEventFault,
    MalformedFault,
    OversizedFault,
    ResetFault,
    StallFault,
    TornUtf8Fault,
)
from llmirage_shared.extensions import find_extension, installed
from llmirage_shared.settings import About, settings_of

FAULTS: Mapping[str, type[InjectedFault]] = {
    fault.kind: fault
    for fault in (
        *(StatusFault, RateLimitFault, AddedTtft, ResetFault, CutFault, StallFault, SlowBody, MalformedFault, TornUtf8Fault),
        *(OversizedFault, DuplicateChunk, ErrorEventFault, MissingDone, MissingUsage, WrongFinishReason, EmptyReply),
        *(EmptyBody, WrongContentType, CrashFault),
    )
}


def find_fault(kind: str, *, imports: bool) -> type[InjectedFault] | None:
    """Return the class of a kind, one of FAULTS or an extension; None if there is none.

    imports: whether `module:NAME` may be imported, which no request may ask for. Raises ValueError for a module that cannot
    be imported, or something that is no fault.
    """
    if kind in FAULTS:
        return FAULTS[kind]
    if kind not in installed("fault") and not (imports and ":" in kind):
        return None
    found = find_extension("fault", kind)
    if not (isinstance(found, type) and issubclass(found, InjectedFault)):
        raise ValueError(f"fault {kind!r}: it must be a subclass of llmirage.InjectedFault, not {found!r}")
    if not hasattr(found, "kind"):
        found.kind = kind
    if not hasattr(found, "example"):
        found.example = kind
    return found


@dataclass(frozen=True)
class FaultDescription:
    """What a list says of a fault. parameters: name and help of each."""

    kind: str
    summary: str
    parameters: tuple[tuple[str, str], ...]
    example: str
    streams_only: bool


def described(kind: type[InjectedFault]) -> FaultDescription:
    """The description of one kind, from its class."""
    summary = " ".join((inspect.getdoc(kind) or "").split())
    return FaultDescription(kind.kind, summary, parameter_texts(kind), kind.example, kind.streams_only)


def parameter_texts(kind: type[object]) -> tuple[tuple[str, str], ...]:
    """Name and help of each parameter that a class declares, with its default and its limits."""
    return tuple((name, about.help + _remarks(about)) for name, about in settings_of(kind).items())


def _remarks(about: About) -> str:
    default = about.default
    said = about.unset or ("true" if default is True else "false" if default is False else "")
    if not said and default is not None:
        said = f"{default:,g}" if isinstance(default, float) else str(default)
    told = [f"default: {said}"] if said else []
    if about.choices:
        told.append(f"one of {', '.join(about.choices)}")
    elif about.range:
        told.append(about.range)
    return f" ({'; '.join(told)})" if told else ""
