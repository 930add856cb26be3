"""Reply sources by name, and a whole reply: it may think, then calls tools, or answers in the form asked for, or in text."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from llmirage_server.replies.arguments import arguments_for, free_input, with_quoted
from llmirage_server.replies.draft import Draft, conversation_key, ended, find_stop, most_tokens
from llmirage_server.replies.lengths import ReplyLengths, thought_tokens
from llmirage_server.replies.moderation import is_refused, refusal_text
from llmirage_server.replies.patches import content_said, editor_input, patch_input, replacing_input
from llmirage_server.replies.prompted import object_form, with_prompted_form
from llmirage_server.replies.react import action, answer_so_far, react_form
from llmirage_server.replies.reply import ANY_OBJECT, AUTO, Grammar, Reply, ReplyRequest, ReplySource, Tool
from llmirage_server.replies.shown import filled, shown_form
from llmirage_server.replies.shown_files import ShownFiles
from llmirage_server.replies.structured import grammar, strings
from llmirage_server.replies.structured.budget import spend_tokens, working_on
from llmirage_server.replies.structured.validity import validator_for
from llmirage_server.replies.structured.values import value_for
from llmirage_server.replies.tool_request import PlannedCall, asks_for_summary, calls_now, edit_of_read_file
from llmirage_shared.extensions import error_text, find_extension
from llmirage_shared.synthetic_text import SyntheticText, mix
from llmirage_shared.tokens import TokenIds, Tokenizer
from llmirage_shared.wire.errors import ApiError
from llmirage_shared.wire.output import json_text

_MOST_QUOTED = 500  # characters of a tool's result
_MOST_KEPT = 2_000  # characters of the files that a summary keeps
_THINKING = 0x7E11_0000_0000_0000  # so that thoughts are not the words of the answer


class ComposedReplies:
    """Uses `texts` for plain answers and writes everything else itself. Whatever is said, tokens are what it costs."""

    def __init__(self, tokenizer: Tokenizer, texts: ReplySource, seed: int = 0, *, converses: bool = True) -> None:
        """converses: whether it declines what it should, and quotes the results of tools."""
        self._tokenizer = tokenizer
        self._converses = converses
        self._texts = texts
        self._thoughts = SyntheticText(tokenizer, seed)

    def reply(self, request: ReplyRequest) -> Reply:
        """Return the plan for one choice. Raises SchemaError, PatternError or GrammarError for an impossible request."""
        shown = self._shown(request)
        reply = self._composed(with_prompted_form(request) if shown is None else request, shown)
        return ended(reply, request, self._tokenizer)

    def _shown(self, request: ReplyRequest) -> str | None:
        """Return the text of a reply in a form that the instructions show, where the request's fields ask for none."""
        if not self._converses or not request.instructions or request.tools or request.grammar is not None:
            return None
        free = request.json_schema is None and not request.ignore_eos
        if free and (react := react_form(request)) is not None:
            return action(react, request, conversation_key(request))
        form = shown_form(request.instructions) if free else None
        return None if form is None else filled(form, request, conversation_key(request))

    def _composed(self, request: ReplyRequest, shown: str | None) -> Reply:
        refuse = request.may_refuse and self._converses and is_refused(request.last_user_text)
        calls = _calls(request) if request.tools and not refuse else []
        shaped = request.json_schema is not None or request.grammar is not None
        quiet = calls or shaped or shown or refuse or request.ignore_eos or not self._converses
        quote = "" if quiet else _quoted(request)
        if not (calls or shaped or request.reasoning_tokens or refuse or quote or shown):
            return self._texts.reply(request)
        key = conversation_key(request)
        draft = Draft(self._tokenizer, most_tokens(request))
        if request.reasoning_tokens:
            tokens = thought_tokens(request, mix(key ^ _THINKING))
            spend_tokens(tokens)
            draft.add("reasoning", *self._thoughts.ids_and_pieces(key ^ _THINKING, tokens, whole_sentences=True))
            draft.end_thoughts()
        if refuse:
            draft.write("refusal", refusal_text(key))
            return draft.reply("stop")
        if shown is not None:
            if len(draft) + len(self._tokenizer.encode_ordinary(shown)) < request.min_tokens:
                return self._written(draft, request, f"{shown}\n\n")
            draft.write("text", shown)
            return draft.stopped(request) or draft.reply("stop")
        files = ShownFiles(request.messages)
        request, calls = self._call_hosted(draft, request, calls, key, files)
        if calls:
            for place, call in enumerate(calls):
                draft.call(call.tool, self._input(call, mix(key + place), files))
            return draft.reply("tool_calls")
        return self._shaped(draft, request, key) if shaped else self._written(draft, request, quote)

    def _call_hosted(
        self, draft: Draft, request: ReplyRequest, calls: list[PlannedCall], key: int, files: ShownFiles
    ) -> tuple[ReplyRequest, list[PlannedCall]]:
        """Add the calls of hosted tools and what follows from them. Returns the request after them, and all other calls."""
        made = 0
        request = _find(draft, request, calls)
        while hosted := [call for call in calls if call.tool.kind == "hosted"][: request.most_hosted_calls - made]:
            for call in hosted:
                made += 1
                draft.call(call.tool, self._input(call, mix(key - made), files))
            choice = AUTO if request.tool_choice.mode == "required" else request.tool_choice
            request = _after_calls(request, [call.tool.name for call in hosted], tool_choice=choice)
            calls = [call for call in calls if call.tool.kind != "hosted"] or calls_now(request)
            request = _find(draft, request, calls)
        return request, [call for call in calls if call.tool.kind != "hosted"]

    def _written(self, draft: Draft, request: ReplyRequest, quote: str) -> Reply:
        """Return the quoted text, then text as if nothing else had been asked for."""
        rest = draft.room_tokens
        if rest < 1:
            return draft.reply("length", ends=False)
        ids = self._tokenizer.encode_ordinary(quote)
        pieces = self._tokenizer.pieces(ids)
        if quote and len(ids) >= rest:
            draft.add("text", ids, pieces)
            return draft.stopped(request) or draft.reply("length", ends=False)
        used = len(draft) + len(ids)
        answer = self._texts.reply(
            replace(
                request,
                max_tokens=None if request.max_tokens is None else rest - len(ids),
                limit_tokens=request.limit_tokens - used,
                min_tokens=max(0, request.min_tokens - used),
                stop=() if quote else request.stop,
            )
        )
        draft.add("text", np.concatenate([ids, answer.ids]), [*pieces, *answer.pieces])
        stopped = draft.stopped(request) if quote else None
        return stopped or draft.reply(answer.finish_reason, answer.stop_reason, ends=False)

    @staticmethod
    def _input(call: PlannedCall, seed: int, files: ShownFiles) -> str:
        tool = call.tool
        if tool.writes_patches:
            given = patch_input(tool, call.text, files, seed)
            return given if isinstance(given, str) else json_text(given)
        if tool.edits_files:
            return json_text(editor_input(tool, call.text, files, seed))
        working_on(tool.field)
        if tool.kind != "custom":
            return json_text(_arguments(call, files, seed))
        return free_input(call) if tool.grammar is None else grammar_text(tool.grammar, seed)

    def _shaped(self, draft: Draft, request: ReplyRequest, key: int) -> Reply:
        working_on(request.form_field)
        if request.grammar is not None:
            text = grammar_text(request.grammar, key)
        else:
            schema = request.json_schema
            text = json_text(_value(schema, request.last_user_text, key))
        draft.write("text", f"```json\n{text}\n```" if request.fenced else text)
        return draft.stopped(request) or draft.reply("stop")


def _calls(request: ReplyRequest) -> list[PlannedCall]:
    """Return the calls to make now. A file that was read to be changed is changed then, if what it shows is in question."""
    calls = calls_now(request)
    if calls or (edit := edit_of_read_file(request)) is None or edit.tool.replacement is None:
        return calls
    known = replacing_input(edit.tool.replacement, edit.text, ShownFiles(request.messages), conversation_key(request))
    return [] if known is None else [edit]


def _arguments(call: PlannedCall, files: ShownFiles, seed: int) -> dict[str, Any]:
    """Return the arguments of a function; for one that changes files those of the change that the text asks for."""
    given, changed = arguments_for(call, seed), {}
    if (replacement := call.tool.replacement) is not None:
        changed = replacing_input(replacement, call.text, files, seed) or {}
    elif (content := call.tool.content_argument) is not None:
        said = content_said(call.text, files, seed)
        changed = {} if said is None else {content: said}
    return given | changed if changed and validator_for(call.tool.parameters).is_valid(given | changed) else given


def _quoted(request: ReplyRequest) -> str:
    """Return the results of the tools called for the last user message, a line each; "" without results.

    A summary keeps the files that the conversation shows instead: later turns may change them.
    """
    if request.compacts or asks_for_summary(request.last_user_text):
        return ShownFiles(request.messages).recent(_MOST_KEPT)
    if not request.tools and (react := react_form(request)) is not None:
        return answer_so_far(react, request)
    lines = [
        f"{name}: {result[:_MOST_QUOTED]}\n"
        for name, result in zip(request.called, request.results, strict=False)
        if result.strip()
    ]
    return "".join([*lines, "\n"] if lines else lines)


def compacted(messages: Sequence[Mapping[str, Any]]) -> str:
    """Return what a compaction without a reply of its own keeps of a conversation."""
    return ShownFiles(messages).recent(_MOST_KEPT)


def _value(schema: Any, said: str, key: int) -> Any:
    """Return a value for the schema, with what the user named in it."""
    if schema == ANY_OBJECT:
        schema = object_form([said])
    value = value_for(schema, key)
    return with_quoted(value, schema, said) if isinstance(value, dict) else value


def _find(draft: Draft, request: ReplyRequest, calls: Sequence[PlannedCall]) -> ReplyRequest:
    """Add a search for the tools that must be found before they are called. Return the request in which they are found."""
    tools, searched = list(request.tools), []
    for finder in dict.fromkeys([tool.found_by for tool in tools if tool.found_by]):
        wanted = {call.tool.name for call in calls}
        hidden = [tool for tool in tools if tool.found_by == finder and tool.name in wanted]
        if hidden:
            search = next(tool for tool in tools if tool.name == finder)
            draft.call(search, json_text({"query": "|".join([tool.name for tool in hidden])}))
            tools = [replace(tool, found_by="") if tool in hidden else tool for tool in tools]
            searched.append(finder)
    return _after_calls(request, searched, tools=tuple(tools)) if searched else request


def _after_calls(request: ReplyRequest, names: Sequence[str], **changes: Any) -> ReplyRequest:
    """Return the request, with other changes, in which these tools were called and gave nothing."""
    results = (*request.results, *[""] * len(names))
    return replace(request, called=(*request.called, *names), results=results, **changes)


def grammar_text(shape: Grammar, seed: int) -> str:
    """Return a text that the grammar allows. Raises PatternError or GrammarError."""
    if shape.syntax == "choice":
        return shape.choices[mix(seed) % len(shape.choices)]
    if shape.syntax == "lark":
        return grammar.text_for(shape.definition, seed)
    return strings.whole_match(shape.definition, seed)


OwnReply = Callable[[ReplyRequest], Any]
"""A reply source of the user's own: returns a text, a list of tool calls (objects with `name` and `arguments`), or None for
a reply of prose."""


def make_reply_source(
    name: str,
    tokenizer: Tokenizer,
    seed: int = 0,
    *,
    exact_length: bool = False,
    lengths: ReplyLengths | None = None,
    remember: Callable[[str, TokenIds], None] = lambda text, ids: None,
) -> ReplySource:
    """Return the source of that name: prose, echo or an extension. Raises ValueError for any other.

    exact_length is theirs; lengths and remember are those of prose.
    """
    if name == "echo":
        return ComposedReplies(tokenizer, EchoReplies(tokenizer, exact_length=exact_length), seed, converses=False)
    prose = ProseReplies(tokenizer, seed, exact_length=exact_length, lengths=lengths, remember=remember)
    composed = ComposedReplies(tokenizer, prose, seed)
    if name == "prose":
        return composed
    function = find_extension("reply source", name)
    if not callable(function):
        raise ValueError(f"reply source {name!r}: it must be a function of the request, not {function!r}")
    return OwnReplies(name, function, tokenizer, composed)


class OwnReplies:
    """Replies of a function of the user's own, cut where the request says.

    Attributes:
        prose: The source of the reply where the function returns None.
    """

    def __init__(self, name: str, function: OwnReply, tokenizer: Tokenizer, prose: ReplySource) -> None:
        self._name = name
        self._function = function
        self._tokenizer = tokenizer
        self.prose = prose

    def reply(self, request: ReplyRequest) -> Reply:
        """Return the plan for one choice. Raises ApiError if the function raises or returns something else."""
        try:
            said = self._function(request)
        except Exception as error:
            raise self._problem(f"raised {error_text(error)}") from error
        if said is None:
            return self.prose.reply(request)
        draft = Draft(self._tokenizer, most_tokens(request))
        reply = None
        if isinstance(said, str):
            draft.write("text", said)
            reply = draft.stopped(request) if request.stop else None
        else:
            for name, arguments in self._calls(said):
                draft.call(next((tool for tool in request.tools if tool.name == name), Tool("function", name)), arguments)
        reply = reply or draft.reply("stop" if isinstance(said, str) else "tool_calls")
        return ended(reply, request, self._tokenizer)

    def _calls(self, said: Any) -> list[tuple[str, str]]:
        """Name and arguments, as text, of each call."""
        try:
            calls = [(str(call.name), call.arguments) for call in said]
        except (TypeError, AttributeError):
            calls = []
        if not calls:
            raise self._problem(f"returned {said!r}: it must return a text, a list of llmirage.ToolCall, or None")
        return [(name, given if isinstance(given, str) else json.dumps(given)) for name, given in calls]

    def _problem(self, problem: str) -> ApiError:
        return ApiError(f"reply source {self._name!r} {problem}", code="reply_source_error")


class ProseReplies:
    """Prose that depends on the conversation, the request's seed and the choice, and on nothing else.

    The length of a reply is drawn from `lengths`: it ends with a whole sentence and the end-of-turn token (piece "") by
    "stop", or by "length" where max_tokens or limit_tokens cut it. With ignore_eos, and of a source with exact_length, it
    has exactly max_tokens tokens and ends by "length", so that load is what it was asked to be. max_tokens and stop strings
    only cut the text: what is said before them does not change.
    The pieces come from a small set of shared str objects: a dict from piece to ready JSON bytes is quick and small.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        seed: int = 0,
        *,
        exact_length: bool = False,
        lengths: ReplyLengths | None = None,
        remember: Callable[[str, TokenIds], None] = lambda text, ids: None,
    ) -> None:
        """remember: is told each text and its token ids, since the next prompt of the conversation repeats it."""
        self._end_id = tokenizer.end_id
        self._text = SyntheticText(tokenizer, seed)
        self._exact_length = exact_length
        self._lengths = lengths or ReplyLengths()
        self._remember = remember

    def reply(self, request: ReplyRequest) -> Reply:
        key = conversation_key(request)
        most = most_tokens(request)
        if request.ignore_eos or (self._exact_length and request.max_tokens is not None):
            spend_tokens(most)
            ids, pieces = self._text.ids_and_pieces(key, most)
            ends = False
        else:
            wanted = max(request.min_tokens, self._lengths.tokens_for(request, mix(key)))
            spend_tokens(length := min(max(wanted, 1), most))
            ids, pieces = self._text.ids_and_pieces(key, length, whole_sentences=True)
            if not wanted:  # an answer that is complete ends, though a limit leaves no room for one more sentence
                ids, pieces = ids[: most - 1], pieces[: most - 1]
            ends = len(ids) < most
            ids, pieces = ids[:most], pieces[:most]
        reply = _finished(ids, pieces, request, self._end_id if ends else None)
        if reply.stop_reason is None:
            self._remember("".join(pieces), ids)
        return reply


class EchoReplies:
    """The last user text, then the end-of-turn token (piece "") by "stop", or "length" where it is cut short.

    min_tokens, ignore_eos and exact_length repeat the text until there is enough of it. Text that looks like a special token
    is said as ordinary text. A character appears whole with the last of its tokens, and not at all when the reply ends
    inside it.
    """

    def __init__(self, tokenizer: Tokenizer, *, exact_length: bool = False) -> None:
        self._tokenizer = tokenizer
        self._exact_length = exact_length

    def reply(self, request: ReplyRequest) -> Reply:
        most = most_tokens(request)
        ids = self._tokenizer.encode_ordinary(request.last_user_text)
        endless = request.ignore_eos or (self._exact_length and request.max_tokens is not None)
        least = most if endless else min(request.min_tokens, most)
        if least > len(ids):
            once = ids if len(ids) else self._tokenizer.encode_ordinary(".")
            ids = np.tile(once, -(-least // len(once)))
        ends = len(ids) < most and not endless
        ids = ids[:most]
        pieces = self._tokenizer.pieces(ids, final=False)
        return _finished(ids, pieces, request, self._tokenizer.end_id if ends else None)


def _finished(ids: TokenIds, pieces: Sequence[str], request: ReplyRequest, end_id: int | None) -> Reply:
    """Return the reply up to the first stop string of the request. end_id: ends the turn; None: a limit cuts it."""
    match = find_stop(pieces, request.stop, request.include_stop_str, request.min_tokens) if request.stop else None
    if match is not None:
        return Reply(ids[: match.tokens], match.pieces, "stop", match.stop)
    if end_id is None:
        return Reply(ids, tuple(pieces), "length")
    return Reply(np.append(ids, np.int32(end_id)), (*pieces, ""), "stop")
