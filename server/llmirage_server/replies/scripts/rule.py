"""A script: rules in order, what each asks and what it replies, and what happens when none matches."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from llmirage_server.replies.reply import FinishReason
from llmirage_server.replies.scripts.conditions import Condition, Groups, ScriptRequest, Span
from llmirage_server.replies.scripts.template import Scope, Template

SCHEMA_FILE = Path(__file__).with_name("script.schema.json")
SCHEMA: Mapping[str, Any] = json.loads(SCHEMA_FILE.read_text(encoding="utf-8"))

FILE_KEYS: Sequence[str] = list(SCHEMA["properties"])
KEYS: Mapping[str, Sequence[str]] = {name: list(kind["properties"]) for name, kind in SCHEMA["$defs"].items()}
"""The keys of the mappings below the top, by the schema's names for these."""
FINISH_REASONS: Sequence[str] = SCHEMA["$defs"]["reply"]["properties"]["finish_reason"]["enum"]
MOST_RULES: int = SCHEMA["properties"]["rules"]["maxItems"]
MOST_TOKENS: int = SCHEMA["$defs"]["reply"]["properties"]["tokens"]["maximum"]


Fallback = Literal["generated", "error", "upstream"]
FALLBACKS: tuple[Fallback, ...] = ("generated", "error", "upstream")


ALL = Span()


class NoJson:
    """Stands for the absence of a JSON value, which may be null."""


NO_JSON = NoJson()


@dataclass(frozen=True, slots=True)
class ScriptedCall:
    """A tool call. arguments: JSON data with templates, checked against the tool's schema; a Template goes out as it is."""

    name: str
    arguments: Any


@dataclass(frozen=True, slots=True)
class ScriptedReply:
    """The reply of a rule. Without text, calls, JSON, reasoning, refusal, tokens and choices the reply is a generated one.

    tokens: so many tokens of prose. choices: one for each choice of the request, again from the first if there are more.
    usage: fields that replace what was counted. delay_s: seconds of the cluster's time before the request gets to it.
    fault: what goes wrong with it, for the server's faults.
    """

    text: Template | None = None
    calls: tuple[ScriptedCall, ...] = ()
    json: Any = NO_JSON
    reasoning: Template | None = None
    refusal: Template | None = None
    tokens: int = 0
    choices: tuple[ScriptedReply, ...] = ()
    finish_reason: FinishReason | None = None
    usage: Mapping[str, int] = field(default_factory=dict)
    delay_s: float = 0.0
    fault: Any = None

    @property
    def says_something(self) -> bool:
        """If anything of the reply itself is scripted."""
        texts = (self.text, self.reasoning, self.refusal)
        return bool(self.calls or self.tokens or self.choices) or self.json is not NO_JSON or texts != (None, None, None)


@dataclass(slots=True, eq=False)
class ScriptRule:
    """place: where it stands, `file:line`. when: its conditions by key. nth: which of the requests that fit it replies to.

    replies: in order; the last one is given again and again.
    fitting, replied: requests so far. Only a rule with `nth` counts as fitting those that an earlier rule replied to.
    """

    place: str
    when: Mapping[str, Condition]
    replies: Sequence[ScriptedReply]
    nth: Span = ALL
    fitting: int = 0
    replied: int = 0

    def fits(self, request: ScriptRequest) -> Groups | None:
        """Return the groups of the regular expressions; None if the conditions are not met."""
        groups = Groups()
        return groups if all(condition.fits(request, groups) for condition in self.when.values()) else None

    def covers(self, other: ScriptRule) -> bool:
        """Return if it is certain that nothing is left for a later rule."""
        if self.nth != ALL:
            return False
        return all(key in other.when and condition.covers(other.when[key]) for key, condition in self.when.items())


@dataclass(frozen=True, slots=True)
class RuleMatch:
    """The rule for a request, its reply, and the values of placeholders."""

    rule: ScriptRule
    reply: ScriptedReply
    scope: Scope


@dataclass(frozen=True, slots=True)
class ScriptedVector:
    """The embedding of one text: its coordinates, or a text whose embedding it is next to. place: `file:line`."""

    place: str
    vector: tuple[float, ...] = ()
    near: str = ""


@dataclass(slots=True)
class Script:
    """Rules in order. misses: requests so far that none matched. vectors: by text, as `embedding.same_text` has it."""

    rules: Sequence[ScriptRule] = ()
    fallback: Fallback = "generated"
    misses: int = 0
    vectors: Mapping[str, ScriptedVector] = field(default_factory=dict)

    def fitting(self, request: ScriptRequest) -> list[tuple[ScriptRule, Groups]]:
        """Return the rules that a request meets: all that have `nth`, and the first of the others. Counts nothing."""
        fitting: list[tuple[ScriptRule, Groups]] = []
        found = False
        for rule in self.rules:
            if not (found and rule.nth == ALL) and (groups := rule.fits(request)) is not None:
                fitting.append((rule, groups))
                found |= rule.nth == ALL
        return fitting

    def match(self, request: ScriptRequest, fitting: Sequence[tuple[ScriptRule, Groups]] | None = None) -> RuleMatch | None:
        """Return the first rule that replies, None if none does. Rules with `nth` count every request that fits them.

        fitting: what `fitting` has found.
        """
        found: RuleMatch | None = None
        for rule, groups in self.fitting(request) if fitting is None else fitting:
            if found is not None and rule.nth == ALL:
                continue
            rule.fitting += 1
            if found is None and rule.fitting in rule.nth:
                reply = rule.replies[min(rule.replied, len(rule.replies) - 1)]
                rule.replied += 1
                found = RuleMatch(rule, reply, Scope(request, groups, rule.replied))
        self.misses += found is None
        return found
