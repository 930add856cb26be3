"""A rate series as a user gives it: `0:1,60:10,120:10`, or a file of points."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from llmirage_client.load.rates import RateSeries


class RateSeriesError(ValueError):
    """The text or file is no rate series; the message says where and why."""


def read_rate_series(text: str) -> RateSeries:
    """Points `seconds:rate` between commas, or the path of a file of points. Raises RateSeriesError.

    The file is AIPerf's JSON, {"points": [{"time_s": 0, "qps": 5}, ...]}, a JSON array of such objects or of pairs, or text
    with `seconds,rate` on each line, a heading and # comments apart.
    """
    points = [_inline_point(part) for part in text.split(",") if part.strip()]
    if points and None not in points:
        return _series([point for point in points if point is not None], "")
    if not text.strip():
        raise RateSeriesError("it is empty; points look like 0:1,60:10,120:10")
    path = Path(text)
    try:
        content = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise RateSeriesError(f"{text!r} is neither a file nor points such as 0:1,60:10,120:10") from None
    except (OSError, UnicodeDecodeError) as error:
        raise RateSeriesError(f"{text}: {getattr(error, 'strerror', None) or error}") from None
    if content.lstrip()[:1] in ("{", "["):
        return _series(_json_points(content, text), f"{text}: ")
    return _series(_lines(content, text), f"{text}: ")


def series_text(text: str) -> str:
    """As it is, once it was read: files show a series as it was given. Raises RateSeriesError."""
    read_rate_series(text)
    return text


def _inline_point(part: str) -> tuple[float, float] | None:
    time_s, colon, rate = part.partition(":")
    try:
        return (float(time_s), float(rate)) if colon else None
    except ValueError:
        return None


def _json_points(content: str, path: str) -> list[tuple[float, float]]:
    try:
        value = json.loads(content)
    except ValueError as error:
        raise RateSeriesError(f"{path}: not JSON: {error}") from None
    rows: Any = value.get("points") if isinstance(value, dict) else value
    if not isinstance(rows, list):
        raise RateSeriesError(f'{path}: there is no array "points" in it')
    points = []
    for index, row in enumerate(rows):
        pair = [row.get("time_s"), row.get("qps")] if isinstance(row, dict) else row
        if not (isinstance(pair, list) and len(pair) == 2 and all(_is_number(part) for part in pair)):
            raise RateSeriesError(f'{path}: points[{index}] is neither {{"time_s": 0, "qps": 5}} nor [0, 5]')
        points.append((float(pair[0]), float(pair[1])))
    return points


def _lines(content: str, path: str) -> list[tuple[float, float]]:
    points: list[tuple[float, float]] = []
    for number, line in enumerate(content.splitlines(), 1):
        words = line.partition("#")[0].replace(",", " ").split()
        if not words:
            continue
        try:
            time_s, rate = map(float, words)
        except ValueError:
            if not points and not any(character.isdigit() for character in line):
                continue  # a heading
            raise RateSeriesError(f"{path}: line {number}: {line.strip()!r} is not seconds,rate") from None
        points.append((time_s, rate))
    return points


def _series(points: Sequence[tuple[float, float]], where: str) -> RateSeries:
    if not points:
        raise RateSeriesError(f"{where}there is no point in it")
    for index, (time_s, rate) in enumerate(points):
        if not (0 <= time_s < math.inf and 0 <= rate < math.inf):
            raise RateSeriesError(f"{where}{time_s:g}:{rate:g}: times and rates are numbers from 0 up")
        if index and time_s < points[index - 1][0]:
            raise RateSeriesError(f"{where}{time_s:g} s comes after {points[index - 1][0]:g} s: times do not go back")
    if points[0][0] != 0:
        raise RateSeriesError(f"{where}the first point is at {points[0][0]:g} s; a series begins at 0 s")
    if not any(rate for _, rate in points):
        raise RateSeriesError(f"{where}every rate is 0, so nothing would ever be sent")
    return RateSeries(tuple(points))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
