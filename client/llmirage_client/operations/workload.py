"""Load workload files, presets and loads of lengths."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeVar

from llmirage_client.load.history import in_context_mode
from llmirage_client.settings.endpoint import RequestSettings
from llmirage_client.settings.load import TrafficSettings
from llmirage_client.settings.scenario import Resolved, resolved
from llmirage_client.settings.workload import FileSettings, LengthSettings, WorkloadSettings
from llmirage_client.targets.endpoints.chat import CompletionsEndpoint
from llmirage_client.workload.format import parse_pairs
from llmirage_client.workload.registry import ALIASES, detect, load
from llmirage_client.workload.session import Problem, Workload, WorkloadError
from llmirage_client.workload.synthesis.generated import is_preset, preset_workload
from llmirage_client.workload.synthetic_load import synthetic_load, with_priorities
from llmirage_shared.prompt_encoder import ChatTemplateError
from llmirage_shared.settings import ConfigError, InputRefused, settings_of
from llmirage_shared.tokens import TokenizerError

T = TypeVar("T", bound=TrafficSettings)
_OF_FORMATS = {
    name: about.option or name
    for name, about in settings_of(WorkloadSettings).items()
    if name not in ("format", "format_option", "min_turns", "num_dataset_entries")
}


@contextmanager
def readable() -> Iterator[None]:
    """Turn errors of a workload or its tokenizer into InputRefused."""
    try:
        yield
    except (WorkloadError, TokenizerError) as error:
        raise InputRefused([str(error)]) from None


def load_workload(
    file: str | Workload,
    settings: FileSettings,
    conversations: int | None = None,
    *,
    tokenizer: str | None = None,
    seed: int | None = None,
    on_demand: bool = False,
) -> Workload:
    """Load a file, or make the workload of a preset of `generate`; return a loaded workload as it is.

    conversations: the number that the run takes, if it is known. tokenizer, seed: of formats that count or draw. on_demand:
    much data may be read as the run comes to it.
    Raises WorkloadError, TokenizerError, ConfigError.
    """
    if isinstance(file, Workload):
        return file
    try:
        options = parse_pairs(settings.format_option)
    except ValueError as error:
        raise ConfigError([f"Invalid value for --format-option: {error}"]) from None
    given = {option: getattr(settings, name, None) for name, option in _OF_FORMATS.items()}
    options |= {option: value for option, value in given.items() if value is not None}
    if is_preset(file):
        return preset_workload(file, conversations, seed or 0, tokenizer, list(options.items()))
    offered = {"min_turns": settings.min_turns, "tokenizer": tokenizer, "seed": seed, "conversations": conversations}
    offered["on_demand"] = on_demand
    most = getattr(settings, "num_dataset_entries", None)
    if most is not None:
        offered["traces"] = most + (settings.dataset_offset or 0)
    loaded = load(file, settings.format, options, offered)
    kept = loaded.roots[: len(loaded.roots) - loaded.skipped][:most]
    return loaded if most is None else replace(loaded, roots=kept, skipped=0)


def resolved_scenario(file: str | Workload | None, settings: T, *, submission: bool = True) -> Resolved[T]:
    """Return the settings as their scenario completes them. submission: see resolved.

    Raises WorkloadError, ScenarioRefused.
    """
    if settings.scenario is None:
        return Resolved(settings)
    file = file or settings.input_file
    if file is None or isinstance(file, Workload):
        format = None if file is None else file.format
        if file is not None and file.frees_early:
            raise ConfigError([f"{settings.scenario}: load the trace with the format option recorded_order=true"])
    else:
        format = "generated" if is_preset(file) else ALIASES.get(settings.format or "", settings.format) or detect(file)
    return resolved(settings, format, submission=submission)


def load_of(
    file: str | Workload | None, settings: TrafficSettings, conversations: int | None, *, on_demand: bool = False
) -> Workload:
    """Load the file, or make a load of lengths. conversations, on_demand: see load_workload.

    Raises WorkloadError, ConfigError.
    """
    workload = _load_of(file, settings, conversations, on_demand and settings.priorities is None)
    if settings.priorities is None:
        return workload
    return with_priorities(workload, settings.priorities, settings.random_seed or 0)


def _load_of(file: str | Workload | None, settings: TrafficSettings, conversations: int | None, on_demand: bool) -> Workload:
    if file is not None and settings.input_file is not None:
        raise ConfigError(["give WORKLOAD or --input-file, not both"])
    file = file or settings.input_file
    if problem := without_file_problem(file, settings):
        raise ConfigError([problem])
    if file is not None:
        return load_workload(
            file, settings, conversations, tokenizer=settings.tokenizer, seed=settings.random_seed, on_demand=on_demand
        )
    counts = settings.request_count or ()
    requests = settings.requests or sum(counts) or None
    each = settings.requests or len(counts) <= 1  # of a sweep's loads
    loads = max(len(settings.concurrency or ()), len(settings.request_rate or ()), 1)
    return synthetic_load(
        spread(settings.isl, settings.isl_stddev),
        spread(settings.osl, settings.osl_stddev),
        requests or 1000,
        turns=settings.turns,
        wait_s=settings.think_time,
        shared_prefix_tokens=settings.shared_prefix,
        sessions=None if requests else conversations,
        loads=loads if each and (requests or conversations is None) else 1,
        seed=settings.random_seed or 0,
    )


def spread(length: float | str | None, stddev: float) -> float | str:
    """Return the length with its deviation, as the text of a distribution."""
    assert length is not None  # without_file_problem
    return f"normal(mean={length}, std={stddev:g}, min=1)" if stddev else length


def without_file_problem(file: str | Workload | None, settings: LengthSettings) -> str | None:
    """Say what is wrong with a load that is neither a file nor lengths, or both; None: nothing."""
    lengths = {name: about.default for name, about in settings_of(LengthSettings).items() if name != "input_file"}
    given = [
        name
        for name, unset in lengths.items()
        if getattr(settings, name) is not None and str(getattr(settings, name)) != str(unset)
    ]
    if file is not None:
        flag = f"--{given[0].replace('_', '-')}" if given else ""
        return f"{flag} describes a load without a file: give it or WORKLOAD, not both" if given else None
    if not {"isl", "osl"} <= set(given):
        return "give a workload (a file, bundled:NAME or a preset), or --isl and --osl"
    if "think_time" in given and "turns" not in given:
        return "--think-time is the pause between requests of a session: give --turns, which is 1"
    return None


def for_api(workload: Workload, settings: RequestSettings) -> Workload:
    """Return the workload in the context mode asked for. Raises ConfigError where the API cannot represent it."""
    mode, api = settings.context_mode, settings.endpoint_type
    if api == "raw" and any(session.mode != "verbatim" for session in workload.sessions.values()):
        raise ConfigError(
            [
                f"--endpoint-type raw sends whole request bodies, which a {workload.format} file does not have: take chat, "
                "completions, responses or messages; --endpoint-path goes with each of them"
            ]
        )
    if api == "completions":
        _check_prompts(workload)
    if mode is None:
        return workload
    try:
        return in_context_mode(workload, mode)
    except ValueError as error:
        raise ConfigError([f"context_mode {mode}: {error}"]) from None


def _check_prompts(workload: Workload) -> None:
    """Raise ConfigError that names every turn which no prompt of text can represent."""
    endpoint = CompletionsEndpoint()
    problems = []
    for session in workload.sessions.values():
        for index, turn in enumerate(session.turns):
            try:
                endpoint.items(turn.messages)
            except ChatTemplateError as error:
                problems.append(Problem(str(error), session.line, f"turns.{index}.messages"))
    if problems:
        raise ConfigError([str(WorkloadError(workload.path, problems))])
