"""Arguments for a call: valid for the tool's schema, taken from the text by the rules of docs/replies.md."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from llmirage_server.replies.commands import command_in, harmless_command
from llmirage_server.replies.prompted import json_objects
from llmirage_server.replies.structured.budget import spend
from llmirage_server.replies.structured.schema import Resolver, SchemaError, types_of
from llmirage_server.replies.structured.validity import Validator, validator_for
from llmirage_server.replies.structured.values import value_for
from llmirage_server.replies.text_values import TextValues, Value, iso_time
from llmirage_server.replies.tool_request import MOST_CHARACTERS, PlannedCall, words_of
from llmirage_server.replies.vocabulary import CODE, HIDDEN, QUOTED, inside, word_set
from llmirage_shared.texts import short_cache

# Which values of a text fit a string, by its format, else by the words of its property's name.
_FORMATS = {
    "email": "email", "idn-email": "email", "uri": "url", "url": "url", "uri-reference": "url", "iri": "url", "uuid": "uuid",
    "date": "date", "date-time": "date-time", "time": "time", "ipv4": "ipv4",
}  # fmt: skip
_BY_NAME: Sequence[tuple[frozenset[str], tuple[str, ...]]] = tuple(
    (word_set(words), tuple(kinds.split()))
    for words, kinds in (
        ("timezone zone tz", "zone"),
        ("url uri link href website webpage", "url"),
        ("email mail to recipient cc bcc sender", "email"),
        ("uuid guid", "uuid"),
        ("path file filename filepath directory dir folder cwd workdir repo repository", "path"),
        ("timestamp datetime when", "date-time date time"),
        ("date day", "date"),
        ("time hour", "time"),
        ("expression formula equation", "formula"),
        ("id number code sku zip phone", "code"),
    )
)
_FREE_TEXT = word_set(
    "answer body cmd command comment content description input instruction keyword message note pattern prompt q query "
    "question reason search sql statement string subject summary task text thought title todo topic"
)
_NUMERIC, _TEXTUAL = {"integer", "number"}, {"string"}
_ON = re.compile(r"\b(?:(on|true|yes|enabled?)|off|false|no|disabled?)\b", re.IGNORECASE)
_FLAGS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
_NEGATED = re.compile(r"\b(?:not|no|without)\s+(?:\w+\s+)?$", re.IGNORECASE)
_VALUE_END = re.compile(r"[,;\n)\]}]|[.!?](?=\s|$)|\s+\w+=")
_LINE_END = re.compile(r"\n")
_LIST_END = re.compile(r",\s*(?:and\s+)?[A-Za-z]\w*(?: \w+)?\s*[:=]|[;\n)\]]|\.(?=\s|$)")
_LIST_JOINT = re.compile(r"\s*,\s*(?:and\s+)?|\s+and\s+")
_SENTENCE_END = re.compile(r"[.!?](?=\s|$)|\n|[。？！]")
_LEADING = re.compile(
    r"(?:[\s,;.!?\-)]|\b(?:a|about|and|as|at|by|called|for|from|function|in|is|named|of|on|please|saying|that|titled|to|tool|with)(?!\w))*",
    re.IGNORECASE,
)
_TRAILING = re.compile(
    r"(?:[\s,;:.!?(]|(?<!\w)(?:and|also|call|please|the|then|use|using|with)(?=\W*$))*$", re.IGNORECASE
)  # fmt: skip


@dataclass(slots=True)
class Slot:
    """A property that is no object, and what was found for it, None for nothing.

    path: names of properties from the root. required: it must be there. wanted: it gets what fits by its type alone, because
    there is nothing else to put there.
    """

    path: tuple[str, ...]
    schema: Mapping[str, Any]
    required: bool
    wanted: bool = False
    found: Any = None

    @property
    def name(self) -> str:
        return self.path[-1]

    @property
    def is_list(self) -> bool:
        return _type(self.schema) == "array"

    @property
    def item(self) -> Mapping[str, Any]:
        """The schema of the items of a list, else its own."""
        items = self.schema.get("items") if self.is_list else self.schema
        return items if isinstance(items, Mapping) else {}

    @property
    def is_list_of_objects(self) -> bool:
        """Such a list is always a sample."""
        return self.is_list and _type(self.item) == "object"

    @property
    def is_free_text(self) -> bool:
        return not _FREE_TEXT.isdisjoint(words_of(self.name))

    def is_of(self, types: set[str]) -> bool:
        """Return if it, or an item of it, is of one of the types, and of no list of options."""
        return _type(self.item) in types and "enum" not in self.item

    def kinds(self) -> tuple[str, ...]:
        """Return the kinds of values in a text that fit a string."""
        if (form := self.item.get("format")) in _FORMATS:
            return (_FORMATS[form],)
        if "contentMediaType" in self.item:
            return ("program",)
        words = set(words_of(self.name))
        if words == {"code"}:
            return ("program", "code")
        return next((kinds for known, kinds in _BY_NAME if not known.isdisjoint(words)), ())

    def argument(self) -> tuple[Any] | None:
        """Return the value found; for a required property, else, the schema's default or null; None: a sample."""
        if self.found is not None:
            return (self.found,)
        if not self.required:
            return None
        if "default" in self.schema:
            return (self.schema["default"],)
        return (None,) if "null" in types_of(self.schema) or self.schema.get("nullable") is True else None


def _type(schema: Mapping[str, Any]) -> str:
    return next((kind for kind in types_of(schema) if kind != "null"), "string")


class SlotFiller:
    """Fills slots from the surest rule to the least: each rule for all slots, required ones first."""

    def __init__(self, slots: Sequence[Slot], values: TextValues, valid: Validator) -> None:
        """Set up the search. valid: of the whole."""
        self._slots = sorted(slots, key=lambda slot: not slot.required)
        self._values = values
        self._valid = valid

    def fill(self, rest: str | None = None, whole: str = "", near: int = 0) -> None:
        """rest, whole, near: see PlannedCall; rest None: free text is not quoted."""
        for rule in (self._by_its_name, self._enum, self._flag, self._by_kind, self._numbers):
            self._each(self._slots, rule)
        texts = [slot for slot in self._slots if slot.is_of(_TEXTUAL)]
        free = [slot for slot in texts if slot.is_free_text]
        plain = [slot for slot in texts if not slot.is_free_text]
        wanted = [slot for slot in plain if slot.wanted]
        if rest is not None:
            self._each(free, self._next, "quoted")
        for end in (near, len(self._values.text)):
            self._each(plain, self._next, "quoted", end)
            self._each(wanted, self._next, "name", end)
        if rest is not None:
            self._each([slot for slot in free if slot.wanted][:1], self._words, whole, whole is not rest)
            self._each(wanted, self._words, rest, False)
        self._each(wanted, self._next, "first word")

    def give_command(self, name: str) -> None:
        """Fill the slot of a shell's command; a list has it as the words that start a shell."""
        text = self._values.text
        for slot in self._slots:
            if slot.path == (name,):
                if (found := command_in(text)) is not None:
                    self._values.use(found, hides=True)
                command = self._by_its_name(slot) if found is None else found.written
                command = command or harmless_command(text.replace(HIDDEN, " "))
                value = ["bash", "-lc", command] if slot.is_list and isinstance(command, str) else command
                slot.found = value if self._valid.is_valid(value, slot.schema) else None

    @staticmethod
    def _each(slots: Sequence[Slot], rule: Callable[..., Any], *more: Any) -> None:
        for slot in slots:
            if slot.found is None:
                slot.found = rule(slot, *more)

    def _next(self, slot: Slot, kind: str, end: int | None = None) -> Any:
        """Return the next value of a kind that fits, before a place in the text; all of them for a list."""
        found = []
        for value in self._values.left(kind):
            if end is not None and value.end > end:
                break
            if (one := self._converted(value.written, slot.item)) is not None:
                self._values.use(value, hides=kind not in ("name", "number"))
                if not slot.is_list:
                    return one
                found.append(one)
        return found or None

    def _by_its_name(self, slot: Slot) -> Any:
        """`city: Paris`, `city=Paris`, `city "Paris"`, `song Yesterday`, `volume 7`, `3 nights`."""
        text = self._values.text
        for match in _mentions(text, slot.name):
            at, assigned = match.end(), bool(match["sign"])
            if slot.is_list and text[at : at + 1] != "{":
                end = _LIST_END.search(text, at + 1)
                stop = end.start() if end else len(text)
                parts = _LIST_JOINT.split(text[at:stop].strip(" []"))
                found = [self._converted(_unquoted(part), slot.item) for part in parts]
                if None not in found and (assigned or len(found) > 1):
                    self._values.use(Value(match.start(), stop, ""), hides=True)
                    return found
                continue
            if (quoted := QUOTED.match(text, at)) is not None:
                value, stop = self._converted(_unquoted(quoted[0]), slot.schema), quoted.end()
            else:
                value, stop = self._following(slot, at, assigned)
            if value is not None:
                self._values.use(Value(match.start(), stop, ""), hides=True)
                return value
        if slot.is_of(_NUMERIC) and not slot.is_list:
            for number in self._values.left("number"):
                counted = _after_number(slot.name).match(text, number.end)
                if counted and (value := self._converted(number.written, slot.schema)) is not None:
                    self._values.use(number)
                    return value
        return None

    def _following(self, slot: Slot, at: int, assigned: bool) -> tuple[Any, int]:
        """Return the value at a place after the property's name, and where it ends. Not assigned: no plain words."""
        text = self._values.text
        kinds = ("number",) if slot.is_of(_NUMERIC) else (*slot.kinds(), "name") if slot.is_of(_TEXTUAL) else ()
        for kind in kinds:
            for one in self._values.left(kind):
                if one.start == at and not (assigned and kind == "name" and not _VALUE_END.match(f"{text}\n", one.end)):
                    return self._converted(one.written, slot.schema), one.end
        if not assigned or text[at : at + 1] in ("{", "["):  # a schema, or a value that is no string's
            return None, at
        end = _LINE_END.search(text, at) if slot.is_free_text and text[at - 1] != "=" else _VALUE_END.search(text, at)
        stop = end.start() if end else len(text)
        return self._converted(text[at:stop].strip(" ."), slot.schema), stop

    def _enum(self, slot: Slot) -> Any:
        """Return the first option that the text has; all that it has, in its order, for a list."""
        options = slot.item.get("enum")
        hits = []
        for option in options if isinstance(options, list) else ():
            match = _mention(self._values.text, str(option)) if option not in (None, "") else None
            if match is not None:
                hits.append((match.start(), -match.end(), option))
        hits.sort(key=lambda hit: hit[:2])
        for start, end, _ in hits[: len(hits) if slot.is_list else 1]:
            self._values.use(Value(start, -end, ""))
        return None if not hits else [option for _, _, option in hits] if slot.is_list else hits[0][2]

    def _flag(self, slot: Slot) -> bool | None:
        """On or off, for a wanted property; true where its name stands, false after "not", "no" and "without"."""
        if _type(slot.schema) != "boolean":
            return None
        text = self._values.text
        if len(slot.name) > 2 and (match := _mention(text, slot.name)) is not None:
            return _NEGATED.search(text[: match.start()]) is None
        said = _ON.search(text) if slot.wanted else None
        return said if said is None else bool(said[1])

    def _by_kind(self, slot: Slot) -> Any:
        """Return the kinds that its format, its name or its pattern calls for."""
        if not slot.is_of(_TEXTUAL):
            return None
        for kind in slot.kinds():
            if (found := self._next(slot, kind)) is not None:
                return found
        if "pattern" in slot.item:
            for word in re.findall(r"[^\s,;\"'`()]*[^\s,;\"'`().?!]", self._values.text):
                if (one := self._converted(word, slot.item)) is not None:
                    return [one] if slot.is_list else one
        return None

    def _numbers(self, slot: Slot) -> Any:
        return self._next(slot, "number") if slot.wanted and slot.is_of(_NUMERIC) else None

    def _words(self, slot: Slot, text: str, is_all: bool) -> Any:
        """Return the words that are left. is_all: of a whole message, whose first words are kept."""
        words = trimmed(self._values.without_hidden(text), keep_start=is_all)
        one = self._converted(words, slot.item) if words else None
        return [one] if one is not None and slot.is_list else one

    def _converted(self, written: str, schema: Mapping[str, Any]) -> Any:
        """Return the text as a value of the schema, None if it is none."""
        value: Any = written
        for option in schema.get("enum") or ():
            if str(option).lower() == written.lower():
                value = option
        kind = _type(schema)
        if kind in _NUMERIC:
            try:
                value = float(written.replace(",", ""))
            except ValueError:
                return None
            value = int(value) if value.is_integer() else value
        elif kind == "boolean":
            value = _FLAGS.get(written.lower())
        elif "format" in schema:
            kind = _FORMATS.get(schema["format"], "")
            value = written if kind and [written] == [one.written for one in TextValues(written).left(kind)] else None
            value = iso_time(written) if value and kind == "time" else value
        if value is None or value == "" or HIDDEN in written:
            return None
        try:
            return value if self._valid.is_valid(value, schema) else None
        except SchemaError:  # a regular expression that is not supported, say
            return None


def trimmed(text: str, *, keep_start: bool = False) -> str:
    """Return the words of a text without those that only join it to others; one sentence of it, or all after a colon."""
    text = text.replace(HIDDEN, " ")
    if keep_start:
        return " ".join(text.split())
    text = text[_LEADING.match(text).end() :]  # type: ignore[union-attr]  # it matches nothing at least
    if text.startswith(":"):
        return text[1:].strip()
    return _TRAILING.sub("", _SENTENCE_END.split(text, maxsplit=1)[0])


def _spelled(name: str) -> str:
    """Return a pattern of how a name is written in a text: max_results, "max results", "max-results"."""
    return r"[\s_-]*".join([f"{re.escape(word)}s?" for word in words_of(name)]) or re.escape(name)


@short_cache(512)
def _anywhere(name: str) -> re.Pattern[str]:
    return re.compile(rf"(?<!\w){_spelled(name)}(?!\w)", re.IGNORECASE)


@short_cache(512)
def _after_number(name: str) -> re.Pattern[str]:
    return re.compile(rf"\s+{_spelled(name)}(?!\w)", re.IGNORECASE)


@short_cache(512)
def _before_value(name: str) -> re.Pattern[str]:
    before = rf"(?<![\w]){_spelled(name)}(?!\w)[\"'`]?(?:\s*(?P<sign>[:=])\s*|\s+(?:is\s+|to\s+|as\s+|of\s+)?)"
    return re.compile(before, re.IGNORECASE)


def _mention(text: str, name: str) -> re.Match[str] | None:
    return _anywhere(name).search(text)


def _mentions(text: str, name: str) -> Iterator[re.Match[str]]:
    """Yield the places where the text may give a value for a property of this name; the value starts at the match's end."""
    for match in _before_value(name).finditer(text):
        if match["sign"] or len(name) > 1:
            yield match


def _unquoted(text: str) -> str:
    match = QUOTED.fullmatch(text)
    return text if match is None else inside(match)


_DEEPEST = 3  # levels of objects in objects that are filled
_MOST_SLOTS = 200  # properties filled from the text
_STEPS_OF_A_SLOT = 25  # of planning: each has expressions of its own, compiled when it is looked for


def arguments_for(call: PlannedCall, seed: int) -> dict[str, Any]:
    """Arguments of a function. Raises SchemaError where `value_for` does."""
    schema = call.tool.parameters
    if schema is None or schema in ({}, True):
        return {}
    valid = validator_for(schema)
    properties = valid.resolver.outline(schema).get("properties") or {}
    for given in _objects(call.text, call.tool.name):
        if (given.keys() & properties.keys() or not properties) and valid.is_valid(given):
            return given
    slots = _slots(valid)
    values = TextValues(call.text, frozenset(words_of(call.tool.own_name)))
    filler = SlotFiller(slots, values, valid)
    if call.tool.runs_commands:
        filler.give_command(call.tool.command_argument or "")
    filler.fill(call.rest, call.whole, call.near)
    found: dict[str, Any] = {}
    for slot in slots:
        if (value := slot.argument()) is not None:
            _set(found, slot.path, value[0])
    sampled = any(slot.required and slot.is_list_of_objects for slot in slots)
    if not sampled and valid.is_valid(found):
        return found
    value = value_for(valid, seed)
    if not isinstance(value, dict):
        raise SchemaError("a function's parameters must be of type object")
    return _overlaid(value, slots, valid, prune=True)


def with_quoted(value: dict[str, Any], schema: Any, said: str) -> dict[str, Any]:
    """Return a structured answer with what the user said, free text aside, where it fits; still valid."""
    valid = validator_for(schema)
    slots = _slots(valid)
    SlotFiller(slots, TextValues(said[:MOST_CHARACTERS]), valid).fill()
    return _overlaid(value, slots, valid, prune=False)


def free_input(call: PlannedCall) -> str:
    """Return the input of a custom tool without a grammar: the first code in the text, else the words."""
    code = CODE.search(call.text)
    return (
        (code[1] or code[2] or "").strip() if code else trimmed(call.whole, keep_start=call.whole is not call.rest) or "..."
    )


def _objects(text: str, tool: str) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects of a text; of one like {"name": tool, "arguments": {...}} the arguments."""
    for value, _, _ in json_objects(text):
        spend()
        if value is not None:
            inner = value.get("arguments", value.get("parameters", value.get("input")))
            named = value.get("name", HIDDEN)
            yield inner if isinstance(inner, dict) and (named == tool or HIDDEN in str(named)) else value


def _slots(valid: Validator) -> list[Slot]:
    """Return the properties to fill, also within objects. One that requires nothing is filled like one that requires all."""
    resolver = valid.resolver
    flat = _one_option(resolver.outline(valid.schema), resolver)
    slots = list(islice(_slots_in(flat, resolver, (), not flat.get("required"), True), _MOST_SLOTS))
    spend(len(slots) * _STEPS_OF_A_SLOT)
    return slots


def _slots_in(
    flat: Mapping[str, Any], resolver: Resolver, path: tuple[str, ...], wanted: bool, needed: bool
) -> Iterator[Slot]:
    """wanted: all properties are filled as if they were required. needed: the object itself is required."""
    for name, sub in (flat.get("properties") or {}).items():
        inner = _one_option(resolver.outline(sub), resolver)
        required = needed and name in (flat.get("required") or ())
        if not inner.get("properties"):
            if "const" not in inner:
                slot = Slot((*path, name), inner, required)
                slot.required = required or (wanted and slot.is_list_of_objects)
                slot.wanted = wanted or (required and slot.argument() is None)
                yield slot
        elif len(path) < _DEEPEST:
            yield from _slots_in(inner, resolver, (*path, name), False, required or wanted)


def _one_option(flat: Mapping[str, Any], resolver: Resolver, is_item: bool = False) -> Mapping[str, Any]:
    """Return the schema with the first of its alternatives that is not null, and a list's items without references."""
    options = [resolver.outline(option) for option in flat.get("anyOf") or flat.get("oneOf") or ()]
    if options:
        chosen = next((option for option in options if types_of(option) != ["null"]), {})
        rest = {key: value for key, value in flat.items() if key not in ("anyOf", "oneOf")}
        flat = {**rest, **chosen, "nullable": any(types_of(option) == ["null"] for option in options)}
    items = flat.get("items")
    if is_item or not isinstance(items, Mapping):  # no rule looks at lists within lists, which may have no end
        return flat
    return {**flat, "items": _one_option(resolver.outline(items), resolver, is_item=True)}


def _overlaid(value: dict[str, Any], slots: Sequence[Slot], valid: Validator, *, prune: bool) -> dict[str, Any]:
    """Return the value with what was found. prune: without optional properties for which nothing was."""
    for slot in slots:
        argument = slot.argument() if prune or slot.found is not None else None
        if argument is None and (slot.required or not prune):
            continue
        changed = copy.deepcopy(value)
        if argument is not None:
            _set(changed, slot.path, argument[0])
        else:
            _drop(changed, slot.path)
        if valid.is_valid(changed):
            value = changed
    return value


def _set(tree: dict[str, Any], path: Sequence[str], value: Any) -> None:
    for name in path[:-1]:
        inner = tree.get(name)
        tree[name] = tree = dict(inner) if isinstance(inner, dict) else {}
    tree[path[-1]] = value


def _drop(tree: Any, path: Sequence[str]) -> None:
    for name in path[:-1]:
        tree = tree.get(name) if isinstance(tree, dict) else None
    if isinstance(tree, dict):
        tree.pop(path[-1], None)
