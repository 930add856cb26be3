"""What an hour of a GPU costs: the catalogue's figures, or the user's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from llmirage_client.simulator.deployments import gpu_key, price_source, price_usd_per_h
from llmirage_client.simulator.engine import ConfigError, Entry, read_mapping


class PriceError(ValueError):
    """A file of prices that cannot be used; every problem with its line."""


def catalogue_prices(gpus: Sequence[str]) -> tuple[dict[str, float], str]:
    """USD per hour of each of these GPUs that has one, and the source for people."""
    prices = {gpu: price for gpu in gpus if (price := price_usd_per_h(gpu)) is not None}
    return prices, f"middle of the on-demand offers in the catalogue ({price_source()})"


def read_prices(path: str, gpus: Sequence[str]) -> tuple[dict[str, float], str]:
    """USD per hour from lines `name: price`; those GPUs that it does not name have none. Raises PriceError."""
    problems: list[str] = []
    prices: dict[str, float] = {}
    lines: dict[str, int] = {}
    try:
        entries = read_mapping(path, "a price file")
    except ConfigError as error:
        raise PriceError(str(error)) from None
    for entry in entries:
        try:
            key = entry.key if entry.key in gpus else gpu_key(entry.key)
            if key in lines:
                problems.append(f"{path}:{entry.line}: {entry.key}: already given in line {lines[key]}")
            lines.setdefault(key, entry.line)
            prices[key] = _price(entry)
        except (ConfigError, ValueError) as error:
            problems.append(f"{path}:{entry.line}: {entry.key}: {error}")
    if not entries and not problems:
        problems.append(f"{path}: there is no price in it")
    if problems:
        raise PriceError("\n".join(problems))
    return {gpu: prices[gpu] for gpu in gpus if gpu in prices}, Path(path).name


def _price(entry: Entry) -> float:
    value = entry.node.value
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise ValueError(f"must be a number of USD per hour of one GPU, not {value!r}")
    return float(value)
