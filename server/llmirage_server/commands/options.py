"""The flags of `serve`: one for each setting, made from what the setting says of itself, under headings in the help."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import click

from llmirage_server.config import ABOUT, ALIASES, DEFAULTS, FIELD_TYPES
from llmirage_server.config.instance import GROUPS
from llmirage_server.config.names import plain_types

F = TypeVar("F", bound=Callable[..., Any])

_SHOWN_ALIASES = ("tp", "pp", "dp", "ep", "ttft", "itl")  # the others work, but would make the help unreadable


class Speed(click.ParamType[float]):
    """A factor above 0, or `max`."""

    name = "N|max"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if value == "max":
            return math.inf
        try:
            speed = float(value)
        except ValueError:
            speed = 0.0
        if not 0 < speed < math.inf:
            self.fail(f"{value!r} is neither a number above 0 nor max", param, ctx)
        return speed


class SettingOption(click.Option):
    """An option under a heading. It accepts all names of its setting and shows the usual ones."""

    def __init__(self, *args: Any, group: str = "", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.group = group

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        names = self.opts, self.secondary_opts
        self.opts, self.secondary_opts = [name for name in self.opts if _is_shown(name)], self.secondary_opts[:1]
        try:
            return super().get_help_record(ctx)
        finally:
            self.opts, self.secondary_opts = names


def _is_shown(flag: str) -> bool:
    name = flag.lstrip("-")
    return name.replace("-", "_") not in ALIASES or name in _SHOWN_ALIASES


class GroupedCommand(click.Command):
    """A command whose help lists the options by their groups."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                groups.setdefault(getattr(param, "group", "Server"), []).append(record)
        order = ("Server", *GROUPS)
        for group, records in sorted(groups.items(), key=lambda item: order.index(item[0])):
            with formatter.section(group):
                formatter.write_dl(records, col_max=36)


def setting_options(command: F) -> F:
    """Add an option for every setting. Its own default is None: the cluster file or the class decides."""
    for name in reversed(list(DEFAULTS)):
        command = setting_option(name)(command)
    return command


def setting_option(name: str) -> Callable[[F], F]:
    """The option of one setting."""
    about, default = ABOUT[name], DEFAULTS[name]
    kinds = plain_types(FIELD_TYPES[name])
    main = name.replace("_", "-")
    aliases = [alias.replace("_", "-") for alias in about.aliases]
    if bool in kinds:
        shown = about.unset or ("on" if default else "off")
        names = [f"--{flag}/--no-{flag}" for flag in (main, *aliases)]
        return click.option(
            *names, name, cls=SettingOption, group=about.group, default=None, help=f"{about.help}  [default: {shown}]"
        )
    flags = [f"--{alias}" for alias in aliases if alias in _SHOWN_ALIASES]
    flags += [f"--{main}", *(f"--{alias}" for alias in aliases if alias not in _SHOWN_ALIASES)]
    kind: Any = click.Choice(about.choices) if about.choices else int if int in kinds else float if float in kinds else str
    shown = about.unset or (f"{default:g}" if isinstance(default, float) else str(default))
    return click.option(
        *flags,
        name,
        cls=SettingOption,
        group=about.group,
        default=None,
        type=Speed() if name == "speed" else kind,
        metavar=about.metavar,
        multiple=isinstance(default, tuple),
        help=f"{about.help}  [default: {shown}]",
    )
