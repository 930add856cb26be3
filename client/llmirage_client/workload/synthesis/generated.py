"""Workloads that are drawn instead of read: sessions from a plan, presets by name, and names for shell completion."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from llmirage_client.workload.files import fault
from llmirage_client.workload.registry import BUNDLED_PREFIX, bundled
from llmirage_client.workload.session import Workload
from llmirage_client.workload.synthesis.plan import Plan, draw_plan
from llmirage_client.workload.synthesis.profile import Profile, presets, read_profile
from llmirage_client.workload.synthesis.sessions import as_messages, as_tokens
from llmirage_shared.synthetic_text import SyntheticText
from llmirage_shared.tokenizer_loader import load

MOST_DRAWN = 200  # conversations: their prompts are kept; a run repeats them with fresh tokens


def is_preset(name: str | None) -> bool:
    """Return whether the name is that of a preset, and no file is called so."""
    return name in presets() and not Path(name).exists()


def preset_workload(
    name: str, conversations: int | None, seed: int, tokenizer: str | None, changes: Sequence[tuple[str, Any]]
) -> Workload:
    """Draw conversations of a preset, MOST_DRAWN at most.

    changes: (name of a parameter, value). Raises WorkloadError, TokenizerError.
    """
    if conversations is not None:
        changes = [*changes, ("conversations", min(conversations, MOST_DRAWN))]
    profile = read_profile(name, changes)
    text = SyntheticText(load(tokenizer)[0], seed)
    return replace(sessions_of(profile, draw_plan(profile, seed), text, with_ids=True), path=name)


def sessions_of(profile: Profile, plan: Plan, text: SyntheticText, with_ids: bool) -> Workload:
    """with_ids: of the tokens, for a format in tokens. Raises WorkloadError for branches, which such a format has not."""
    if profile.format != "agentic_jsonl":
        return as_messages(plan, text, profile.exact_replies)
    if profile.branching:
        raise fault(
            profile.name,
            "agentic_jsonl has only chains of requests: set sub_agents.share=0, forks.share=0 and forks.background=0",
            field="format",
        )
    return as_tokens(plan, text if with_ids else None)


def preset_names() -> list[str]:
    """Return the names of the presets."""
    return list(presets())


def bundled_names() -> list[str]:
    """Return the names of the bundled workloads, with their prefix."""
    return [BUNDLED_PREFIX + name for name in bundled()]


def workload_names() -> list[str]:
    """Return the names that stand for workloads."""
    return [*bundled_names(), *preset_names()]
