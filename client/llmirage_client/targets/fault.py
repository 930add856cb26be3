"""What can go wrong between a client and an endpoint, before anyone looks at the reply's meaning."""

from __future__ import annotations

import socket
import ssl
from enum import StrEnum


class FaultKind(StrEnum):
    """The values are the `type` of a RequestError: short, and stable across releases."""

    DNS = "dns_error"
    REFUSED = "connection_refused"
    CONNECT = "connection_error"
    TLS = "tls_error"
    CONNECT_TIMEOUT = "connect_timeout"
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
    """The fault for what asyncio raised while connecting to `address` (host:port)."""
    if isinstance(error, ssl.SSLError):  # includes SSLCertVerificationError
        reason = getattr(error, "verify_message", "") or error.reason or str(error)
        return Fault(FaultKind.TLS, f"TLS handshake with {address} failed: {reason}")
    if isinstance(error, socket.gaierror | UnicodeError):
        return Fault(FaultKind.DNS, f"cannot resolve the host name of {address}")
    if isinstance(error, ConnectionRefusedError):
        return Fault(FaultKind.REFUSED, f"nothing listens at {address}")
    if isinstance(error, OSError) and "Multiple exceptions" in str(error):
        # asyncio tried several addresses of one name and joins the reasons into one text
        refused = all("Connect call failed" in part for part in str(error).split(", ["))
        if refused:
            return Fault(FaultKind.REFUSED, f"nothing listens at {address}")
    return Fault(FaultKind.CONNECT, f"cannot connect to {address}: {getattr(error, 'strerror', None) or error}")
