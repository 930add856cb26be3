"""What the command line says about the endpoint, and the target made of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from llmirage_client.choices import EndpointName, UrlStrategy
from llmirage_client.targets.endpoints import endpoint_named
from llmirage_client.targets.http import HttpTarget
from llmirage_client.targets.layers import RetryingTarget, ServerConversations, SpreadTarget
from llmirage_client.targets.target import Askable
from llmirage_client.targets.tls import Tls


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointSettings:
    """urls: at least one. api: says where the key goes, and which headers it wants besides.

    keeps_conversations: bodies name conversations that are to be made on the server.
    """

    urls: tuple[str, ...]
    api_key: str | None = None
    api: EndpointName = "chat"
    headers: tuple[tuple[str, str], ...] = ()
    timeout_s: float | None = None
    connect_timeout_s: float | None = None
    retries: int = 0
    url_strategy: UrlStrategy = "round_robin"
    keeps_conversations: bool = False
    tls: Tls = field(default_factory=Tls)

    @property
    def url(self) -> str:
        """For people to read."""
        return ", ".join(self.urls)

    def target(self) -> Askable:
        """Raises ValueError for what cannot be an endpoint. Make it on the running loop."""
        context = self.tls.context()
        api = endpoint_named(self.api)
        targets: list[tuple[str, Askable]] = []
        for url in self.urls:
            door = HttpTarget(
                url,
                self.api_key,
                (*api.headers.items(), *self.headers),
                self.timeout_s,
                ssl_context=context,
                connect_timeout_s=self.connect_timeout_s,
                key_header=api.key_header,
            )
            targets.append((url, door))
        target: Askable = SpreadTarget(targets, self.url_strategy) if len(targets) > 1 else targets[0][1]
        if self.retries:
            target = RetryingTarget(target, self.retries)
        return ServerConversations(target) if self.keeps_conversations else target
