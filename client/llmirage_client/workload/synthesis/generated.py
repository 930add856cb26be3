"""Workloads that are drawn instead of read: sessions from a plan, presets by name, and names for shell completion.

Sessions have messages of text of exact token lengths, or calls in tokens.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from llmirage_client.workload.dag_graph import branches_of, roots
from llmirage_client.workload.dag_schema import ForkEntry, SpawnEntry
from llmirage_client.workload.files import fault
from llmirage_client.workload.registry import BUNDLED_PREFIX, bundled
from llmirage_client.workload.schedule import scheduled_trees
from llmirage_client.workload.session import NOBODY, Branch, Session, Tenant, TokenSpec, Turn, Workload
from llmirage_client.workload.synthesis.conversations import Piece, Plan, PlannedConversation, PlannedTurn, draw_plan
from llmirage_client.workload.synthesis.parameters import TENANTS, Profile, defaults, presets, read_profile
from llmirage_shared.synthetic_text import SyntheticText
from llmirage_shared.tokenizer_loader import load

FORMAT_NAME = "generated"
_BETWEEN = "\n\n"
_ROUNDS_TO_MEET_A_COUNT = 8


def as_messages(plan: Plan, text: SyntheticText, exact_replies: bool) -> Workload:
    """Return messages of text; counts are of the contents alone, without the chat template.

    exact_replies: the turns' `extra` asks for as many tokens as max_tokens allows.
    """
    writer = _MessageWriter(text)
    sessions = {c.name: _message_session(c, writer, exact_replies) for c in plan.conversations}
    return Workload(FORMAT_NAME, FORMAT_NAME, sessions, roots(sessions))


def as_tokens(plan: Plan, text: SyntheticText | None) -> Workload:
    """Return calls in tokens, for a plan without branches; with the ids of text, which agents share, or without ids.

    Without arrival times all begin at 0 s: formats of such calls must have one.
    """
    return Workload.of_roots(FORMAT_NAME, FORMAT_NAME, (_token_session(c, text) for c in plan.conversations))


def _message_session(conversation: PlannedConversation, writer: _MessageWriter, exact_replies: bool) -> Session:
    turns = []
    count = len(conversation.turns)
    for index, planned in enumerate(conversation.turns):
        messages: list[Mapping[str, Any]] = []
        if index == 0 and conversation.system is not None and conversation.system.tokens:
            messages.append({"role": "system", "content": writer.content([conversation.system])})
        messages.append({"role": "user", "content": writer.content(planned.pieces)})
        tokens = planned.output_tokens
        turns.append(
            Turn(
                messages=tuple(messages),
                max_tokens=tokens,
                extra=_priority(conversation) | ({"min_tokens": tokens, "ignore_eos": True} if exact_replies else {}),
                delay_s=planned.wait_s,
                branches=_branches(conversation.name, index, count, planned),
            )
        )
    return Session(conversation.name, tuple(turns), arrival_s=conversation.arrival_s, tenant=_tenant(conversation))


def _tenant(conversation: PlannedConversation) -> Tenant:
    of = conversation.tenant
    return NOBODY if of is None else replace(of, priority=0)


def _priority(conversation: PlannedConversation) -> dict[str, int]:
    tenant = conversation.tenant
    return {"priority": tenant.priority} if tenant is not None and tenant.priority else {}


def _branches(name: str, index: int, turns: int, planned: PlannedTurn) -> tuple[Branch, ...]:
    forks = [ForkEntry(child, group.background) for group in planned.children if group.fork for child in group.names]
    spawns = [SpawnEntry(group.names, group.join_at) for group in planned.children if not group.fork]
    return branches_of(f"{name}:{index}", index, turns, forks, spawns)


class _MessageWriter:
    def __init__(self, text: SyntheticText) -> None:
        self._text = text

    def content(self, pieces: Sequence[Piece]) -> str:
        """Return the pieces one after the other, as long together as they say."""
        *heads, own = pieces
        if not heads:
            return self._text.text(own.key, own.tokens)
        head = "".join(self._text.text(piece.key, piece.tokens) + _BETWEEN for piece in heads)
        total = sum(piece.tokens for piece in pieces)
        room = own.tokens
        for _ in range(_ROUNDS_TO_MEET_A_COUNT):  # tokens go into the gaps, and some are one with their neighbours
            content = head + self._text.text(own.key, room)
            missing = total - len(self._text.tokenizer.encode(content))
            if not missing:
                return content
            if room + missing < 1:
                break
            room += missing
        return self._text.text(own.key, total)  # too short for gaps


def _token_session(conversation: PlannedConversation, text: SyntheticText | None) -> Session:
    opening = [conversation.system] if conversation.system is not None else []
    context_tokens = 0
    context = np.empty(0, dtype=np.int32)
    turns = []
    for index, planned in enumerate(conversation.turns):
        pieces = [*opening, *planned.pieces] if index == 0 else planned.pieces
        context_tokens += sum(piece.tokens for piece in pieces)
        if text is None:
            spec = TokenSpec(context_tokens, planned.output_tokens)
        else:
            prompt = np.concatenate([context, *(text.ids(piece.key, piece.tokens) for piece in pieces)])
            reply = text.ids(planned.pieces[-1].key + 1, planned.output_tokens)
            spec = TokenSpec(context_tokens, planned.output_tokens, prompt, reply)
            context = np.concatenate([prompt, reply])
        turns.append(Turn(tokens=spec, delay_s=planned.wait_s, extra=_priority(conversation)))
        context_tokens += planned.output_tokens
    arrival_s = conversation.arrival_s or 0.0
    return Session(conversation.name, tuple(turns), mode="tokens", arrival_s=arrival_s, tenant=_tenant(conversation))


MOST_DRAWN = 200  # conversations: their prompts are kept; a run repeats them with fresh tokens


def is_preset(name: str | None) -> bool:
    """Return whether the name is that of a preset, and no file is called so; or that of a YAML file of parameters."""
    return name is not None and (_is_parameters(name) if Path(name).exists() else name in presets())


def _is_parameters(name: str) -> bool:
    if not name.endswith((".yaml", ".yml")):
        return False
    try:
        keys = set(re.findall(r"^(\w+):", Path(name).read_text(encoding="utf-8"), re.MULTILINE))
    except (OSError, ValueError):
        return False
    return bool(keys) and keys <= {"preset", TENANTS, *(parameter.partition(".")[0] for parameter in defaults())}


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
    drawn = sessions_of(profile, draw_plan(profile, seed), text, with_ids=True)
    return scheduled_trees(FORMAT_NAME, name, drawn.sessions.values())


def sessions_of(profile: Profile, plan: Plan, text: SyntheticText, with_ids: bool) -> Workload:
    """Make sessions in tokens.

    with_ids: of the tokens, for a format that has them. Raises WorkloadError for branches, which such a format has not.
    """
    if profile.format != "agentic_jsonl":
        return _in_time(plan, as_messages(plan, text, profile.exact_replies))
    if profile.branching:
        raise fault(
            profile.name,
            "agentic_jsonl has only chains of requests: set sub_agents.share=0, forks.share=0 and forks.background=0",
            field="format",
        )
    return _in_time(plan, as_tokens(plan, text if with_ids else None))


def _in_time(plan: Plan, workload: Workload) -> Workload:
    """Return the workload by time where tenants' conversations were drawn one tenant after the other."""
    return scheduled_trees(FORMAT_NAME, FORMAT_NAME, workload.sessions.values()) if plan.tenants else workload


def preset_names() -> list[str]:
    """Return the names of the presets."""
    return list(presets())


def bundled_names() -> list[str]:
    """Return the names of the bundled workloads, with their prefix."""
    return [BUNDLED_PREFIX + name for name in bundled()]


def workload_names() -> list[str]:
    """Return the names that stand for workloads."""
    return [*bundled_names(), *preset_names()]
