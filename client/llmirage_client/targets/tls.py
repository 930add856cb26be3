"""How an endpoint is trusted, and how it is told who we are."""

from __future__ import annotations

import ssl
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tls:
    """Paths of PEM files. ca: authorities to trust instead of the system's. insecure: any certificate will do.

    cert, key: ours, for endpoints that want one; key is not needed where the file of cert has both.
    """

    ca: str | None = None
    insecure: bool = False
    cert: str | None = None
    key: str | None = None

    def context(self) -> ssl.SSLContext | None:
        """None where the system's defaults will do, which are then loaded only if TLS is spoken. Raises ValueError."""
        if self == Tls():
            return None
        try:
            context = ssl.create_default_context(cafile=self.ca)
        except (OSError, ssl.SSLError) as error:
            raise ValueError(f"--tls-ca {self.ca}: {_reason(error)}") from None
        if self.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self.cert is not None:
            try:
                context.load_cert_chain(self.cert, self.key, password="")
            except (OSError, ssl.SSLError) as error:
                files = f"--tls-cert {self.cert}" + (f" with --tls-key {self.key}" if self.key else "")
                raise ValueError(f"{files}: {_reason(error)}") from None
        return context


def _reason(error: OSError) -> str:
    if not isinstance(error, ssl.SSLError):
        return error.strerror or str(error)
    if error.reason in (None, "PEM_LIB"):
        return "no certificate and key that fit are in it"
    return error.reason.lower().replace("_", " ")
