"""Which tools a sensible model would call now: those that do what the user asks for, in the order it must be done."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from llmirage_server.replies import sums
from llmirage_server.replies.arguments import calls_wanted
from llmirage_server.replies.asked import Act, Clause, clauses, shortened
from llmirage_server.replies.commands import FILE, command_of, sql_of
from llmirage_server.replies.hearing import particulars
from llmirage_server.replies.lexicon import language_of, meaning, split_words, stem, word_set
from llmirage_server.replies.reply import ReplyRequest, Tool
from llmirage_server.replies.sums import Earlier, Number, Operation
from llmirage_server.replies.tool_traits import Traits, traits_of

MOST_CALLS = 8  # in one reply
_ENOUGH, _ENOUGH_TO_EXPLAIN, _ENOUGH_TO_HAND_OVER = 3.0, 7.0, 1.5  # scores from which a tool does what was asked
_NAME, _VERBATIM, _DESCRIPTION, _PARAMETER, _VERB = 3.0, 0.5, 1.5, 1.0, 1.0
_LOOKS_WHERE_CHANGE_IS_ASKED, _CHANGES_WHERE_A_LOOK_IS_ASKED = 0.5, 0.3

# A short question that leans on the one before: it asks, or names something.
_FOLLOW_UP = re.compile(
    r"\s*(?:(?i:and|what about|how about|now|same for|also|ok(?:ay)?,?) (?=.*(?:\?|[A-Z0-9])).{1,60}|(?:[A-Z][\w-]+ "
    r"?){1,3}\?)",
    re.DOTALL,
)
_USE_IT = re.compile(
    r"\b(?:use|call|invoke|run|try)\s+(?:the|a|your|this|that|one of the|one of your)\s+(?:\w+\s+)?(?:tool|function)s?\b",
    re.IGNORECASE,
)
_ADDRESS = re.compile(r"[\w.+-]+@[\w-]+\.\w+")
_LINK = re.compile(r"https?://|\bwww\.|\b\w+\.(?:com|org|net|io|dev)\b")
_LOOKED_FOR = word_set("search google look lookup find research browse news latest recent investigate")
_OF_OURS = word_set(
    "our my policy policies handbook company internal document documents docs documentation manual report guide"
)
_ABOUT_YOU = re.compile(r"\b(?:you|your|yourself)\b", re.IGNORECASE)
_TELL_ME_ABOUT = re.compile(r"\s*(?:tell me (?:about|more)|give me information|what do you know about)\b", re.IGNORECASE)
_PLAIN_NAME = re.compile(r"[A-Za-z][a-z]*")
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
_RESULT_KEY = re.compile(r"\"(?:result|value|sum|total|answer|output)\"\s*:\s*(-?\d+(?:\.\d+)?)")


@dataclass(slots=True, frozen=True)
class PlannedCall:
    """A tool to call, and what its arguments are made of.

    said: the words that ask for it; more: words of the conversation besides; turn: the how-many-th of several things of a
    kind they name. numbers, formula and operation: of arithmetic. result: what the call before gave, for one that uses it.
    """

    tool: Tool
    said: str
    more: str = ""
    turn: int = 0
    stage: int = 0
    numbers: tuple[Number, ...] = ()
    formula: str = ""
    operation: str = ""
    index: int = -1  # of the operation
    result: str = ""


def choose_tools(request: ReplyRequest) -> list[Tool]:
    """The tools to call now, each once; [] to answer in text."""
    return list({call.tool.name: call.tool for call in calls_now(request)}.values())


def calls_now(request: ReplyRequest) -> list[PlannedCall]:
    """The calls to make now; [] to answer in text.

    `auto` calls what the last user message asks for and has not been called since, so agent loops end; what depends on a
    result waits for it. "And in London?" asks for what was called for the message before. `required` calls something in any
    case: what is asked for, else a tool that takes the final answer, else the likeliest that has not been called yet.
    """
    choice = request.tool_choice
    allowed = [tool for tool in request.tools if choice.names is None or tool.name in choice.names]
    if choice.mode == "none" or not allowed:
        return []
    if choice.mode == "auto" and request.ignore_eos:
        return []  # the caller wants so many tokens of text
    plan = _Plan(request, [traits_of(tool) for tool in allowed])
    now = plan.due() or plan.final()
    if not now and choice.mode == "required":
        now = plan.likeliest()
    if not request.parallel_tool_calls:
        now = now[:1]
    return now[:MOST_CALLS]


class _Plan:
    """All calls that the last user message asks for."""

    def __init__(self, request: ReplyRequest, tools: Sequence[Traits]) -> None:
        self._request = request
        self._text = shortened(request.last_user_text)
        self._tools = tools
        beside = not all(traits.named_as_class for traits in tools)
        self._answering = [traits for traits in tools if traits.takes_the_answer or (beside and traits.is_schema)]
        if len(self._answering) == len(tools):
            self._answering = []
        self._acting = [traits for traits in tools if traits not in self._answering]
        self._operations = sums.operations(self._text)
        self._clauses = clauses(self._text)
        self._calls: list[PlannedCall] = []
        if self._clauses:
            self._plan()
        self._calls.sort(key=lambda call: call.stage)

    def due(self) -> list[PlannedCall]:
        """The first calls that were not made yet and wait for nothing."""
        results = list(zip(self._request.called, [*self._request.results, *[""] * len(self._request.called)], strict=False))
        left: list[PlannedCall] = []
        values: dict[int, Number] = {}
        last = results[-1][1] if results else ""
        for call in self._calls:
            made = next((number for number, (name, _) in enumerate(results) if name == call.tool.name), None)
            if made is None:
                left.append(call)
                continue
            _, said = results.pop(made)
            if call.index >= 0 and (value := _value(said)) is not None:
                values[call.index] = value
        if any(traits.hands_over and traits.tool.name in self._request.called for traits in self._tools):
            return []
        now = [call for call in left if call.stage == left[0].stage]
        return [self._with_results(call, values, last) for call in now]

    def final(self) -> list[PlannedCall]:
        """The call that hands in the answer, where the agent has a tool for it and all else is done."""
        fresh = [traits.tool for traits in self._answering if traits.tool.name not in self._request.called]
        wanted = self._request.tool_choice.mode == "required" or self._request.called or self._clauses
        return [PlannedCall(self._best(fresh), self._text, result=self._last_result())] if fresh and wanted else []

    def likeliest(self) -> list[PlannedCall]:
        fresh = [traits.tool for traits in self._tools if traits.tool.name not in self._request.called]
        tool = self._best(fresh or [traits.tool for traits in self._tools])
        if self._operations and (made := self._operation_calls(only=tool)):
            return [self._with_results(made[0], {}, "")]
        return [PlannedCall(tool, self._text, self._request.text_before, self._request.called.count(tool.name))]

    def _last_result(self) -> str:
        return self._request.results[-1] if self._request.results else ""

    def _best(self, tools: Sequence[Tool]) -> Tool:
        said = _words(self._text, self._text) | ({stem("math")} if self._operations else set())
        scores = {traits.tool.name: _score(traits, said, None)[0] for traits in self._tools}
        return max(tools, key=lambda tool: scores[tool.name])

    def _plan(self) -> None:
        sums_made = self._operation_calls()
        self._calls += sums_made
        used = {call.tool.name for call in sums_made}
        for clause in self._clauses:
            found = self._spelled_out(clause) or self._by_words(clause, used)
            if not found and not (sums_made and sums.operations(clause.said)) and not self._leans_back():
                found = self._by_command(clause) or self._by_search(clause)
            for tool in found:
                self._add(tool, clause)
        if (desk := self._handed_over()) is not None:
            self._calls = [PlannedCall(desk, self._text)]
        if not self._calls and self._leans_back():
            before = [traits.tool for traits in self._acting if traits.tool.name in self._request.called_before]
            for tool in before:
                for turn in range(calls_wanted(tool.parameters, self._text) if tool.kind != "custom" else 1):
                    self._calls.append(PlannedCall(tool, self._text, self._request.text_before, turn))
        if not self._calls and _USE_IT.search(self._text):
            self._calls = [PlannedCall(self._best([traits.tool for traits in self._acting]), self._text)]

    def _leans_back(self) -> bool:
        before = self._request.called_before
        return bool(before) and _FOLLOW_UP.fullmatch(self._request.last_user_text) is not None

    def _add(self, tool: Tool, clause: Clause) -> None:
        earlier = [call for call in self._calls if call.tool.name == tool.name]
        if earlier and not self._says_more(traits_of(tool), clause, earlier):
            return
        wanted = calls_wanted(tool.parameters, clause.said) if tool.kind != "custom" else 1
        for turn in range(wanted):
            self._calls.append(
                PlannedCall(
                    tool, clause.said, self._text, turn, clause.stage, result="backwards" if clause.backwards else ""
                )
            )

    @staticmethod
    def _says_more(traits: Traits, clause: Clause, earlier: Sequence[PlannedCall]) -> bool:
        """Whether the clause asks for one more call of a tool that is called already."""
        if traits.searches or (not clause.question and traits.verbs & meaning(split_words(clause.said)[:2])):
            return True
        return bool(particulars(clause.topic) - set().union(*(particulars(call.said) for call in earlier)))

    # what is asked for by name, and in words that speak of what a tool does

    def _spelled_out(self, clause: Clause) -> list[Tool]:
        found = []
        for traits in self._tools:
            name = traits.tool.name
            if len(name) < 3 or not re.search(rf"(?<![\w]){re.escape(name)}(?![\w])", clause.said):
                continue
            if _PLAIN_NAME.fullmatch(name) and not re.search(
                rf"[`'\"]{re.escape(name)}[`'\"]|{re.escape(name)} (?:tool|function)|(?:tool|function) {re.escape(name)}",
                clause.said,
            ):
                continue
            found.append(traits.tool)
        return found

    def _by_words(self, clause: Clause, used: set[str]) -> list[Tool]:
        said = _words(clause.topic, clause.said)
        candidates = [
            traits
            for traits in self._acting
            if traits.tool.name not in used and not traits.hands_over and not traits.is_for_sums
        ]
        enough = _ENOUGH_TO_EXPLAIN if clause.explains else _ENOUGH
        found: list[Tool] = []
        while candidates:
            scored = [(_score(traits, said, clause), traits) for traits in candidates]
            (best, explained), traits = max(scored, key=lambda entry: entry[0][0])
            if best < enough or (found and not traits.matched(said, deep=False)[0]):
                break
            candidates.remove(traits)
            if not traits.searches or (clause.acts and traits.objects & said) or self._is_searched_for(traits, clause):
                found.append(traits.tool)
                said = said - explained
        return found

    def _by_command(self, clause: Clause) -> list[Tool]:
        if clause.explains:
            return []
        for traits in self._acting:
            if traits.uses_computer and clause.acts and not clause.question:
                return [traits.tool]
            if (traits.is_shell and command_of(clause.said)) or (traits.queries and sql_of(clause.said)):
                return [traits.tool]
        return []

    def _by_search(self, clause: Clause) -> list[Tool]:
        candidates = [traits for traits in self._acting if traits.searches and self._is_searched_for(traits, clause)]
        if not candidates:
            return []
        said = _words(clause.topic, clause.said)
        ours = bool(said & {stem(word) for word in _OF_OURS} or _OF_OURS & set(split_words(clause.topic)))
        return [max(candidates, key=lambda traits: (traits.searches_files == ours, _score(traits, said, None)[0])).tool]

    def _is_searched_for(self, traits: Traits, clause: Clause) -> bool:
        words = split_words(clause.topic)
        if not meaning(words):
            return False
        if _LOOKED_FOR & set(words) or _TELL_ME_ABOUT.match(clause.said):
            return True
        if _ABOUT_YOU.search(clause.topic) or sums.operations(clause.said):
            return False
        return clause.question and (traits.searches_files or not clause.explains)

    def _handed_over(self) -> Tool | None:
        """The agent to hand over to, if one is there for what is asked."""
        desks = [traits for traits in self._acting if traits.hands_over]
        if not desks:
            return None
        said = set().union(*(_words(clause.topic, clause.said) for clause in self._clauses))
        if (language := language_of(self._text)) is not None:
            said |= {stem(language)}
        if self._operations:
            said |= {stem("math")}
        scores = {}
        for traits in desks:
            named, about = traits.matched(said)
            named, about = named - {"transf", "agent"}, about - {"transf", "agent"}
            scores[traits.tool.name] = (
                _NAME * len(named) + _DESCRIPTION * len(about) + _VERBATIM * len(named & traits.objects)
            )
        best = max(desks, key=lambda traits: scores[traits.tool.name])
        if scores[best.tool.name] < _ENOUGH_TO_HAND_OVER:
            return None
        at_hand = [call for call in self._calls if not traits_of(call.tool).hands_over]
        if at_hand and max(_score(traits_of(call.tool), said, None)[0] for call in at_hand) >= scores[best.tool.name]:
            return None
        return best.tool

    # arithmetic

    def _operation_calls(self, only: Tool | None = None) -> list[PlannedCall]:
        """A call for each operation that a tool is there for, or for a whole formula."""
        tools = self._acting if only is None else [traits for traits in self._tools if traits.tool is only]
        stages: dict[int, int] = {}
        made: list[PlannedCall] = []
        whole = next((traits for traits in tools if traits.calculates and not _by_operation(traits)), None) or next(
            (traits for traits in tools if traits.runs_code), None
        )
        each = next((traits for traits in tools if traits.calculates and _by_operation(traits)), None)
        inner = {
            operand.index for operation in self._operations for operand in operation.operands if isinstance(operand, Earlier)
        }
        for index, operation in enumerate(self._operations):
            after = [
                operand.index for operand in operation.operands if isinstance(operand, Earlier) and operand.index in stages
            ]
            traits = next((traits for traits in tools if traits.does(operation.kind)), each)
            if traits is not None:
                stages[index] = 1 + max([stages[place] for place in after], default=-1)
                made.append(PlannedCall(traits.tool, self._text, stage=stages[index], operation=operation.kind, index=index))
            elif whole is not None and index not in inner:
                formula = sums.written(self._operations, index, _number_text(_value(self._last_result())))
                made.append(PlannedCall(whole.tool, self._text, stage=0, formula=formula, index=index))
        return made

    def _with_results(self, call: PlannedCall, values: dict[int, Number], last: str) -> PlannedCall:
        if call.index < 0:
            return replace(call, result=last if call.result else "")
        if call.formula:
            return call
        for index, operation in enumerate(self._operations[: call.index]):
            values.setdefault(index, sums.result(operation, self._numbers(operation, values)))
        return replace(call, numbers=self._numbers(self._operations[call.index], values))

    def _numbers(self, operation: Operation, values: dict[int, Number]) -> tuple[Number, ...]:
        return tuple(
            values.get(operand.index, _value(self._request.text_before) or 0) if isinstance(operand, Earlier) else operand
            for operand in operation.operands
        )


def _agree(asked: frozenset[Act], done: frozenset[Act]) -> bool:
    """Whether what a tool does may be what was asked for: one writes or makes a message to send it."""
    made = {"create", "send"}
    return not asked or not done or bool(asked & done) or "run" in done or bool(asked & made and done & made)


def _by_operation(traits: Traits) -> bool:
    """A calculator that takes an operation and its operands, not a formula."""
    return len(traits.numbers) >= 2 or (
        bool(traits.numbers) and any("array" in str(traits.properties[n]) for n in traits.numbers)
    )


def _value(said: str) -> Number | None:
    """The number that a tool's result is, or names last."""
    found = _RESULT_KEY.findall(said) or _NUMBER.findall(said)
    if not found:
        return None
    value = float(found[-1])
    return int(value) if value.is_integer() else value


def _number_text(value: Number | None) -> str:
    return "0" if value is None else f"{value:.15g}"


def _words(topic: str, said: str) -> set[str]:
    """The stems of what is said, and of what its addresses, files and statements speak of."""
    found = meaning(split_words(topic))
    if FILE.search(said):
        found |= {stem("file"), stem("path")}
    if _ADDRESS.search(said):
        found |= {stem("email")}
    elif _LINK.search(said):
        found |= {stem("url"), stem("website")}
    if re.search(r"\b(?:SELECT|INSERT|UPDATE)\b", said) and sql_of(said):
        found |= {stem("sql"), stem("query")}
    if re.search(r"\blook(?:ed|ing)? up\b", topic, re.IGNORECASE):
        found |= {"lookup"}
    return found


def _score(traits: Traits, said: set[str], clause: Clause | None) -> tuple[float, set[str]]:
    """How much the words ask for what a tool does, and which of them do."""
    named, about = traits.matched(said)
    verbs = traits.verbs & said
    if traits.objects:
        score = _NAME * len(named) + _DESCRIPTION * len(about) + (_VERB if verbs and (named or about) else 0)
        score += _VERBATIM * len(named & traits.objects)
    else:
        same = clause is not None and bool(clause.acts & traits.acts)
        score = (_NAME if verbs else _DESCRIPTION * same) + _DESCRIPTION * len(about)
    if score:
        parameters = meaning(word for name in traits.properties for word in split_words(name))
        score += _PARAMETER * min(
            2, len(parameters & said) + bool(not traits.objects and {"path", "file"} & parameters & said)
        )
    if clause is not None and not _agree(clause.acts, traits.acts):
        score *= _CHANGES_WHERE_A_LOOK_IS_ASKED if traits.changes else _LOOKS_WHERE_CHANGE_IS_ASKED
    return score, named | about | verbs
