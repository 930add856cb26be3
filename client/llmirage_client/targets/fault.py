"""Faults of the transport between a client and an endpoint, and the exceptions of httpx for them.

httpx2 has classes of the same names, so that both are known by these.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from enum import StrEnum
from typing import Any


class FaultKind(StrEnum):
    """The values are the `type` of a RequestError: short, and stable across releases."""

    DNS = "dns_error"
    REFUSED = "connection_refused"
    CONNECT = "connection_error"
    TLS = "tls_error"
    CONNECT_TIMEOUT = "connect_timeout"
    TIMEOUT = "timeout"
    RESET = "connection_reset"
    CLOSED = "connection_closed"
    PROTOCOL = "protocol_error"
    LOCAL = "invalid_request"


class Fault(Exception):
    """A transport's failure, free of any HTTP library's exception classes."""

    def __init__(self, kind: FaultKind, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message


def connect_fault(error: Exception, address: str) -> Fault:
    """Return the fault for what asyncio raised while connecting to `address` (host:port)."""
    if isinstance(error, ssl.SSLError):  # includes SSLCertVerificationError
        reason = getattr(error, "verify_message", "") or error.reason or str(error)
        return Fault(FaultKind.TLS, f"TLS handshake with {address} failed: {reason}")
    if isinstance(error, socket.gaierror | UnicodeError):
        return Fault(FaultKind.DNS, f"cannot resolve the host name of {address}")
    if isinstance(error, ConnectionRefusedError):
        return Fault(FaultKind.REFUSED, f"nothing listens at {address}")
    if isinstance(error, OSError) and "Multiple exceptions" in str(error):
        # asyncio tried several addresses of one name and joins the reasons into one text
        refused = all("Connect call failed" in part for part in str(error).split(", "))
        if refused:
            return Fault(FaultKind.REFUSED, f"nothing listens at {address}")
    return Fault(FaultKind.CONNECT, f"cannot connect to {address}: {getattr(error, 'strerror', None) or error}")


def broken_fault(reset: bool, begun: bool) -> Fault:
    """Return the fault of a connection that ended before the reply did. begun: after its headers."""
    where = "during the reply" if begun else "before a reply came"
    kind, how = (FaultKind.RESET, "reset") if reset else (FaultKind.CLOSED, "closed")
    return Fault(kind, f"the server {how} the connection {where}")


_EXCEPTIONS = {
    FaultKind.DNS: "ConnectError",
    FaultKind.REFUSED: "ConnectError",
    FaultKind.CONNECT: "ConnectError",
    FaultKind.TLS: "ConnectError",
    FaultKind.CONNECT_TIMEOUT: "ConnectTimeout",
    FaultKind.TIMEOUT: "ReadTimeout",
    FaultKind.RESET: "ReadError",
    FaultKind.CLOSED: "RemoteProtocolError",
    FaultKind.PROTOCOL: "RemoteProtocolError",
    FaultKind.LOCAL: "LocalProtocolError",
}

# Of httpx.RemoteProtocolError where the connection ended: the words of httpcore 1.0, h11 0.16 and h2 4.
_CLOSED = ("disconnected", "peer closed connection", "ConnectionTerminated")
_RESET = "StreamReset"


def as_exception(fault: Fault, library: Any) -> Exception:
    """Return the exception that a transport of `library` (the module httpx or httpx2) raises for the fault."""
    error: Exception = getattr(library, _EXCEPTIONS[fault.kind])(fault.message)
    error.__cause__ = fault
    return error


def fault_of(error: Exception, address: str, begun: bool) -> Fault:
    """Return the fault for an exception of a transport of httpx. address: where it connected to. begun: see broken_fault."""
    causes = list(_causes(error))
    for cause in causes:
        if isinstance(cause, Fault):
            return cause
    names, text = {kind.__name__ for kind in type(error).__mro__}, str(error) or type(error).__name__
    if any(type(cause).__module__.startswith("h2.") for cause in causes):
        return Fault(FaultKind.PROTOCOL, f"not a valid HTTP/2 response: {text}")
    if "ConnectTimeout" in names:
        return Fault(FaultKind.CONNECT_TIMEOUT, f"no connection to {address} in time")
    if "TimeoutException" in names:
        return Fault(FaultKind.TIMEOUT, text)
    if "ConnectError" in names:
        reasons = [cause for cause in causes if isinstance(cause, OSError | UnicodeError)]
        if not reasons:
            return Fault(FaultKind.CONNECT, f"cannot connect to {address}: {text}")
        return connect_fault(reasons[-1], address)
    if "ProxyError" in names:
        return Fault(FaultKind.CONNECT, f"{address} refused the connection: {text}")
    if "NetworkError" in names:
        return broken_fault(True, begun)
    if names & {"LocalProtocolError", "UnsupportedProtocol"}:
        return Fault(FaultKind.LOCAL, text)
    if "ProtocolError" in names:
        if _RESET in text or any(words in text for words in _CLOSED):
            return broken_fault(_RESET in text, begun)
        return Fault(FaultKind.PROTOCOL, f"not a valid HTTP response: {text}")
    return Fault(FaultKind.RESET, f"the connection failed: {text}")


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield the exception and those that it came from, the nearest first; of a group, each."""
    while error is not None:
        yield error
        if isinstance(error, BaseExceptionGroup):
            for one in error.exceptions:
                yield from _causes(one)
        error = error.__cause__ or error.__context__
