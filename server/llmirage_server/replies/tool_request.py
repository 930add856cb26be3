"""The tools that a message asks for, by the rules of docs/replies.md: those it names, else the one that matches it best."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from llmirage_server.replies.commands import asks_to_run, ending_command
from llmirage_server.replies.reply import ReplyRequest, Tool
from llmirage_server.replies.vocabulary import COMMON_VERBS, EMPTY_WORDS, HIDDEN, word_set
from llmirage_shared.texts import short_cache

MOST_CHARACTERS = 4000  # of a message that are read: half of them at its beginning, half at its end
MOST_CALLS = 8  # in one reply
THRESHOLD = 2  # points from which the best match is called
_NAME_POINTS, _VERB_POINTS, _DESCRIPTION_POINTS = 2, 1, 1
_NOT_DESCRIBING = COMMON_VERBS | {"user"}  # words that descriptions of all kinds have

_WORD = re.compile(r"[0-9A-Za-zÀ-ɏ]+|[^\W_0-9A-Za-zÀ-ɏ]+")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_SENTENCE_END = re.compile(r"[.!?。？！](?=\s|$)|\n|[。？！]")
_SIGNATURE = re.compile(r"\w+\([^\n]*\n")  # some agents write it before the description
_DESCRIPTION_END = re.compile(r"[.!?](?=\s|$)|\n")
_TAG = re.compile(r"(?<![`\"'“])<(/?)([A-Za-z][\w.:-]*)(?:\s[^<>]*)?>")
_FENCE = re.compile(r"```.*?(?:```|\Z)", re.DOTALL)
_ASKING_TAG = re.compile(r"query|question|request|prompt|task|message|input", re.IGNORECASE)
# Blocks and messages that harnesses write beside what the user asks for.
_TELLING_TAG = re.compile(
    r"context|instruction|reminder|environment|permission|skill|mode|system|notif|abort|hook|memory|summary|snapshot",
    re.IGNORECASE,
)
_TITLES = re.compile(r"(?:\s*#[^\n]*(?:\n|$))+\s*")
_TALK = r"\b(?:conversation|session|chat history|language model|LLM)\b"
_SUMMARY = re.compile(rf"\bsummar\w+[^.\n]{{0,60}}{_TALK}|{_TALK}[^.\n]{{0,80}}\bsummar\w+", re.IGNORECASE)
_WANTED = re.compile(
    r"\b(?:create|generate|give|make|produce|provide|write)\b[^.\n]{0,60}\bsummary|\bsummari[sz]e\b", re.IGNORECASE
)
_SUMMARY_CHARACTERS = 300  # fewer are a user's own words
_SUMMARY_BEGINNING = 600
_CALLED_AGAIN = re.compile(
    r"(?:\b(?:and|then|also|next|call|calling|use|using|run|running|invoke|with|again)|[,;&+]|^[ \t]*(?:[-*•]|\d+[.)]))"
    r"[ \t]*(?:the[ \t]+)?[\"'`]?\Z",
    re.IGNORECASE | re.MULTILINE,
)
_FILE_VERBS = word_set("add append change create delete edit fix insert modify prepend remove rename replace update")
_FILE = re.compile(r"(?<![\w@/.:-])(?:[\w.-]{1,100}/){0,20}[\w-]{1,100}\.[A-Za-z]\w{0,5}(?![\w@])")
_CREATES_FILE = re.compile(
    rf"\b(?:create|make|write|save)\s+(?:me\s+)?(?:(?:a|an|the)\s+)?(?:(?:new|empty|small|short|simple|text)\s+)*(?:file\s+)?"
    rf"(?:(?:named|called|at)\s+)?[\"'`]?(?={_FILE.pattern})|"
    r"\b(?:write|save|store|put)\b[^?!\n]{0,100}?\b(?:to|into|in|as)\s+"
    rf"(?:(?:a|the)\s+)?(?:new\s+)?(?:file\s+)?(?:(?:named|called)\s+)?[\"'`]?(?={_FILE.pattern})",
    re.IGNORECASE,
)
_CHANGING = word_set("change delete edit fix insert modify prepend refactor remove rename replace update")
_PATCH_POINTS = 3
_REFUSED = re.compile(r"(?:\bnot|n['’]t|\bnever|\bwithout|\binstead of)\s+(?:\w+\s+){0,3}[\"'`]?$", re.IGNORECASE)
_NO_TOOLS = re.compile(
    r"(?:\bnot|n['’]t|\bnever|\bwithout)\s+(?:use|using|call|calling)?\s*(?:any|the|your)?\s*(?:tools?|functions?)\b",
    re.IGNORECASE,
)
_ONLY_JOINS = re.compile(r"[\s,;&/`'\"()]*(?:(?:and|or|then|also|the|both|tool)\b[\s,;&/`'\"()]*)*", re.IGNORECASE)
_LAST_CLAUSE = re.compile(r"(.*)((?:[,;]|\band\b|\bthen\b).*[^\W_].*[^\W_].*)", re.IGNORECASE | re.DOTALL)
_SAYS_NOTHING = re.compile(r"[\W_]*(?:(?:tool|function|please|now|it|for|this|that)\b[\W_]*)*", re.IGNORECASE)
# "Search for the population of Paris with web_search": what is asked of the tool stands between a verb and "with".
_WITH_TOOL = re.compile(
    rf"(?<![\s,])[\s,]+(?:by means of|through|using|via|with)(?:\s+(?:the|a|an|your|help of))*[\s\"'`{HIDDEN}]*\Z",
    re.IGNORECASE,
)
_ASKING = re.compile(
    r"\s*(?:(?:please|can|could|would|will|you|i|want|need|to|now|then)\s+)*"
    rf"(?:{'|'.join(sorted(COMMON_VERBS))}|compute|calculate)\s+(?:(?:up|out|for|about|me|us)\s+)*(?=\S)",
    re.IGNORECASE,
)
_LAST_WORDS = re.compile(r"(?<=[.?!\n])[^.?!\n]*[.?!\s]{0,20}$")  # "Who won? Use " -> "Who won?"


@dataclass(slots=True, frozen=True)
class PlannedCall:
    """A tool to call, and the text that its arguments come from, in which names of tools are HIDDEN.

    text: where values are looked for, nearest to the name first; near: where the text that stands before the name begins.
    rest: what a string gets if nothing fits it: the words after the name. whole: the same for free text.
    """

    tool: Tool
    text: str
    rest: str
    whole: str
    near: int = 0


def calls_now(request: ReplyRequest) -> list[PlannedCall]:
    """Return the calls to make now; [] to answer in text. No tool is called twice for a user message, unless forced."""
    choice = request.tool_choice
    allowed = [tool for tool in request.tools if choice.names is None or tool.name in choice.names]
    forced = choice.mode == "required"
    if choice.mode == "none" or not allowed or (request.ignore_eos and not forced):
        return []
    said = request_text(request.last_user_text)
    task, _, instructions = said.partition("\n\n")
    if (ending := ending_command(instructions)) is not None:  # those of an agent, which follow the task
        said = task
    if forced and len(allowed) == 1:
        return [_call_of(allowed[0], said)]
    fresh = [tool for tool in allowed if tool.name not in request.called]
    if not forced and _NO_TOOLS.search(said):
        return []
    named, refused = _named(allowed, said)
    made = Counter(request.called)
    calls = []
    for call in _with_own_text(_calls_of_named(named, said)):
        made[call.tool.name] -= 1
        if made[call.tool.name] < 0:
            calls.append(call)
    candidates = [tool for tool in fresh if tool.name not in refused]
    if not calls and not request.called:
        words = {_singular(word) for word in set(_WORD.findall(said.lower()))}
        on_file = _changes_file(said)
        runs = any(tool.runs_commands for tool in candidates) and asks_to_run(said)
        creates = not words & _CHANGING and any(tool.content_argument for tool in candidates)
        creates = creates and _CREATES_FILE.search(said) is not None

        def points(tool: Tool) -> int:
            found = _points(tool, words) + (_PATCH_POINTS if on_file and tool.writes_patches else 0)
            if creates and tool.content_argument:
                return found + THRESHOLD
            fits = (on_file and tool.reads_files and not creates) or (runs and tool.runs_commands)
            return max(found, THRESHOLD) if fits else found

        best = max(candidates, key=points, default=None)
        if best is not None and (forced or points(best) >= THRESHOLD):
            calls = [_matched(best, said)]
    if not calls and ending is not None:
        shells = [tool for tool in allowed if tool.runs_commands and request.called.count(tool.name) < 2]
        calls = [PlannedCall(tool, f"`{ending}`" if request.called else said, "", "") for tool in shells[:1]]
    if not calls and forced:
        last, results = (candidates or fresh or allowed)[-1], "\n".join(request.results).strip()
        calls = [PlannedCall(last, f"{results}\n{said}", "", results) if results else _matched(last, said)]
    return calls[: MOST_CALLS if request.parallel_tool_calls else 1]


def edit_of_read_file(request: ReplyRequest) -> PlannedCall | None:
    """Return the call that changes a file, for a request to change it after which it was read; None for other requests."""
    choice = request.tool_choice
    if not request.called or choice.mode != "auto" or request.ignore_eos:
        return None
    read = {tool.name for tool in request.tools if tool.reads_files}
    edits = [tool for tool in request.tools if tool.replacement is not None and tool.name not in request.called]
    if not edits or not read.issuperset(request.called) or edits[0].name not in (choice.names or (edits[0].name,)):
        return None
    said = request_text(request.last_user_text)
    return _matched(edits[0], said) if _changes_file(said) and not _NO_TOOLS.search(said) else None


def _changes_file(said: str) -> bool:
    """Return if a request names a file and has a verb of what is done to one."""
    words = {_singular(word) for word in _WORD.findall(said.lower())}
    return bool(words & _FILE_VERBS) and _FILE.search(said) is not None


def request_text(message: str) -> str:
    """Return the request in a message: without blocks in XML-like tags, and without the middle if it is long.

    If there is nothing else but headings, the last block is the request, of those named like one (`<user_query>`) if there
    are any, unless they are named like what a harness tells (`<environment_context>`). A summary of the conversation, or
    the request of one, asks for nothing.
    """
    half = MOST_CHARACTERS // 2
    if _is_about_summary(message):
        return ""
    if "<" in message:
        outside, blocks = _blocks(message)
        if not blocks or (outside.strip() and not _TITLES.fullmatch(outside)):
            message = outside
        else:
            asking = [text for name, text in blocks if _ASKING_TAG.search(name)]
            message = (asking or [text for name, text in blocks if not _TELLING_TAG.search(name)] or [""])[-1]
    return message if len(message) <= MOST_CHARACTERS else f"{message[:half]}\n{message[-half:]}"


def _is_about_summary(message: str) -> bool:
    """Return if it asks for a summary of the conversation, or hands one over, as harnesses do when a context is full."""
    return len(message) > _SUMMARY_CHARACTERS and _SUMMARY.search(message, 0, _SUMMARY_BEGINNING) is not None


def asks_for_summary(message: str) -> bool:
    """Return if a message asks for a summary of the conversation, or hands one over, as harnesses do."""
    return _is_about_summary(message) and _WANTED.search(message, 0, _SUMMARY_BEGINNING) is not None


def _blocks(message: str) -> tuple[str, list[tuple[str, str]]]:
    """Return the text outside of tags, and (name, content) of each outermost block."""
    fences = [match.span() for match in _FENCE.finditer(message)]
    tags = [tag for tag in _TAG.finditer(message) if not any(start <= tag.start() < end for start, end in fences)]
    ends: dict[str, list[int]] = {}  # places in `tags`, by name
    for place, tag in enumerate(tags):
        if tag[1]:
            ends.setdefault(tag[2], []).append(place)
    outside, blocks, at, place = [], [], 0, 0
    while place < len(tags):
        tag = tags[place]
        closing = ends.get(tag[2], [])
        after = bisect_right(closing, place)
        if not tag[1] and after < len(closing):
            last = tags[closing[after]]
            outside.append(message[at : tag.start()])
            blocks.append((tag[2], message[tag.end() : last.start()]))
            at, place = last.end(), closing[after]
        place += 1
    return "".join([*outside, message[at:]]), blocks


# --- names --------------------------------------------------------------------------------------------------------------


@dataclass(slots=True, frozen=True)
class _Mention:
    """The places where a message names a tool. spans: of the name, or of its words, in order."""

    tool: Tool
    spans: tuple[tuple[int, int], ...]


@short_cache(4096)
def words_of(text: str) -> tuple[str, ...]:
    """Return the words of a name or a short text, in lower case and without a final s: getCities, get-cities, get_city."""
    return tuple([_singular(word.lower()) for word in _WORD.findall(_CAMEL.sub(" ", text))])


def _singular(word: str) -> str:
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word


def _named(tools: Sequence[Tool], said: str) -> tuple[list[_Mention], set[str]]:
    """Return the places where the tools are named, in the order of the text; the names of those that it says not to call."""
    found = [mention for tool in tools for mention in _exact(tool, said)]
    taken = [span for mention in found for span in mention.spans]
    exact = {mention.tool.name for mention in found}
    lower = said.lower()
    others = [tool for tool in tools if tool.name not in exact and all(word in lower for word in words_of(tool.own_name))]
    sentences = _sentences(said, taken) if others else []
    found += [mention for tool in others for mention in _by_words(tool, sentences, said)]
    found = [one for one in found if not any(set(one.spans) < set(other.spans) for other in found)]
    not_called = [one for one in found if _REFUSED.search(said, max(0, one.spans[0][0] - 60), one.spans[0][0])]
    first = {one.tool.name: one for one in sorted(found, key=lambda one: -one.spans[0][0])}
    refused = {one.tool.name for one in not_called if one is first[one.tool.name]}
    kept: list[_Mention] = []
    for one in sorted(found, key=lambda one: one.spans[-1]):
        shared = {span for other in kept for span in other.spans}
        if one.tool.name not in refused and one not in not_called:
            kept.append(_Mention(one.tool, tuple([span for span in one.spans if span not in shared]) or one.spans))
    return sorted(kept, key=lambda one: one.spans[0]), refused


def _exact(tool: Tool, said: str) -> list[_Mention]:
    """Return places of the name, first and each time that it is called again. A name of one word is matched as a word."""
    lower = said.lower()
    for name in (tool.name, tool.own_name):
        if len(words_of(name)) > 1 and name.lower() in lower:
            places = re.finditer(rf"(?<![0-9A-Za-z_]){re.escape(name)}(?![0-9A-Za-z_])", said, re.IGNORECASE)
            if spans := [place.span() for place in places]:
                return [_Mention(tool, (span,)) for span in (spans[0], *_called_again(said, spans[1:]))]
    return []


def _called_again(said: str, spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return places of a name before which stands that the tool is called: and, then, use, a comma, the sign of a list."""
    return [span for span in spans if _CALLED_AGAIN.search(said, max(0, span[0] - 40), span[0])]


def _sentences(said: str, taken: Sequence[tuple[int, int]]) -> list[dict[str, list[tuple[int, int]]]]:
    """Return the places of each word, sentence by sentence, without those that are taken."""
    ends = [match.start() for match in _SENTENCE_END.finditer(said)]
    sentences: list[dict[str, list[tuple[int, int]]]] = [{} for _ in range(len(ends) + 1)]
    for match in _WORD.finditer(said):
        start, stop = match.span()
        if not any(first < stop and start < last for first, last in taken):
            sentences[bisect_right(ends, start)].setdefault(_singular(match[0].lower()), []).append((start, stop))
    return sentences


def _by_words(tool: Tool, sentences: Sequence[Mapping[str, Sequence[tuple[int, int]]]], said: str) -> list[_Mention]:
    """Return the first sentence with all words of the name: the places next to the rarest, in the name's order if any.

    A name of one word also where it stands again as the tool spells it.
    """
    words = list(dict.fromkeys(words_of(tool.own_name)))
    for number, places in enumerate(sentences):
        if words and all(word in places for word in words):
            rarest = min(words, key=lambda word: len(places[word]))
            first = _Mention(tool, tuple(sorted(_next_to(places[rarest][0], words, rarest, places))))
            others = [span for sentence in sentences[number:] for span in sentence.get(words[0], ()) if len(words) == 1]
            spelled = [span for span in others if said[slice(*span)] == tool.own_name and span not in first.spans]
            return [first, *[_Mention(tool, (span,)) for span in _called_again(said, spelled)]]
    return []


def _next_to(
    at: tuple[int, int], words: Sequence[str], rarest: str, places: Mapping[str, Sequence[tuple[int, int]]]
) -> set[tuple[int, int]]:
    """Return the place of each word that is next to the place of the rarest."""

    def distance(word: str, span: tuple[int, int]) -> tuple[bool, int]:
        return (span < at) == (words.index(word) > words.index(rarest)), abs(span[0] - at[0])

    return {min(places[word], key=lambda span: distance(word, span)) for word in words}


# --- the text of each named tool ----------------------------------------------------------------------------------------


def _calls_of_named(named: Sequence[_Mention], said: str) -> list[PlannedCall]:
    """Each tool with the text around its name.

    That is the text after the name, up to the next one; what stands before it, back to the name before, if nothing follows
    in its sentence, or the last clause of that. The first tool has what stands before it, too. Tools that only "and" or a
    comma joins share their text.
    """
    hidden = _hidden(said, [span for mention in named for span in mention.spans])
    starts = [mention.spans[0][0] for mention in named]
    ends = [mention.spans[-1][1] for mention in named]
    after: list[str] = []
    before: list[str] = []
    free = hidden[: starts[0]] if named else ""  # the text before this name that no other tool has
    for place in range(len(named)):
        following = hidden[starts[place] : starts[place + 1] if place + 1 < len(named) else len(said)]
        behind = hidden[ends[place] : starts[place] + len(following)]
        sentence = _SENTENCE_END.split(behind, maxsplit=1)[0]
        inside = hidden[starts[place] : ends[place]].replace(HIDDEN, " ")
        silent = _SAYS_NOTHING.fullmatch(sentence) and not set(words_of(inside)) - EMPTY_WORDS
        if silent and after and not free.strip() and (clause := _LAST_CLAUSE.fullmatch(after[-1])) is not None:
            free = clause[2]
            after[-1] = "" if _SAYS_NOTHING.fullmatch(clause[1]) else clause[1]
        if not silent or not free.strip():
            after.append(following)
            before.append(free)
            free = ""
        else:
            after.append("")
            before.append(free)
            free = following
    if named and free:
        before[-1] += free
    for place in range(len(named) - 2, -1, -1):
        if _ONLY_JOINS.fullmatch(hidden[ends[place] : starts[place + 1]]):
            after[place] = after[place + 1]
            before[place] = before[place] or before[place + 1]
            before[place + 1] = before[place + 1] or before[place]
    calls = []
    for mention, behind, ahead in zip(named, after, before, strict=True):
        rest = behind.rpartition(HIDDEN)[2]
        whole = rest if behind else _asked_of(ahead)
        calls.append(PlannedCall(mention.tool, f"{behind}\n{ahead}", rest, whole, len(behind)))
    return calls


def _asked_of(ahead: str) -> str:
    """Return what the text before a tool's name asks of it."""
    if (joins := _WITH_TOOL.search(ahead)) is None:
        return _LAST_WORDS.sub("", ahead)
    asked = ahead[: joins.start()]
    verb = _ASKING.match(asked)
    return asked if verb is None else asked[verb.end() :]


def _with_own_text(calls: Sequence[PlannedCall]) -> list[PlannedCall]:
    """Return the calls without those of a tool named more than once whose words say nothing, or nothing new."""
    texts: dict[str, list[list[str]]] = {}
    kept = []
    for call in sorted(calls, key=lambda call: not _telling_words(call.text)):
        known, words = texts.setdefault(call.tool.name, []), _telling_words(call.text)
        if not known or (words and words not in known):
            known.append(words)
            kept.append(call)
    return [call for call in calls if call in kept]


def _telling_words(text: str) -> list[str]:
    return [word for word in _WORD.findall(text.lower()) if word not in EMPTY_WORDS | COMMON_VERBS]


def _hidden(said: str, spans: Sequence[tuple[int, int]]) -> str:
    for start, end in spans:
        said = said[:start] + HIDDEN * (end - start) + said[end:]
    return said


# --- the best match -----------------------------------------------------------------------------------------------------


def _points(tool: Tool, words: Set[str]) -> int:
    """Points of the words of the message that the tool's name or the first sentence of its description has."""
    points = _word_points(tool.own_name, tool.description)
    return sum([points[word] for word in points.keys() & words])


@short_cache(4096)
def _word_points(name: str, description: str) -> Mapping[str, int]:
    first = _DESCRIPTION_END.split(_SIGNATURE.sub("", description.strip(), count=1).strip(), maxsplit=1)[0]
    points = {word: _DESCRIPTION_POINTS for word in words_of(first) if word not in _NOT_DESCRIBING}
    points |= {word: _VERB_POINTS if word in COMMON_VERBS else _NAME_POINTS for word in words_of(name)}
    return {word: value for word, value in points.items() if word not in EMPTY_WORDS and len(word) > 1}


def _matched(tool: Tool, said: str) -> PlannedCall:
    """Return a call with arguments from the whole message."""
    points = _word_points(tool.own_name, tool.description)
    ends = [match.end() for match in _WORD.finditer(said) if _singular(match[0].lower()) in points]
    return PlannedCall(tool, said, said[ends[-1] :] if ends else "", said)


def _call_of(tool: Tool, said: str) -> PlannedCall:
    """Return the call of a tool that must be called."""
    named = _calls_of_named(_named([tool], said)[0], said)
    return named[0] if named else _matched(tool, said)
