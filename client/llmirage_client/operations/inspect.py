"""Statistics of a workload: counts, lengths, arrivals, prefix reuse."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from llmirage_client.operations.workload import readable
from llmirage_client.settings.workload import InspectSettings
from llmirage_client.workload.session import Workload
from llmirage_client.workload.shape import WorkloadShape, shape
from llmirage_client.workload.summary import summarise
from llmirage_shared.prompt_encoder import PromptEncoder
from llmirage_shared.tokenizer_loader import load as load_tokenizer

_MOST_REQUESTS = 1_000_000


@dataclass(frozen=True, slots=True)
class WorkloadFacts:
    """Counts by name, the shape of lengths and arrivals, and notes."""

    facts: dict[str, Any]
    shape: WorkloadShape
    notes: list[str]

    def json(self) -> dict[str, Any]:
        """Return the figures of --json."""
        seen, reuse = self.shape, self.shape.reuse
        return {
            **{name.replace(" ", "_"): value for name, value in self.facts.items()},
            "distributions": {
                name: {**distribution.summary.as_dict(), "bars": distribution.bars}
                for name, distribution in seen.distributions.items()
            },
            "arrivals_per_s": seen.arrivals_per_s,
            "gap_variation": seen.gap_variation,
            "arrival_bars": seen.arrival_bars,
            "prefix_reuse": {
                "share": reuse.share,
                "prompt_tokens": reuse.prompt_tokens,
                "own_conversation_tokens": reuse.own_tokens,
                "other_conversation_tokens": reuse.other_tokens,
            },
            "notes": self.notes,
        }


def inspect(workload: Workload, settings: InspectSettings) -> WorkloadFacts:
    """Count and measure a workload. Raises ConfigError for a tokenizer that is not there."""
    with readable():
        encoder = PromptEncoder(*load_tokenizer(settings.tokenizer))
    counts = summarise(workload, with_reuse=False)
    seen = shape(workload, encoder, settings.reply_tokens, _MOST_REQUESTS)
    facts: dict[str, Any] = {
        "format": workload.format,
        "sessions": counts.sessions,
        "roots": counts.roots,
        "turns": counts.turns,
        "forked children": counts.forks,
        "spawned children": counts.spawns,
        "joins": counts.joins,
        "depth": counts.depth,
        "requests when every root runs once": counts.requests,
    }
    notes = [*workload.notes, *_notes(seen, counts.requests, settings.reply_tokens)]
    return WorkloadFacts(facts, seen, notes)


def _notes(seen: WorkloadShape, requests: int, reply_tokens: int) -> list[str]:
    notes = []
    if seen.assumed_replies:
        notes.append(
            f"{seen.assumed_replies:,} replies are taken to be {reply_tokens:,} tokens long (--reply-tokens), "
            "as the file does not say"
        )
    if seen.counted_requests < requests:
        notes.append(f"lengths and reuse are of the first {seen.counted_requests:,} requests")
    return notes
