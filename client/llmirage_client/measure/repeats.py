"""Whether a run had as many distinct conversations as its load asks for, and what repeats did to its cache hits."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

NOTABLE = 0.25  # of the first prompts found in a cache: more than a shared chat template


@dataclass(slots=True, frozen=True)
class Repeats:
    """Of the root conversations that ran.

    conversations: how many; distinct: of those, how many different ones the workload has; most: how often one of them ran.
    varied: every repeat had tokens of its own. unfilled: the concurrency that was asked for, where there were fewer roots.
    hit_share: of the prompt tokens that were found in a cache, those that a repeat found beyond its own earlier turns and
    beyond what the first run of its conversation found there. known_share: of the tokens of first prompts, those that the
    endpoint had in its cache though no conversation of this run begins with them. None: not known.
    """

    conversations: int
    distinct: int
    most: int
    varied: bool
    unfilled: int | None = None
    hit_share: float | None = None
    known_share: float | None = None

    @property
    def doubtful(self) -> bool:
        """Whether the run's figures are those of prompts that the endpoint had seen before."""
        return (self.most > 1 and not self.varied) or self.known

    @property
    def known(self) -> bool:
        return self.known_share is not None and self.known_share > NOTABLE

    @property
    def notes(self) -> list[str]:
        ran, notes = f"{self.conversations:,} conversations ran", []
        if self.most > 1 and self.varied:
            notes.append(
                f"{ran}, made of the {self.distinct:,} of the workload: each came up to {self.most:,} times, with user "
                "messages, tool results and replies of its own each time (--no-vary repeats them token for token)."
            )
        elif self.most > 1:
            hits = "" if self.hit_share is None else f", and {self.hit_share:.1%} of the cache hits come from repeats"
            notes.append(
                f"{ran}, but only {self.distinct:,} are distinct: each came up to {self.most:,} times, token for token. "
                f"Copies share their KV cache{hits}. --vary gives each repeat fresh tokens."
            )
        if self.unfilled is not None:
            notes.append(
                f"Concurrency {self.unfilled:,} was not reached: {ran}, each once. "
                f"--agents {self.unfilled} runs as many distinct ones, made of these."
            )
        if self.known:
            notes.append(
                f"The endpoint had {self.known_share:.0%} of the first prompts' tokens in its cache before they were sent, "
                "though this run has nothing like them: it knows them from an earlier run. "
                "Restart it, empty its prefix cache, or send other conversations (--dataset-offset)."
            )
        return notes

    def as_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return asdict(self) | {"notes": self.notes}
