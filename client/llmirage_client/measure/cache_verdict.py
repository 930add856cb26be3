"""The verdict on the prefix cache of a run's endpoint."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

Verdict = Literal["fine", "off", "scattered", "evicted", "too few hits", "not reported", "nothing to judge"]
LEAST = 64  # tokens that a prompt must have in common with an earlier one


@dataclass(slots=True, frozen=True)
class CacheVerdict:
    """possible_tokens: of prompts that begin as an earlier one whose first token had come; the least that may be found.

    requests: with such a beginning. cached_tokens: of these tokens, those that the endpoint had; None: it does not say.
    counted_by: what says so. soon_share, late_share: of the possible tokens, by how much was sent in between.
    """

    verdict: Verdict
    requests: int
    possible_tokens: int
    cached_tokens: int | None
    counted_by: Literal["usage", "/metrics"] | None
    soon_share: float | None = None
    late_share: float | None = None

    @property
    def share(self) -> float | None:
        return None if self.cached_tokens is None else self.cached_tokens / max(self.possible_tokens, 1)

    @property
    def notes(self) -> list[str]:
        if self.verdict == "nothing to judge":
            return [f"Prefix cache: nothing to judge, no prompt begins with {LEAST} tokens of an earlier one."]
        of = f"of {self.possible_tokens:,} tokens that {self.requests:,} requests repeat"
        if self.share is None:
            return [f"Prefix cache: the endpoint does not say, neither in its usage nor at /metrics, what it had {of}."]
        found = f"{self.share:.0%} {of} came from the cache, by {self.counted_by}"
        by_time = ""
        if self.soon_share is not None and self.late_share is not None:
            by_time = f" ({self.soon_share:.0%} of what came again soon, {self.late_share:.0%} of what came late)"
        why = {
            "fine": "it works",
            "off": "it is off, or does not keep prompts such as these",
            "scattered": "requests of a conversation go to several instances, as its router does not keep them together",
            "evicted": "blocks are evicted before they come again: the cache is too small for this load",
            "too few hits": "its router scatters, or blocks are evicted; /metrics alone does not tell which",
        }
        return [f"Prefix cache: {why[self.verdict]}. {found}{by_time}."]

    def as_dict(self) -> dict[str, Any]:
        """Return values for JSON."""
        return asdict(self) | {"share": self.share, "notes": self.notes}
