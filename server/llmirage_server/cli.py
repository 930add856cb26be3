"""`llmirage serve`: flags and a cluster file become a configuration, the configuration a server."""

from __future__ import annotations

import gc
import logging
import math
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from llmirage_server.config import CHOICES, DEFAULTS, FIELD_TYPES, ClusterConfig, ConfigError

F = TypeVar("F", bound=Callable[..., Any])


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


def _setting(name: str, *flags: str, help: str, type: Any = None, metavar: str | None = None) -> Callable[[F], F]:
    """An option for one field of ClusterConfig. Its own default is None: the cluster file or the class decides."""
    default = DEFAULTS[name]
    if FIELD_TYPES[name] is bool:
        flag = name.replace("_", "-")
        help += f"  [default: {'on' if default else 'off'}]"
        return click.option(f"--{flag}/--no-{flag}", name, default=None, help=help)
    if name in CHOICES:
        type = click.Choice(CHOICES[name])
    if default is not None and default != ():
        help += f"  [default: {default:g}]" if isinstance(default, float) else f"  [default: {default}]"
    multiple = name == "served_model_name"
    names = flags or (f"--{name.replace('_', '-')}",)
    type = type or {int: int, float: float}.get(FIELD_TYPES[name], str)
    return click.option(*names, name, default=None, type=type, metavar=metavar, multiple=multiple, help=help)


_SETTINGS = (
    _setting("model", help="Model to imitate; `llmirage catalog models` lists them.", metavar="NAME"),
    _setting("gpu", help="GPU to imitate; `llmirage catalog gpus` lists them.", metavar="NAME"),
    _setting("instances", help="Replicas of the model, each on its own GPUs.", metavar="N"),
    _setting("tensor_parallel_size", "--tp", "--tensor-parallel-size", help="GPUs of one instance.", metavar="N"),
    _setting(
        "expert_parallel_size",
        "--ep",
        "--expert-parallel-size",
        help="Ranks that whole experts are spread over.",
        metavar="N",
    ),
    _setting("weights", help="Format of the weights: auto, bf16, fp8, nvfp4, mxfp4 or int4.", metavar="FORMAT"),
    _setting("kv_cache_dtype", help="Format of the KV cache: bf16 or fp8.", metavar="FORMAT"),
    _setting("gpu_memory_utilization", help="Share of a GPU's memory that may be used.", metavar="SHARE"),
    _setting("max_num_seqs", help="Sequences that an instance runs at once.", metavar="N"),
    _setting("max_num_batched_tokens", help="Tokens of one engine step.", metavar="N"),
    _setting(
        "max_model_len",
        help="Longest request in tokens.  [default: what architecture and memory allow]",
        type=int,
        metavar="N",
    ),
    _setting("block_size", "--block-size", "--page-size", help="Tokens of a KV block.", metavar="N"),
    _setting("enable_prefix_caching", help="Keep the KV of finished prefixes for requests that share them."),
    _setting("enable_chunked_prefill", help="Split long prompts over several steps."),
    _setting("router", help="Which instance a request goes to."),
    _setting("speed", help="Run the cluster N times faster than life; max never waits.", type=Speed()),
    _setting("ttft_ms", "--ttft", help="Fixed time to the first token, instead of the physics.", type=float, metavar="MS"),
    _setting("itl_ms", "--itl", help="Fixed time between tokens, instead of the physics.", type=float, metavar="MS"),
    _setting("served_model_name", help="Name shown to clients; may be repeated.  [default: the model's]", metavar="NAME"),
    _setting("accept_models", help="Names that requests may use: those served, all of the catalogue, or any."),
    _setting(
        "tokenizer",
        help="Folder or hub name of a Hugging Face tokenizer.  [default: the one in the package]",
        metavar="NAME",
    ),
    _setting("replies", help="What is said: prose, or the user's own words."),
    _setting("natural_stop", help="Let replies end before max_tokens, as models do; off: exactly max_tokens."),
    _setting("reply_tokens", help="Median length of a reply that ends by itself, in tokens.", metavar="N"),
    _setting("seed", help="The same seed gives the same replies and the same routing.", metavar="N"),
)


def _with_settings(command: F) -> F:
    for option in reversed(_SETTINGS):
        command = option(command)
    return command


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option(
    "--cluster", "cluster_file", metavar="FILE", help="YAML file with the settings below (max_num_seqs: 64); flags win."
)
@_with_settings
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", "-p", default=8000, show_default=True, type=click.IntRange(0, 65535), help="0 takes any free port.")
@click.option("--access-log", is_flag=True, help="Log each request.")
def serve(cluster_file: str | None, host: str, port: int, access_log: bool, **flags: Any) -> None:
    """Start the fake cluster behind an OpenAI-compatible API.

    Without arguments: Qwen3-30B-A3B on two instances of one H100 each, at the speed those would have.
    """
    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.WARNING)
    try:
        config = make_config(cluster_file, flags)
        sys.exit(_serve(config, host, port, access_log))
    except ConfigError as error:
        _refuse(error.problems)


def make_config(cluster_file: str | None, flags: dict[str, Any]) -> ClusterConfig:
    """The configuration of a file (or none) and of the given flags, which win. Raises ConfigError with all problems."""
    problems: list[str] = []
    settings: dict[str, Any] = {}
    if cluster_file is not None:
        from llmirage_server.config_file import read_cluster_file

        try:
            settings = read_cluster_file(cluster_file)
        except ConfigError as error:
            problems += error.problems
    given = {name: value for name, value in flags.items() if value is not None and value != ()}
    try:
        config = ClusterConfig(**(settings | given))
    except ConfigError as error:
        problems += error.problems
    if problems:
        raise ConfigError(problems)
    return config


def _serve(config: ClusterConfig, host: str, port: int, access_log: bool) -> int:
    from llmirage_server.live import PortInUseError, bind

    try:
        bound = bind(host, port)  # first of all, so that a port in use is told at once
    except PortInUseError as error:
        click.echo(f"llmirage serve: {error}", err=True)
        return 1
    from llmirage_server.app import create_app
    from llmirage_server.banner import banner, farewell
    from llmirage_server.live import LiveServer, base_url

    with bound:
        app = create_app(config)
        if config.tokenizer is not None:
            app.service.text.load()  # a tokenizer that cannot be loaded is a configuration error, told before the start
        if access_log:
            logging.getLogger("uvicorn.access").setLevel(logging.INFO)
        # Fewer collections: what requests leave behind is small, and each pass costs time that tokens wait.
        gc.set_threshold(20_000, 20, 50)
        server = LiveServer(app, lambda: click.echo(banner(app, base_url(bound))), access_log)
        server.run(sockets=[bound])
    if summary := farewell(app.driver.pacing.summary()):
        click.echo(summary)
    return 0


def _refuse(problems: Sequence[str]) -> None:
    for problem in problems:
        click.echo(f"llmirage serve: {problem}", err=True)
    sys.exit(2)
