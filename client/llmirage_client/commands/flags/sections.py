"""Options under headings in a command's help."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import click

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]
_REST = "Options"


class Flag(click.Option):
    """An option under a heading."""

    def __init__(self, *args: Any, section: str = _REST, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.section = section

    def type_cast_value(self, ctx: click.Context, value: Any) -> Any:
        """Refuses nan, which click finds within every range, and which no deadline ever reaches."""
        found = super().type_cast_value(ctx, value)
        if isinstance(found, float) and math.isnan(found):
            raise click.BadParameter("nan is not a number", ctx=ctx, param=self)
        return found


def flag(section: str, *names: str, **settings: Any) -> Decorator:
    return click.option(*names, cls=Flag, section=section, **settings)


def together(*decorators: Decorator) -> Decorator:
    """Applies them so that the help lists their options in this order."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return decorate


class SectionedCommand(click.Command):
    """A command whose help lists its options by their headings, in the order in which these first appear."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for option in self.get_params(ctx):
            record = option.get_help_record(ctx) if isinstance(option, click.Option) else None
            if record is not None:
                sections.setdefault(getattr(option, "section", _REST), []).append(record)
        for section, records in sections.items():
            with formatter.section(section):
                formatter.write_dl(records, col_max=36)
