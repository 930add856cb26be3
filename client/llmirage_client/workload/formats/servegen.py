"""servegen: Alibaba's ServeGen pools: clients, each with its rate and distributions of lengths over a day, drawn from here.

A folder of pairs chunk-N-trace.csv and chunk-N-dataset.json, or one of these files with its other half beside it. As
ServeGen's own generator does: in each window a client has its rate's number of gaps of its family, scaled to fill the
window, and one number per request is put through the distributions of all lengths, so that they rise and fall together.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from llmirage_client.workload.checking import MOST_TOKENS, Checker
from llmirage_client.workload.files import JsonFault, fault, parse, placed, read_bytes, read_lines
from llmirage_client.workload.format import Format, Option
from llmirage_client.workload.hash_blocks import key_of, recorded_turn, unknown_prompt
from llmirage_client.workload.loading import cells_of
from llmirage_client.workload.schedule import scheduled
from llmirage_client.workload.session import Problem, Session, Tenant, Workload, WorkloadError

_TRACE, _DATASET = "trace.csv", "dataset.json"
_WINDOW_S = 600.0
_DATASET_WINDOW_S = 21_600.0
_FIELDS = ("input_tokens", "output_tokens")
_MOST_REQUESTS = 5_000_000


@dataclass(slots=True, frozen=True)
class _Window:
    start_s: float
    rate_per_s: float
    family: str
    shape: float


@dataclass(slots=True, frozen=True)
class _Lengths:
    """The values of a length and their cumulated probabilities, both ascending."""

    values: np.ndarray[tuple[int], np.dtype[np.int64]]
    up_to: np.ndarray[tuple[int], np.dtype[np.float64]]

    def at(self, numbers: np.ndarray[tuple[int], np.dtype[np.float64]]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        places = np.searchsorted(self.up_to, numbers * self.up_to[-1], side="left")
        found: np.ndarray[tuple[int], np.dtype[np.int64]] = self.values[np.minimum(places, len(self.values) - 1)]
        return found


@dataclass(slots=True, frozen=True)
class _Client:
    name: str
    windows: Sequence[_Window]
    lengths: Mapping[float, Mapping[str, _Lengths]]  # by start of the window

    def busy(self) -> Iterator[tuple[_Window, Mapping[str, _Lengths]]]:
        """Yield windows that have requests, with their lengths."""
        for window in self.windows:
            lengths = self.lengths.get(window.start_s // _DATASET_WINDOW_S * _DATASET_WINDOW_S)
            if lengths is not None and window.rate_per_s:
                yield window, lengths


def load(path: str, *, start: int = 0, duration: int = 600, rate: float | None = None, seed: int = 0) -> Workload:
    """Return requests of all clients of the pool from `start` seconds on.

    rate: of all together, a second; None: as recorded.

    Raises WorkloadError with all problems, each with file, line and field.
    """
    problems: list[Problem] = []
    clients = [client for pair in _pairs(path) if (client := _client(*pair, problems)) is not None]
    if problems:
        raise WorkloadError(path, problems)
    sessions = _drawn(path, clients, float(start), float(duration), rate, seed)
    if not sessions:
        told = f"no client sends a request between {start} s and {start + duration} s (options start, duration)"
        first_s = min((window.start_s for client in clients for window, _ in client.busy()), default=None)
        raise fault(path, told if first_s is None else f"{told}; windows with requests begin at {first_s:g} s")
    note = f"drawn with seed {seed}: {len(sessions):,} requests of {len(clients):,} clients in {duration:,} s"
    return scheduled(FORMAT.name, path, sessions, [note])


def _pairs(path: str) -> list[tuple[str, Path, Path]]:
    """Name, trace and data set of each client."""
    place = Path(path)
    if place.is_dir():
        traces = sorted(place.rglob(f"[!.]*{_TRACE}"))
        if not traces:
            raise fault(path, f"is a directory without files *{_TRACE}")
    elif place.name.endswith(_DATASET):
        traces = [place.with_name(place.name.removesuffix(_DATASET) + _TRACE)]
    else:
        traces = [place]
    found = []
    for trace in traces:
        if not trace.name.endswith(_TRACE):
            raise fault(path, f"must be named as one of the two files of a client, NAME-{_TRACE} and NAME-{_DATASET}")
        name = trace.name.removesuffix(_TRACE).rstrip("-_")
        dataset = trace.with_name(trace.name.removesuffix(_TRACE) + _DATASET)
        for file in (trace, dataset):
            if not file.is_file():
                raise fault(path, f"a client of a pool is two files, and {file.name} is missing beside the other")
        found.append((name, trace, dataset))
    return found


def _client(name: str, trace: Path, dataset: Path, problems: list[Problem]) -> _Client | None:
    windows = _windows(trace, problems)
    lengths = _lengths_of(dataset, problems)
    return None if problems else _Client(name, windows, lengths)


def _windows(file: Path, problems: list[Problem]) -> list[_Window]:
    windows = []
    for number, line in enumerate(read_lines(str(file)), start=1):
        cells = cells_of(line.decode("utf-8", "replace"))
        if not any(cells):
            continue
        check = Checker(number, file.name)
        if len(cells) < 6:
            check.fail(None, f"a window has 6 cells (start, rate, CV, family, shape, scale), not {len(cells)}")
        else:
            start_s = check.number(cells[0], "start")
            rate = check.number(cells[1], "rate")
            shape = check.number(cells[4] or "0", "shape")
            if cells[3] not in ("", "Gamma", "Weibull"):
                check.fail("family", "Input should be Gamma, Weibull or empty")
            elif rate and cells[3] and not shape and not check.problems:
                check.fail("shape", "Input should be greater than 0")
            if start_s is not None and rate is not None and shape is not None:
                windows.append(_Window(start_s, rate, cells[3], shape))
        problems += check.problems
    return windows


def _lengths_of(file: Path, problems: list[Problem]) -> dict[float, dict[str, _Lengths]]:
    data = read_bytes(str(file))
    try:
        document = parse(data)
    except JsonFault as error:
        problems.append(Problem(f"invalid JSON: {error}", error.line, file=file.name))
        return {}
    check = Checker(None, file.name)
    found: dict[float, dict[str, _Lengths]] = {}
    for key, entry in (check.mapping(document, None) or {}).items():
        start_s = check.number(key, key)
        fields = check.mapping(entry, key) or {}
        read = {name: _distribution(fields.get(name), f"{key}.{name}", check) for name in _FIELDS}
        kept = {name: lengths for name, lengths in read.items() if lengths is not None}
        if start_s is not None and len(kept) == len(_FIELDS):
            found[start_s] = kept
    problems += placed(check.problems, data)
    return found


def _distribution(value: Any, field: str, check: Checker) -> _Lengths | None:
    """Read lengths from a text of a Python dict, length to probability; None for an empty one, a window without requests."""
    if isinstance(value, str):
        try:
            value = ast.literal_eval(value)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            check.fail(field, "Input should be the text of a Python dict, length to probability")
            return None
    if value is None:
        check.required({}, field)
        return None
    if not isinstance(value, dict):
        check.mapping(value, field)
        return None
    if not value:
        return None
    pairs = []
    for length, share in value.items():
        tokens = check.number(length, field, maximum=MOST_TOKENS)
        weight = check.number(share, field)
        if tokens is None or weight is None:
            return None
        pairs.append((max(int(tokens), 1), weight))
    pairs.sort()
    up_to = np.cumsum([weight for _, weight in pairs])
    if not up_to[-1] > 0:
        check.fail(field, "has no probability above 0")
        return None
    return _Lengths(np.array([tokens for tokens, _ in pairs], dtype=np.int64), up_to)


def _drawn(
    path: str, clients: Sequence[_Client], start_s: float, duration_s: float, rate: float | None, seed: int
) -> list[Session]:
    end_s = start_s + duration_s
    recorded = sum(
        window.rate_per_s * _overlap_s(window, start_s, end_s) for client in clients for window in client.windows
    ) / max(duration_s, 1e-9)
    scale = 1.0 if rate is None else rate / recorded if recorded else 0.0
    if scale * recorded * duration_s > _MOST_REQUESTS:
        raise fault(path, f"these are {scale * recorded * duration_s:,.0f} requests: take fewer (options rate, duration)")
    sessions = []
    for client in clients:
        for window, lengths in client.busy():
            if not _overlap_s(window, start_s, end_s):
                continue
            place = key_of("servegen", client.name, window.start_s, seed)
            draw = np.random.default_rng(place)
            count = math.ceil(window.rate_per_s * scale * _WINDOW_S)
            gaps = _gaps(window, count, draw)
            times = window.start_s + np.cumsum(gaps * (_WINDOW_S / gaps.sum()))
            numbers = draw.random(count)
            drawn = zip(times.tolist(), *(lengths[name].at(numbers).tolist() for name in _FIELDS), strict=True)
            for number, (at_s, tokens, output) in enumerate(drawn):
                if start_s <= at_s < end_s:
                    turn = recorded_turn(unknown_prompt(tokens, place + number), output, at_s)
                    name = f"{client.name}_{window.start_s:g}_{number}"
                    sessions.append(Session(name, (turn,), "isolated", at_s, tenant=Tenant(client.name)))
    return sessions


def _overlap_s(window: _Window, start_s: float, end_s: float) -> float:
    return max(min(window.start_s + _WINDOW_S, end_s) - max(window.start_s, start_s), 0.0)


def _gaps(window: _Window, count: int, draw: np.random.Generator) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Draw gaps in any unit; they are scaled to fill their window."""
    match window.family:
        case "Weibull":
            gaps = draw.weibull(window.shape, count)
        case "Gamma":
            gaps = draw.gamma(window.shape, 1.0, count)
        case _:
            gaps = np.ones(count)
    return gaps if gaps.sum() > 0 else np.ones(count)


def recognises_header(line: str) -> bool:
    """Return whether a first line is this format's header."""
    cells = cells_of(line)
    return len(cells) == 6 and cells[0].isdigit() and cells[3] in ("", "Gamma", "Weibull")


FORMAT = Format(
    name="servegen",
    summary="ServeGen's pools of clients: rates, arrival families and lengths over a day, from which requests are drawn",
    needs="a folder of pairs chunk-N-trace.csv and chunk-N-dataset.json",
    recognises=lambda keys: any(key.isdigit() for key in keys) and all(key.partition(".")[0].isdigit() for key in keys),
    load=load,
    order=90,
    options=(
        Option("start", "integer", "second of the day from which on requests are drawn", 0),
        Option("duration", "integer", "for how many seconds", 600, minimum=1),
        Option("rate", "number", "requests a second of all clients together; else as recorded", minimum=0),
        Option("seed", "integer", "of the draws", 0, minimum=-(2**63), maximum=2**63),
    ),
    recognises_header=recognises_header,
    recognises_directory=lambda path: any(path.rglob(f"[!.]*{_TRACE}")),
    fetch="a folder of github.com/alibaba/ServeGen (data/...)",
)
