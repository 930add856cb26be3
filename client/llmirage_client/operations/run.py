"""A workload against an endpoint: one run, a sweep over several loads, or the search for the highest load."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from llmirage_client.load.options import RunOptions
from llmirage_client.measure.slo import SloError, parse_slo, verdicts_json
from llmirage_client.operations.execute_points import (
    Loads,
    Point,
    Search,
    Steps,
    by_load,
    search_steps,
    shared_out,
    sweep_steps,
)
from llmirage_client.operations.one_run import OneRun, Outcome, RunPlan, RunWatch, Spread, most_workers
from llmirage_client.operations.workload import for_api, load_of, readable, resolved_scenario
from llmirage_client.settings import Variable
from llmirage_client.settings.endpoint import normalise_url
from llmirage_client.settings.run import SEVERAL, RunSettings, run_options, shown_settings, with_distinct_conversations
from llmirage_client.settings.workload import LengthSettings
from llmirage_client.simulate.summary import figures_of_run
from llmirage_client.targets.endpoint import EndpointSettings, Tls
from llmirage_client.targets.httpx_transport import proxy_of
from llmirage_client.workload.session import Workload
from llmirage_client.workload.synthesis.generated import is_preset
from llmirage_shared.settings import ConfigError, settings_of

_THIS_MACHINE = ("localhost", "127.0.0.1", "::1")


def endpoint_of(settings: RunSettings) -> EndpointSettings:
    """Return the endpoint of the settings. Raises ConfigError for one that cannot be."""
    mode, api = settings.context_mode, settings.endpoint_type
    certificate, key = settings.tls_cert, settings.tls_key
    try:
        urls = tuple(normalise_url(url) for url in settings.url)
        proxies = {url: proxy for url in urls if (proxy := proxy_of(url)) is not None}
        tls = Tls(settings.tls_ca, settings.tls_insecure, certificate, key)
        if certificate or not key:  # else the contradiction is told with all others
            tls.context()
    except ValueError as error:
        raise ConfigError([str(error)]) from None
    return EndpointSettings(
        urls=urls,
        api_key=settings.api_key or _key_of_environment(urls, proxies, api == "messages"),
        api=api or "chat",
        headers=settings.headers,
        timeout_s=settings.request_timeout_seconds,
        connect_timeout_s=settings.connect_timeout_seconds,
        most_reply_bytes=settings.max_reply_mib << 20,
        retries=settings.retries,
        url_strategy=settings.url_strategy or "sticky",
        preflight=settings.preflight,
        keeps_conversations=mode == "server_conversation",
        tls=tls,
        http2=settings.http2,
        proxies=proxies,
    )


def _key_of_environment(urls: tuple[str, ...], proxied: Collection[str], messages: bool) -> str | None:
    """Return the environment's key where nobody can read it on the way."""
    here = {url for url in urls if urlsplit(url).hostname in _THIS_MACHINE and url not in proxied}
    private = all(url.startswith("https:") or url in here for url in urls)
    return os.environ.get("ANTHROPIC_API_KEY" if messages else "OPENAI_API_KEY") if private else None


@dataclass(frozen=True, slots=True)
class RequestedRun(RunPlan):
    """A run that can be made. search, points: several loads, if asked for."""

    search: Search | None
    points: list[Point]

    def one_run(self, folder: Callable[[RunOptions], Path], watch: RunWatch) -> OneRun:
        """Return the run of a single load."""
        options = with_distinct_conversations(self.workload, self.options)
        shown = {**self.shown, "concurrency": options.concurrency, "fixed_schedule": options.fixed_schedule}
        return OneRun(replace(self, options=options, shown=shown), folder, watch)


def requested_run(file: str | Workload | None, settings: RunSettings) -> RequestedRun:
    """Work out the run, or the runs, that the settings ask for. Raises ConfigError."""
    with readable():
        scenario = resolved_scenario(file, settings)
        settings = scenario.settings
        endpoint = endpoint_of(settings)
        if settings.random_seed is None and (settings.isl is not None or (isinstance(file, str) and is_preset(file))):
            settings = replace(settings, random_seed=int.from_bytes(os.urandom(6)))
        workload = load_of(file, settings, conversations_wanted(settings))
    options = run_options(workload, settings, **scenario.fields)
    workload = for_api(workload, settings)
    most, why = most_workers(workload, with_distinct_conversations(workload, options))
    if options.share.of > most:
        raise ConfigError([f"share {settings.share}: {why} gives only {most:,} of them something to do"])
    spread = None
    if settings.executor is not None:
        spread = Spread(settings.executor, settings.workers, settings.ray_address)
    search, points = search_of(settings), sweep_points(workload, settings)
    if search:
        if search.variable == "request_rate":
            settings = replace(settings, request_rate=(search.start,), fixed_schedule=False)
        else:
            settings = replace(settings, concurrency=(int(search.start),), fixed_schedule=False)
        options = run_options(workload, settings, seed=options.seed)
    of_lengths = () if settings.isl else settings_of(LengthSettings)
    shown = {name: value for name, value in shown_settings(settings).items() if name not in of_lengths}
    return RequestedRun(workload, options, endpoint, shown, spread, search, points)


def steps_of(
    requested: RequestedRun, settings: RunSettings, watch: RunWatch, tell: Callable[[str], None], note: Callable[[str], None]
) -> Steps:
    """Return the steps of a run of several loads. tell: gets lines of what was found; note: of progress."""
    whole = Loads(requested, settings.artifact_dir, watch, tell, note, settings.sleep_interval)
    if requested.search:
        return search_steps(whole, requested.search)
    return sweep_steps(whole, requested.points, settings.stop_at_saturation)


def run_json(outcome: Outcome) -> dict[str, Any]:
    """Return the figures of --json, by the names that simulations have, too."""
    slo = {"slo": verdicts_json(outcome.verdicts)} if outcome.verdicts else {}
    submission = outcome.result.submission
    scenario = {} if submission is None else {"metadata": submission.metadata()}
    cache = {} if outcome.result.cache is None else {"cache": outcome.result.cache.as_dict()}
    return slo | figures_of_run(outcome.metrics) | scenario | cache | {"notes": list(outcome.result.notes)}


_PROBES = 16  # about as many as a search takes
_SEARCHED = 16_384  # conversations for a search, when nothing says how many a probe takes
_VARIABLES: tuple[Variable, ...] = ("concurrency", "request_rate")


def sweep_points(workload: Workload, settings: RunSettings) -> list[Point]:
    """Return the points of a sweep; empty when no setting has several numbers."""
    lists = {name: getattr(settings, name) or () for name in SEVERAL}
    varied: list[Variable] = [name for name in _VARIABLES if len(lists[name]) > 1]
    if not varied:
        return []
    variable, loads = varied[0], lists[varied[0]]
    conversations, requests = (
        lists[name] * len(loads) if len(lists[name]) == 1 else lists[name] or (None,) * len(loads)
        for name in ("num_conversations", "request_count")
    )
    limited = not (settings.duration is settings.benchmark_duration is None and settings.request_count is None)
    if not lists["num_conversations"] and not limited:
        of_lengths = settings.isl is not None
        conversations = (
            by_load(workload, len(loads)) if of_lengths else (shared_out(workload, loads, variable),) * len(loads)
        )
    rows = zip(loads, conversations, requests, strict=True)
    return [Point(variable, load, number, own, sent) for number, (load, own, sent) in enumerate(rows, 1)]


def search_of(settings: RunSettings) -> Search | None:
    """Return the search of --find-max; None without it. Raises ConfigError."""
    if settings.find_max is None:
        return None
    slo = _slo_text(settings.find_max)
    try:
        objectives = parse_slo(slo)
    except SloError as error:
        raise ConfigError(f"--find-max: {problem}" for problem in error.problems) from None
    word = settings.find_max_variable
    by_rate = settings.request_rate is not None if word is None else word in ("rate", "request_rate")
    variable: Variable = "request_rate" if by_rate else "concurrency"
    given = settings.request_rate if by_rate else settings.concurrency
    start = float((given or (settings.find_max_lower_bound or 1,))[0])
    lower = settings.find_max_lower_bound or (start / 100 if by_rate else 1)
    upper = settings.find_max_upper_bound
    if not by_rate:
        start, lower, upper = int(start), int(max(lower, 1)), int(upper)
    if not lower <= start <= upper:
        swept = f"--{variable.replace('_', '-')} {start:g}"
        raise ConfigError([f"--find-max starts at {swept}, which is not within its bounds, {lower:g} to {upper:g}"])
    return Search(slo, objectives, variable, start, lower, upper, settings.find_max_precision)


def _slo_text(text: str) -> str:
    """Return the expression; evalscope's JSON, [{"avg_ttft": "<=2s"}], is turned into one."""
    if text.lstrip()[:1] not in ("[", "{"):
        return text
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ConfigError([f"--sla-params: not JSON: {error}"]) from None
    groups = value if isinstance(value, list) else [value]
    if len(groups) != 1 or not isinstance(groups[0], dict):
        raise ConfigError(["--sla-params: only one object of objectives is supported"])
    return ",".join(f"{name}{limit}" for name, limit in groups[0].items())


def conversations_wanted(settings: RunSettings) -> int | None:
    """Return the conversations that all points and the warm-up take, for workloads that draw as many as are wanted."""
    counts = settings.num_conversations
    if counts is None:
        return _SEARCHED if settings.find_max else settings.agents
    points = max(len(settings.concurrency or ()), len(settings.request_rate or ())) if len(counts) == 1 else 1
    warm_up = settings.num_warmup_sessions or 0
    probes = _PROBES if settings.find_max else max(points, 1)
    return int(sum(counts)) * probes + (int(warm_up) if warm_up >= 1 else 0)
