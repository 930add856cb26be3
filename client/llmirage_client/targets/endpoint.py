"""What the command line says about the endpoint, and the target made of it."""

from __future__ import annotations

from dataclasses import dataclass

from llmirage_client.targets.http import HttpTarget


@dataclass(frozen=True, slots=True)
class Endpoint:
    url: str
    api_key: str | None
    headers: tuple[tuple[str, str], ...]
    timeout_s: float

    def target(self) -> HttpTarget:
        """Raises ValueError for what cannot be an endpoint. Make it on the running loop."""
        return HttpTarget(self.url, self.api_key, self.headers, self.timeout_s)
