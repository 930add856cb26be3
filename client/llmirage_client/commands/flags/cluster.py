"""Options that say which cluster is simulated: the settings of `llmirage serve`, by the same names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from llmirage_client.commands.flags.sections import Decorator, flag, together

if TYPE_CHECKING:
    from llmirage_server.config import ClusterConfig

# What a server shows and a simulation does not have, or has under another name.
_NOT_HERE = (
    "speed",
    "accept_models",
    "tokenizer",
    "unknown_fields",
    "state",
    "seed",
    "api_key",
    "rate_limit",
    "token_limit",
)


def cluster_flags(command: Any) -> Any:
    """--cluster FILE and an option for every setting that matters to a simulation."""
    return cluster_flags_but()(command)


def cluster_flags_but(*left_out: str) -> Decorator:
    """The same without some settings, by name."""
    return lambda command: _with_options(command, left_out)


def _with_options(command: Any, left_out: tuple[str, ...]) -> Any:
    from llmirage_server.commands.options import setting_option
    from llmirage_server.config import DEFAULTS

    options: list[Decorator] = [
        flag(
            "Cluster",
            "--cluster",
            "cluster_file",
            metavar="FILE",
            help="YAML file with settings and pools, or bundled:NAME; flags win (docs/cluster-files.md).",
        )
    ]
    options += [setting_option(name) for name in DEFAULTS if name not in (*_NOT_HERE, *left_out)]
    command = together(*options)(command)
    for option in command.__click_params__:
        if (group := getattr(option, "group", None)) is not None:
            option.section = group
    return command


def cluster_config(settings: dict[str, Any], seed: int) -> ClusterConfig:
    """The cluster that was asked for; `seed` is that of the simulation. Raises click.UsageError with all problems."""
    from llmirage_server.config import DEFAULTS, ConfigError
    from llmirage_server.config.file import make_config

    flags = {name: settings.get(name) for name in DEFAULTS if name not in _NOT_HERE}
    flags["tokenizer"] = settings.get("tokenizer")
    try:
        return make_config(settings["cluster_file"], flags | {"seed": seed})
    except ConfigError as error:
        raise click.UsageError("\n".join(error.problems)) from None
