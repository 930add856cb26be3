"""Forms of a reply that its instructions show: slots with labels, marks that a part stands between, or one of some options.

Read are the instructions' own examples, never the name of a program: lines with a slot (`Verdict: <yes or no>`,
`<reason>{reason}</reason>`, a label above `{reason}`) below a sentence that asks for such a form, the marks that one
gives ("opened with '<code>', and closed with '</code>'"), and the options beside a demand for nothing else ("Answer only
yes or no"). Tools that instructions declare in words are called in that form.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any

from llmirage_server.replies.arguments import arguments_for, with_quoted
from llmirage_server.replies.prompted import json_objects, key_schema, typed_keys
from llmirage_server.replies.reply import ReplyRequest, Tool, ToolChoice
from llmirage_server.replies.structured.budget import spend
from llmirage_server.replies.structured.values import value_for
from llmirage_server.replies.tool_request import PlannedCall, calls_now
from llmirage_shared.synthetic_text import mix

_LONGEST_LINE = 1000  # characters: forms are written for readers
_LONGEST_TEXT, _MOST_TEXTS = 50_000, 10
_LONGEST_CHOICE = 8_000  # characters of a text whose demand for one of some options is for all of the reply
_NEAR = 300  # characters between the demand and its options
_CHARACTERS = 20  # read in one step of planning

_ASKS = re.compile(
    r"\b(?:respon[ds]\w*|repl(?:y|ies)|answers?|outputs?|structured|produce|write|return|use)\b.{0,100}?"
    r"\b(?:form|format|structured?|template|way|below|following|lines?|like this|exactly)\b",
    re.IGNORECASE,
)
_BRACED = re.compile(r"(.*?)\{{1,2}(\w+)\}{1,2}(.*)")  # {name}
_TAGGED = re.compile(r"(\s*<(\w+)>)[^<>]*(</\2>\s*)")  # <name>anything</name>
_BORDER = r"[^\w\"'`<>{}\[\]]{0,5}"
_LABELLED = re.compile(  # Label: <what it is>
    rf"({_BORDER}(\w[\w /-]{{0,40}}?){_BORDER}: ?{_BORDER})(<[^<>]+>|\[[^\[\]]+\]|\{{[^{{}}]+\}})(.*)"
)
_NOTE = re.compile(r"\s{2,}(?:#|//|--).*|\s+\([^()]*\)$")
_OPTIONS = re.compile(r"\bone of:?\s+(.+)", re.IGNORECASE)
_RANGE = re.compile(r"(\d+)\s*(?:-|–|to|and)\s*(\d+)")
_QUOTED = re.compile(r"(['\"`])((?:(?!\1).){1,40})\1")
_OPENS = re.compile(r"\b(?:open|start|begin|wrap|enclos|surround|delimit|between|inside|within)\w*\b[^.]*$", re.IGNORECASE)
_CLOSES = re.compile(r"\b(?:clos|end|finish|and)\w*\b", re.IGNORECASE)
_MARKED_PART = re.compile(r"\b(answer|code|conclusion|output|reply|response|result|solution)\b", re.IGNORECASE)
_VERBS = r"(?:answer|respond|reply|return|output|say|choose|select|pick|classify|label|categori[sz]e|rate|score|grade)"
_CHOICE = re.compile(
    rf"\b{_VERBS}\b[^.\n]{{0,60}}?"
    r"\b(?:only|just|exactly|nothing (?:else|but)|(?:one|single) (?:word|label|number|integer|digit))\b"
    rf"|\b(?:only|just)\s+(?:\w+\s+)?{_VERBS}\b|\b(?:answer|respond|reply)(?: with)?:? [\"']?(?:yes|true)[\"']?(?:/| or )",
    re.IGNORECASE,
)
_ITEM = r"(?:\"[^\"\n]{1,40}\"|'[^'\n]{1,40}'|`[^`\n]{1,40}`)"
_JOINT = r"(?:\s*,\s*(?:or\s+|and\s+)?|\s+or\s+|\s*[/|]\s*)"
_WORDS = r"[\w-]+(?: [\w-]+){0,2}?"
_ENDS = r"(?=\s*(?:[^\w\s]|$|\n|and\b|based\b|depending\b|without\b|with no\b|nothing\b))"
_LISTINGS = tuple(
    re.compile(pattern, flags)
    for pattern, flags in (
        (rf"{_ITEM}(?:{_JOINT}{_ITEM})+", 0),
        (r"(?<=:\n)\s*(?:[-*•] ?[^\n]{1,200}(?:\n+|$)){2,}", 0),
        (rf"(?<!\bin )\b[A-Z][A-Z0-9_]*(?:{_JOINT}[A-Z][A-Z0-9_]*)+\b{_ENDS}", 0),
        (rf"\b(?:yes|true)(?:{_JOINT}\w+){{0,2}}?{_JOINT}(?:no|false|maybe|unknown|unsure)\b", re.IGNORECASE),
        (
            rf"(?:\b(?:classify|label|categori[sz]e|grade|mark)\b[^.\n]{{0,60}}\bas (?:either )?|\beither |\bone of: )"
            rf"({_WORDS}(?:, ?{_WORDS})*{_JOINT}{_WORDS}){_ENDS}",
            re.IGNORECASE,
        ),
        (r"(?=[\s\S]*\b(?:number|integer|digit|score|rating)\b)\b(\d+\s*(?:-|–|to|and)\s*\d+)\b", re.IGNORECASE),
    )
)
_SPLIT = re.compile(r",?\s+or\s+|,\s*(?:and\s+)?|\s*[/|]\s*")
_ANSWERING = frozenset(("answer", "response", "result", "output", "reply", "summary"))
_GIVEN_BACK = re.compile(r"observation|result|output", re.IGNORECASE)


@dataclass(slots=True, frozen=True)
class _Slot:
    """A slot and the text around it. name: one word; told: the instructions' words about its value."""

    before: str
    name: str
    after: str
    told: str = ""


@dataclass(slots=True, frozen=True)
class ShownForm:
    """A form that instructions show.

    ending: what follows the last slot. label: of lines that begin a field of a message in this form. options: the text in
    which they stand, if the reply is one of them.
    """

    slots: Sequence[_Slot]
    ending: str = ""
    label: re.Pattern[str] | None = None
    is_code: bool = False  # the last slot holds Python
    options: str = ""


def shown_form(texts: Sequence[str]) -> ShownForm | None:
    """Return the form of the last text that shows one. Runs for each request, so it looks first for what most texts lack."""
    texts = short_texts(texts)
    for text in reversed(texts):
        if ("{" in text or "<" in text or "[" in text) and (form := _slotted(text)) is not None:
            return form
    for text in reversed(texts):
        if text.count("'") + text.count('"') + text.count("`") >= 4 and (form := _marked(text)) is not None:
            return form
    asking = [*texts[:1], *texts[-1:]]  # a question with options that was answered is over
    return next((form for text in reversed(asking) if len(text) <= _LONGEST_CHOICE and (form := _choice(text))), None)


def filled(form: ShownForm, request: ReplyRequest, key: int) -> str | None:
    """Return the text of a reply in the form, None if the last message fills the form already."""
    texts = short_texts(request.instructions or ())
    fields = {} if form.label is None else _fields(request.last_user_text, form.label)
    if not any(slot.name in fields for slot in form.slots):
        fields = {}  # these are other headings
    slots = [slot for slot in form.slots if slot.name not in fields]
    if not slots:
        return None
    tools = [tool for text in texts for tool in _tools_in(text)]
    names = [tool.name for tool in tools]
    request = replace(
        request,
        tools=tuple(tools),
        tool_choice=ToolChoice("required"),
        called=request.called or tuple([value for value in fields.values() if value in names]),
        results=request.results or tuple([value for name, value in fields.items() if _GIVEN_BACK.search(name)]),
        last_user_text=next(iter(fields.values())) if fields else request.last_user_text.replace(form.options or "\0", " "),
    )
    values = _values(slots, texts, request, key)
    if tools and form.is_code:
        values[slots[-1].name] = "\n".join(_python(call, tools, mix(key + at)) for at, call in enumerate(calls_now(request)))
    return "".join([f"{slot.before}{values[slot.name]}{slot.after}" for slot in slots]).lstrip("\n") + form.ending


# --- forms --------------------------------------------------------------------------------------------------------------


def short_texts(texts: Sequence[str]) -> list[str]:
    """Return the texts in which forms are looked for: the first ones, without very long ones."""
    return [text for text in texts if len(text) <= _LONGEST_TEXT][:_MOST_TEXTS]


@lru_cache(maxsize=64)
def _slotted(text: str) -> ShownForm | None:
    """Return the last form with slots that a text asks for."""
    spend(len(text) // _CHARACTERS)
    lines = text.split("\n")
    asking = [at for at, line in enumerate(lines) if len(line) <= _LONGEST_LINE and _ASKS.search(line) and "{" not in line]
    return next((form for at in reversed(asking) if (form := _slots_of(lines[at + 1 :], lines[at])) is not None), None)


def _slots_of(lines: Sequence[str], asking: str) -> ShownForm | None:
    """Return the form that these lines begin with: slots, their labels, blank lines between them, and a last label."""
    slots: list[_Slot] = []
    label: re.Pattern[str] | None = None
    above: list[str] = []  # lines since the last slot
    for line in lines:
        bare = line.strip()
        slot = _slot(line, "\n".join([*above, ""])) if len(line) <= _LONGEST_LINE else None
        if slot is not None:
            slots.append(slot)
            label = label or _label(slot)
            above = []
        elif not bare or (label is not None and label.fullmatch(bare)) or (not slots and not any(map(str.strip, above))):
            above.append(line)  # a label, perhaps, with its slot below it
        elif not bare.startswith("```"):
            break
    if len(slots) < 2 and (not slots or (label is None and not asking.rstrip().endswith(":"))):
        return None
    ending = "\n".join(["", *above]).rstrip()
    return ShownForm([replace(slot, after=f"{slot.after}\n") for slot in slots[:-1]] + slots[-1:], ending, label)


def _slot(line: str, above: str) -> _Slot | None:
    """Return the slot of a line. above: the text between the last slot and this line."""
    if (tagged := _TAGGED.fullmatch(line)) is not None:
        return _Slot(above + tagged[1], tagged[2], tagged[3])
    if (labelled := _LABELLED.fullmatch(line)) is not None:
        name = "_".join(re.findall(r"[a-z0-9]+", labelled[2].lower()))
        return _Slot(above + labelled[1], name, _without_note(labelled[4]), labelled[3][1:-1] + labelled[4])
    braced = _BRACED.fullmatch(line)
    if braced is None or braced[2] not in (above + braced[1]):
        return None
    return _Slot(above + braced[1], braced[2], _without_note(braced[3]), braced[3])


def _without_note(after: str) -> str:
    note = _NOTE.search(after)
    return (after if note is None else after[: note.start()]).rstrip()


def _label(slot: _Slot) -> re.Pattern[str] | None:
    """Return a pattern of lines like the one above this slot, with any name in it."""
    line = slot.before.strip().rpartition("\n")[2]
    start, named, end = line.partition(slot.name)
    return re.compile(rf"{re.escape(start)}(\w+){re.escape(end)}") if named and (start + end).strip() else None


@lru_cache(maxsize=64)
def _marked(text: str) -> ShownForm | None:
    """Return the form of a part between two marks, with the label that an example has before them."""
    spend(len(text) // _CHARACTERS)
    for line in text.split("\n"):
        part = _MARKED_PART.search(line) if len(line) <= _LONGEST_LINE else None
        if part is None or (marks := _marks(line)) is None:
            continue
        opening, closing = marks
        apart = "\n" if f"{opening}\n" in text else ""
        example = re.search(rf"^(\w+: ).*\n{re.escape(opening)}$", text, re.MULTILINE)
        first = [] if example is None else [_Slot(example[1], "thought", "\n")]
        marked = _Slot(opening + apart, part[1].lower(), apart + closing)
        return ShownForm([*first, marked], is_code=part[1].lower() == "code")
    return None


def _marks(line: str) -> tuple[str, str] | None:
    """Return the two marks with which, a sentence says, something begins and ends."""
    quoted = list(_QUOTED.finditer(line))
    for first, second in pairwise(quoted):
        before, between = line[max(0, first.start() - 60) : first.start()], line[first.end() : second.start()]
        if _OPENS.search(before) and len(between) < 60 and _CLOSES.search(between):
            return first[2], second[2]
    return None


@lru_cache(maxsize=64)
def _choice(text: str) -> ShownForm | None:
    """Return the form of a reply that is one of the options, or a number of the range, beside a demand for nothing else."""
    spend(len(text) // _CHARACTERS)
    for demand in _CHOICE.finditer(text):
        around = text[max(0, demand.start() - _NEAR) : demand.end() + _NEAR]
        for pattern in _LISTINGS:
            for listing in reversed(list(pattern.finditer(around))):
                listed = listing[listing.lastindex or 0]
                told = listed if listed[0].isdigit() else "one of: " + "; ".join(_options(listed))
                return ShownForm([_Slot("", "choice", "", told)], options=listed)
    return None


def _options(listed: str) -> list[str]:
    """Return the options of a list without quotes; of those with bullets without their descriptions."""
    if listed.lstrip()[0] not in "-*•":
        return [each.strip(" *`\"'.") for each in _SPLIT.split(listed)]
    lines = [line.strip(" -*•`\"'.") for line in listed.split("\n") if line.strip()]
    return [re.split(r"[*`]*\s*[:(]|\s[-–—]\s", line, maxsplit=1)[0] for line in lines]


def _fields(text: str, label: re.Pattern[str]) -> dict[str, str]:
    """Return the fields of a message in the form, by name, without lines that mention a label."""
    fields: dict[str, str] = {}
    name = None
    for line in text.split("\n"):
        if (found := label.fullmatch(line.strip())) is not None:
            name = found[1]
            fields[name] = ""
        elif name is not None and not label.search(line):
            fields[name] += f"{line}\n"
    return {name: value.strip() for name, value in fields.items()}


# --- values -------------------------------------------------------------------------------------------------------------


def _values(slots: Sequence[_Slot], texts: Sequence[str], request: ReplyRequest, key: int) -> dict[str, str]:
    """Return the text of each slot: the name or the arguments of a tool, or a value of the type that is told."""
    typed = {name: value for text in texts for name, value in typed_keys(text).items()}
    properties = {slot.name: _schema(slot, typed.get(slot.name)) for slot in slots}
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    values = with_quoted(value_for(schema, key), schema, request.last_user_text)
    names = {tool.name for tool in request.tools}
    choosing = [name for name, value in properties.items() if "enum" in value and set(value["enum"]) <= names]
    if names and choosing and (calls := calls_now(request)):
        values[choosing[0]] = calls[0].tool.name
        for name in [name for name, value in properties.items() if value.get("type") == "object"][:1]:
            values[name] = arguments_for(calls[0], key)
    for name in values.keys() & _ANSWERING if request.results else ():
        values[name] = "\n".join(request.results).strip()
    return {name: _written(value) for name, value in values.items()}


def _schema(slot: _Slot, typed: Any) -> dict[str, Any]:
    told = slot.told
    if "schema" in told.lower() and "{" in told:
        found, _, _ = next(json_objects(told))
        if found is not None:
            return found
    listed = _OPTIONS.search(told)
    options = [each.strip(" '\"`.") for each in re.split(r"[;,|/]| or ", told if listed is None else listed[1])]
    if len(options) > 1 and (listed is not None or all(0 < len(each.split()) < 3 for each in options)):
        return {"enum": [each for each in options if each]}
    if (between := _RANGE.search(told)) is not None:
        return {"type": "integer", "minimum": int(between[1]), "maximum": max(int(between[1]), int(between[2]))}
    return typed or key_schema(slot.name)


def _written(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return ", ".join(value)
    return json.dumps(value, ensure_ascii=False)


# --- tools that are declared in words -----------------------------------------------------------------------------------

_PYTHON = re.compile(r"\s*(?:async )?def (\w+)\((.*)\)(?: ?->.*)?:\s*")
_NAMED = re.compile(r"\W*(?:\d+\W+)?(\w+)\b")
_JSON_TYPES = {
    "str": "string", "string": "string", "int": "integer", "integer": "integer", "float": "number", "number": "number",
    "bool": "boolean", "boolean": "boolean", "list": "array", "array": "array", "dict": "object", "object": "object",
}  # fmt: skip


def _tools_in(text: str) -> Iterator[Tool]:
    """Yield the tools that a text declares as Python functions, or by name with an object of arguments and schemas."""
    lines = text.split("\n") if "def " in text or "argument" in text else []
    for at, line in enumerate(lines):
        if len(line) > _LONGEST_LINE:
            continue
        if (python := _PYTHON.fullmatch(line)) is not None:
            described = lines[at + 1].strip(" \"'") if at + 1 < len(lines) else ""
            yield Tool("function", python[1], described, signature_of(python[2]))
        elif (told := line.find("argument")) >= 0 and (named := _NAMED.match(line)) is not None:
            properties = _literal(line[told:])
            if properties is not None:
                yield Tool("function", named[1], line[named.end() : told], object_of(properties, properties))


def signature_of(parameters: str) -> dict[str, Any]:
    """Return the JSON Schema of the parameters of a Python function."""
    properties, required = {}, []
    for parameter in re.findall(r"(\w+)\s*(?::\s*(\w+)[^,=]*)?(=)?[^,]*(?:,|$)", parameters):
        name, kind, default = parameter
        properties[name] = {"type": _JSON_TYPES[kind.lower()]} if kind.lower() in _JSON_TYPES else {}
        required += [] if default else [name]
    return object_of(properties, required)


def _literal(text: str) -> dict[str, Any] | None:
    """Return the first object of a text, in JSON or Python, if it maps arguments to schemas."""
    start, depth = text.find("{"), 0
    for at in range(start, len(text)) if start >= 0 else ():
        depth += (text[at] == "{") - (text[at] == "}")
        if not depth:
            try:
                value = ast.literal_eval(text[start : at + 1])
            except (ValueError, SyntaxError, MemoryError, RecursionError):
                return None
            return value if isinstance(value, dict) and all(isinstance(each, dict) for each in value.values()) else None
    return None


def object_of(properties: Mapping[str, Any], required: Any) -> dict[str, Any]:
    """Return the JSON Schema of an object."""
    return {"type": "object", "properties": dict(properties), "required": list(required)}


def _python(call: PlannedCall, tools: Sequence[Tool], seed: int) -> str:
    """Return the call as Python. Its result is printed, except that of the last tool, which ends the work."""
    given = ", ".join([f"{name}={value!r}" for name, value in arguments_for(call, seed).items()])
    expression = f"{call.tool.name}({given})"
    return expression if call.tool.name == tools[-1].name else f"print({expression})"
