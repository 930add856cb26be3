"""Names of conversations and requests."""

from __future__ import annotations

import hashlib
import os


class Identifiers:
    """Names conversations and requests: UUIDs that depend on the seed and on their place in the run, not on its timing."""

    def __init__(self, seed: int | None) -> None:
        self._seed = os.urandom(16).hex() if seed is None else f"seed {seed}"

    def make(self, *place: object) -> str:
        name = "/".join(map(str, (self._seed, *place)))
        digest = hashlib.blake2b(name.encode(), digest_size=16).hexdigest()
        variant = "89ab"[int(digest[16], 16) & 3]  # RFC 9562; put together by hand at a third of uuid.UUID's cost
        return f"{digest[:8]}-{digest[8:12]}-4{digest[13:16]}-{variant}{digest[17:20]}-{digest[20:]}"
