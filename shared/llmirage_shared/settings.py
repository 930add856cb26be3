"""Settings: fields of a configuration class that carry their help, limits, units and names.

A setting is declared once. The command line (llmirage_shared.command_line), configuration files and Python callers read its
values through this declaration, so all of them refuse the same values in the same words.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import inspect
import math
import os
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

T = TypeVar("T")

# Of numbers that have a limit at all: products and quotients of a dozen of them are floats, neither infinite nor 0.
_LARGEST = 10**18


def _out_of_scale(value: float) -> str | None:
    """Return the end of a sentence about a finite number too large, or too near 0; None for others."""
    if abs(value) > _LARGEST:
        shown = f"{value:g}" if isinstance(value, float) else f"{'-' if value < 0 else ''}1e{int(math.log10(abs(value)))}"
        return f"must be {'at least -1e18' if value < 0 else 'at most 1e18'}; got {shown}"
    if 0 < abs(value) * _LARGEST < 1:
        return f"must be {'at most -1e-18' if value < 0 else 'at least 1e-18'} if it is not 0; got {value:g}"
    return None


class ConfigError(ValueError):
    """One or more invalid settings; `problems` has one sentence for each."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = list(problems)
        super().__init__("\n".join(self.problems))


class InputRefused(ConfigError):
    """Input of a command that cannot be used, though its options are sound.

    command: its name, which begins the message. status: the exit status.
    """

    status = 2

    def __init__(self, problems: Iterable[str], command: str = "") -> None:
        super().__init__(problems)
        self.command = command


class About:
    """The declaration of one setting.

    name: its name for users: a key of --set, of a file, or a Python argument; a flag has dashes for its underscores.
    usual: whether --help shows its flag in a command of many settings; a text: in these commands alone ("serve run").
    flag: whether a command of many settings has a flag for it, which --help-all shows; a text: these commands alone. Those
        that are neither usual nor this are given by --set.
    carried: other tools have a flag of this name: it is accepted, and no help shows it.
    spelled: the flag, where it is not the name with dashes.
    study: whether study files have it; a text: under which key.
    short, aliases, hidden: other names; the help shows `short` before and `aliases` after the name. `hidden` are names that
        other tools have: always accepted, as keys and flags, and shown nowhere.
    unset: the behaviour when it is not given, for the help.
    needs: the message if none of the settings is given that it depends on: "{} needs {concurrency}, where the ramp ends".
    option: the field of the options that follows from the setting, where it has another name.
    per: user's units per unit of the field: 1000 where users write ms and the field holds seconds.
    several: the command line takes several numbers between commas.
    joined: a text of several parts between commas; a flag that is repeated adds its parts. Of other flags the last counts.
    read: turns a text of the command line or a value of a file into the setting's value. Raises ValueError.
    check: returns the end of a sentence about an invalid value, or None.
    names: lists possible names, for the completion of shells.
    field, default, kinds: of the dataclass field; `settings_of` fills them in.
    """

    name: str = ""
    usual: bool | str = False
    flag: bool | str = False
    carried: bool = False
    spelled: str = ""
    option: str = ""
    study: bool | str = False
    metavar: str | None = None
    short: str = ""
    aliases: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    unset: str = ""
    needs: str = ""
    least: float | None = None
    above: float | None = None
    most: float | None = None
    infinite: bool = False
    choices: tuple[str, ...] = ()
    switch: bool = False  # a flag that is off by default and has no --no-... form
    several: bool = False
    joined: bool = False
    per: float = 1
    read: Callable[[Any], Any] | None = None
    check: Callable[[Any], str | None] | None = None
    names: Callable[[], Iterable[str]] | None = None
    field: str = ""
    default: Any = None
    kinds: tuple[Any, ...] = ()

    def __init__(self, group: str, help: str, **known: Any) -> None:
        """Declare a setting. group: its heading in the help. known: attributes from above.

        This is no dataclass: start-up makes a hundred of these.
        """
        if unknown := known.keys() - About.__annotations__.keys():
            raise TypeError(f"a setting has no {', '.join(sorted(unknown))}")
        self.group = group
        self.help = help
        self.__dict__.update(known)

    @property
    def other_names(self) -> tuple[str, ...]:
        return (*([self.short] if self.short else []), *self.aliases, *self.hidden)

    @property
    def keys(self) -> tuple[str, ...]:
        """All its names with underscores: keys of --set and of files, and Python arguments."""
        names = (self.name, self.spelled, *self.other_names)
        return tuple(dict.fromkeys(name.replace("-", "_") for name in names if len(name) > 1))

    def is_usual(self, command: str) -> bool:
        """Return whether --help of the command shows it."""
        return self.required or _holds(self.usual, command)

    def has_flag(self, command: str) -> bool:
        """Return whether --help-all of the command shows a flag for it, if the command has many settings."""
        return self.is_usual(command) or _holds(self.flag, command)

    @property
    def as_option(self) -> str:
        """The setting as a message about the command line names it: its flag, or its name if it is given by --set."""
        if self.flag or self.usual or self.carried or self.required:
            return f"--{self.spelled or self.name.replace('_', '-')}"
        return self.name

    @property
    def required(self) -> bool:
        return self.default is dataclasses.MISSING

    @property
    def repeated(self) -> bool:
        """True if the command line takes it several times."""
        return isinstance(self.default, tuple | dict)

    @property
    def range(self) -> str:
        """The limits, such as "at least 1 and at most 64"; empty without limits."""
        limits = (("at least", self.least), ("above", self.above), ("at most", self.most))
        return " and ".join(f"{words} {limit:,.10g}" for words, limit in limits if limit is not None)

    def convert(self, value: Any) -> Any:
        """Return a value of a file or of Python as the setting's type. Raises ValueError if it is invalid."""
        value = self.read(value) if self.read is not None else self._typed(value)
        if problems := list(self.problems(value)):
            raise ValueError("; ".join(problems))
        return value

    def read_value(self, value: Any) -> Any:
        """Return a value of a file or of Python, a list where there may be several. Raises ValueError if it is invalid."""
        if isinstance(value, Mapping) and "=" in (self.metavar or ""):
            value = [f"{key}={one}" for key, one in value.items()]
        if self.several:
            numbers = value if isinstance(value, list | tuple) else (value,)
            if not numbers:
                raise ValueError("must have at least one number")
            return tuple(self.convert(number) for number in numbers)
        return self.convert([value] if self.repeated and isinstance(value, str) else value)

    def parse(self, text: str | tuple[str, ...]) -> Any:
        """Return a text of the command line (all texts of a repeated flag) as the setting's type. Raises ValueError."""
        if self.read is not None:
            return self.read(text)
        if isinstance(text, tuple):
            return self._typed(list(text))
        if not self.several:
            value = self._typed(self._number(text))
            if problem := self._choice_problem(value):
                raise ValueError(problem)
            return value
        parts = [part.strip() for part in text.split(",")]
        if not all(parts):
            raise ValueError(f"has an empty number: {text!r} (two commas?)")
        return tuple(self._typed(self._number(part)) for part in parts)

    def problems(self, value: Any) -> Iterator[str]:
        """Yield the end of a sentence for each limit that a value breaks: "must be at least 1, not 0". None breaks none."""
        if value is None:
            return
        if isinstance(value, tuple) and (self.several or self.choices):
            for one in value:
                yield from self.problems(one)
            return
        if self.check is not None and (problem := self.check(value)):
            yield problem
        if problem := self._choice_problem(value):
            yield problem
        if not self.range or isinstance(value, bool) or not isinstance(value, int | float):
            return
        if abs(value) < math.inf and (problem := _out_of_scale(value)):
            yield problem
            return
        within = math.isfinite(value) or (self.infinite and value == math.inf)
        within &= self.least is None or value >= self.least
        within &= self.above is None or value > self.above
        within &= self.most is None or value <= self.most
        if not within:
            yield f"must be {self.range}, not {value:{'g' if isinstance(value, float) else 'd'}}"

    def _choice_problem(self, value: Any) -> str | None:
        if not self.choices or value in self.choices:
            return None
        return f"must be one of {', '.join(self.choices)}; not {value!r}{did_you_mean(value, self.choices)}"

    def _number(self, text: str) -> Any:
        for kind in (int, float):
            if kind in self.kinds:
                with contextlib.suppress(ValueError):
                    return kind(text)
        return text

    def _typed(self, value: Any) -> Any:
        if self.repeated:
            values = [value] if isinstance(value, str) else value
            if not isinstance(values, list | tuple) or not all(isinstance(item, str) for item in values):
                raise ValueError(f"must be a {(self.metavar or 'name').lower()} or a list of them, not {value!r}")
            return tuple(values)
        return convert_to(self.kinds, value)


def _holds(declared: bool | str, command: str) -> bool:
    return command in declared.split() if isinstance(declared, str) else declared


def setting(default: Any, group: str, help: str, **about: Any) -> Any:
    """Return a dataclass field with its `About`; `dataclasses.MISSING` as the default makes it a required one."""
    metadata = {"setting": About(group=group, help=help, **about)}
    if isinstance(default, dict):
        return dataclasses.field(default_factory=default.copy, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def under(group: str) -> Callable[..., Any]:
    """Return `setting` for one heading: `under("Load")(default, help, ...)`."""

    def of_group(default: Any, help: str, **about: Any) -> Any:
        """Declare a setting of the group: a field of a dataclass. about: attributes of `About`."""
        return setting(default, group, help, **about)

    return of_group


def switch(group: str, help: str, **about: Any) -> Any:
    """Return a setting that is off by default and has no --no-... form."""
    return setting(False, group, help, switch=True, **about)


def again(kind: Any, field: str, default: Any, help: str, *, prefix: str = "", **changes: Any) -> Any:
    """Return a copy of another class's setting, for another phase or command, with the given changes.

    Its name is that of the other after `prefix`, unless one is given.
    """
    declared = getattr(kind, "__dataclass_fields__", None) or vars(kind)
    first: About = declared[field].metadata["setting"]
    about: dict[str, Any] = {
        "unset": "",
        "needs": "",
        "aliases": (),
        "several": False,
        "study": False,
        "usual": False,
        "flag": False,
        "carried": False,
        "option": "",
    }
    about["help"] = help
    about["name"] = f"{prefix}_{first.name or field}".lstrip("_")
    return dataclasses.field(default=default, metadata={"setting": About(**(vars(first) | about | changes))})


def settings_of(kind: Any) -> Mapping[str, About]:
    """Return the settings that a class declares, by name, in their order. A class without instances needs no @dataclass."""
    return _settings_of(kind)


@functools.cache
def _settings_of(kind: Any) -> Mapping[str, About]:
    hints = {name: text for base in reversed(kind.__mro__) for name, text in _hints(base).items()}
    declared = getattr(kind, "__dataclass_fields__", None) or {name: getattr(kind, name, None) for name in hints}
    found: dict[str, About] = {}
    for name, field in declared.items():
        if not isinstance(field, dataclasses.Field) or "setting" not in field.metadata:
            continue
        about: About = field.metadata["setting"]
        about.field, about.name = name, about.name or name
        about.kinds = plain_types(hints[name])
        if about.several:
            about.kinds = tuple(part for kind in about.kinds for part in get_args(kind)[:1] or (kind,))
        about.default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        words = (word for part in _parts(hints[name]) if get_origin(part) is Literal for word in get_args(part))
        about.choices = about.choices or tuple(words)
        found[about.name] = about
    return found


def _hints(base: Any) -> dict[str, Any]:
    """Return typing.get_type_hints of one class, in a third of its time."""
    return {name: _evaluated(text, base.__module__) for name, text in inspect.get_annotations(base).items()}


@functools.cache
def _evaluated(text: Any, module: str) -> Any:
    if not isinstance(text, str):  # a module of annotations that are not postponed
        return text
    return eval(text, vars(sys.modules[module]))


def instance_of(kind: type[T], given: Mapping[str, Any], **fields: Any) -> T:
    """Make an instance of a class of settings. given: values by name, None for those not given. `fields` win.

    Values are in the user's units; a field that `option` does not name another one for holds them divided by `per`.
    """
    values = {}
    for name, about in settings_of(kind).items():
        value = given.get(name)
        if value is not None:
            values[about.field] = value if about.per == 1 or about.option else value / about.per
    return kind(**(values | fields))


def at_call(place: str) -> Callable[..., Any]:
    """Return the function `module:function`, imported when called, so that declaring a setting does not need it."""
    module, _, function = place.partition(":")

    def call(*values: Any, **given: Any) -> Any:
        return getattr(importlib.import_module(module), function)(*values, **given)

    return call


_MOST_COMPARED = 100  # characters
# Settings of the past, each with the one that has taken its place, and what that does.
_FORMER = {"natural_stop": ("exact_length", "replies end by themselves now; {} makes max_tokens exact")}


def became(word: str, choices: Iterable[str]) -> str:
    """Return the end of an error message: which of the choices a former name has become; empty for any other name."""
    plain = word.lower().replace("-", "_")
    for former, (now, change) in _FORMER.items():
        for choice in choices if plain.endswith(former) else ():
            if choice.lower().replace("-", "_").endswith(now):
                return f" ({change.format(choice)})"
    return ""


def did_you_mean(word: object, choices: Iterable[str]) -> str:
    """Return the end of an error message: the new form of a former name, else the nearest of the choices, if one is near."""
    choices = list(choices)
    if said := became(str(word)[:_MOST_COMPARED], choices):
        return said
    from difflib import get_close_matches

    near = get_close_matches(str(word)[:_MOST_COMPARED], choices, n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""


_TYPE_NAMES = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}


def convert_to(kinds: Sequence[Any], value: Any) -> Any:
    """Return a value as one of some plain types. Raises ValueError naming the expected type."""
    if Any in kinds or (value is None and type(None) in kinds):
        return value
    if float in kinds and isinstance(value, int) and not isinstance(value, bool):
        if abs(value) > _LARGEST:
            raise ValueError(_out_of_scale(value))
        return float(value)
    if type(value) not in kinds:
        expected = " or ".join(_TYPE_NAMES[kind] for kind in kinds if kind is not type(None))
        raise ValueError(f"must be {expected}, not {value!r}")
    return value


def plain_types(hint: Any) -> tuple[Any, ...]:
    """Return the plain types of a hint: those of a union, str for a Literal."""
    return tuple(str if get_origin(part) is Literal else part for part in _parts(hint))


def _parts(hint: Any) -> tuple[Any, ...]:
    """Return the members of a union, nested ones included; any other hint alone."""
    if get_origin(hint) in (Union, types.UnionType):
        return tuple(part for member in get_args(hint) for part in _parts(member))
    return (hint,)


_TYPES = {"int": int, "int | None": int, "float": float, "float | None": float, "bool": bool}
_EXACT = 2**53  # ints below are floats without loss


def make_plain(settings: Any) -> None:
    """Replace numpy scalars in the fields of a dataclass by Python's numbers, and numbers by equal ones of the field's type.

    Callers loop over numpy arrays, and write 3 where a time is meant or 1e6 where a count is. Checks and JSON know only
    Python's own numbers, and the compiled build (compiled.py) takes nothing else for an int. A number that has no equal of
    that type stays: 1.5 where an int is declared.
    """
    for field in dataclasses.fields(settings):
        value = given = getattr(settings, field.name)
        if getattr(value, "ndim", None) == 0:
            value = value.item()
        declared = _TYPES.get(field.type) if isinstance(field.type, str) else None
        if declared is not None and type(value) in (int, float) and abs(value) < _EXACT and declared(value) == value:
            value = declared(value)
        if value is not given:
            object.__setattr__(settings, field.name, value)  # frozen ones too


def is_no_file(place: str) -> str | None:
    """Why a file cannot be read, in words for the user; None: it can."""
    return None if Path(place).is_file() else f"must be a file that is there, not {place!r}"


def cannot_be_folder(place: str) -> str | None:
    """Why files cannot be written into a folder, which need not be there yet, in words for the user; None: they can."""
    path = Path(place)
    try:
        there = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    except OSError as error:
        return f"{place}: {error.strerror}"
    if not there.is_dir():
        return f"{place}: not a folder" if there == path else f"{place}: {there} is not a folder"
    if not os.access(there, os.W_OK | os.X_OK):
        return f"{place}: nothing may be written into {there}"
    return None


def cannot_be_file(place: str) -> str | None:
    """Why a file cannot be written, in words for the user; None: it can. A dash is standard output."""
    if place in ("", "-"):
        return None if place else "must be a file, not ''"
    path = Path(place)
    try:
        if path.is_dir():
            return f"{place}: is a folder"
        if path.exists():
            return None if os.access(path, os.W_OK) else f"{place}: may not be written"
        if not path.absolute().parent.is_dir():
            return f"{place}: there is no folder {path.parent}"
    except OSError as error:
        return f"{place}: {error.strerror}"
    return (
        None if os.access(path.absolute().parent, os.W_OK | os.X_OK) else f"{place}: nothing may be written into its folder"
    )
