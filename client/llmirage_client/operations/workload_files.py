"""Workload files: converted, generated, inspected."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from llmirage_client.load.turn_calls import written_out
from llmirage_client.operations.workload import readable
from llmirage_client.settings.workload import GenerateSettings, InspectSettings
from llmirage_client.workload.convert import ConversionError, Converted
from llmirage_client.workload.convert import convert as in_format
from llmirage_client.workload.registry import ALIASES
from llmirage_client.workload.session import Problem, Workload, WorkloadError
from llmirage_client.workload.shape import WorkloadShape, shape
from llmirage_client.workload.summary import summarise
from llmirage_client.workload.synthesis.conversations import Plan, draw_parts
from llmirage_client.workload.synthesis.generated import FORMAT_NAME, sessions_of
from llmirage_client.workload.synthesis.parameters import Profile, read_profile
from llmirage_client.workload.writers import WRITERS
from llmirage_shared.prompt_encoder import PromptEncoder
from llmirage_shared.settings import ConfigError, InputRefused
from llmirage_shared.synthetic_text import SyntheticText
from llmirage_shared.tokenizer_loader import load


def check_writable(to: str) -> None:
    """Raise ConfigError for a format that cannot be written."""
    if ALIASES.get(to, to) not in WRITERS:
        raise ConfigError([f"Invalid value for --to: {to!r} cannot be written; choose one of {', '.join(WRITERS)}"])


def convert(workload: Workload, to: str, tokenizer: str | None = None, seed: int = 0) -> Converted:
    """Convert a workload; where the format has no lengths, write out the texts that the file gives by length.

    Raises ConfigError for a format that cannot be written, or that cannot represent the workload.
    """
    check_writable(to)
    synthetic = any(turn.synthetic is not None for session in workload.sessions.values() for turn in session.turns)
    try:
        try:
            return in_format(workload, to)
        except ConversionError:
            if not synthetic:
                raise
        return in_format(written_out(workload, tokenizer, seed), to)
    except ConversionError as error:
        raise InputRefused([f"{workload.path}: {error}"]) from None


_PART_TOKENS = 2_000_000  # of a generated file: 10 MB


class GeneratedWorkload:
    """A workload that is drawn and written in parts of whole conversations, one at a time: iterate over its bytes once.

    preset: a name, or a YAML file. keep: bytes of the file whose conversations stay in `workload`.
    plan: its last part, with all that was drawn. arrivals_s: of all conversations.
    written, sessions, roots, requests: numbers so far, the first of bytes. Raises ConfigError, also in iterations.
    """

    def __init__(self, preset: str, settings: GenerateSettings, keep: float = math.inf) -> None:
        self._preset, self._settings, self._keep = preset, settings, keep
        with readable():
            self.profile = read_profile(preset, changes_of(settings), settings.rate)
        self.plan = Plan([], {})
        self.arrivals_s: list[float] = []
        self.written = self.sessions = self.roots = self.requests = 0
        self.workload = Workload(FORMAT_NAME, FORMAT_NAME, {}, ())

    def __iter__(self) -> Iterator[bytes]:
        with readable():
            profile, settings = self.profile, self._settings
            text = SyntheticText(load(settings.tokenizer)[0], settings.random_seed)
            for plan in draw_parts(profile, settings.random_seed, _PART_TOKENS):
                part = sessions_of(profile, plan, text, settings.token_ids)
                try:
                    data = in_format(part, profile.format, is_part=True).data
                except ConversionError as error:
                    raise WorkloadError(self._preset, [Problem(str(error), field="format")]) from None
                self._count(plan, part, len(data))
                yield data

    def arrivals(self) -> list[tuple[Profile, list[float]]]:
        """Return each tenant's profile, or the one there is, with the times of its conversations."""
        if not self.profile.tenants:
            return [(self.profile, self.arrivals_s)]
        return [(one, _times_s(plan)) for one, plan in zip(self.profile.tenants, self.plan.tenants, strict=True)]

    def _count(self, plan: Plan, part: Workload, size: int) -> None:
        if self.written < self._keep:
            kept = self.workload
            self.workload = replace(part, sessions={**kept.sessions, **part.sessions}, roots=kept.roots + part.roots)
        counts = summarise(part, with_reuse=False)
        self.plan = plan
        self.arrivals_s += _times_s(plan)
        self.written += size
        self.sessions += counts.sessions
        self.roots += counts.roots
        self.requests += counts.requests


def _times_s(plan: Plan) -> list[float]:
    return [conversation.arrival_s for conversation in plan.conversations if conversation.arrival_s is not None]


def changes_of(settings: GenerateSettings) -> list[tuple[str, Any]]:
    """Return the parameters that the settings change."""
    short = {"conversations": settings.conversations, "format": settings.to}
    return [*settings.set, *((name, value) for name, value in short.items() if value is not None)]


_MOST_REQUESTS = 1_000_000


@dataclass(frozen=True, slots=True)
class WorkloadFacts:
    """Counts by name, the shape of lengths and arrivals, and notes."""

    facts: dict[str, Any]
    shape: WorkloadShape
    notes: list[str]

    def json(self) -> dict[str, Any]:
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
        encoder = PromptEncoder(*load(settings.tokenizer))
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
