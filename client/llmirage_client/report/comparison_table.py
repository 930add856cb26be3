"""Two runs side by side: the table of what differs, and all of it on the screen."""

from __future__ import annotations

from llmirage_client.measure.comparison import Comparison, Difference
from llmirage_client.report.numbers import number
from llmirage_client.report.screen import Screen, bold, plain_table, warning

_WORDS = {
    "time_to_first_token": "TTFT",
    "first_turn_time_to_first_token": "TTFT of first turns",
    "subsequent_turn_time_to_first_token": "TTFT of later turns",
    "inter_token_latency": "TPOT",
    "request_latency": "Latency",
    "effective_latency": "Latency from due time",
    "input_sequence_length": "Input tokens",
    "output_sequence_length": "Output tokens",
    "request_error_rate": "Failed requests",
    "overall_usage_prompt_cache_read_pct": "Prefix cache hit rate",
    "request_throughput": "Requests",
    "output_token_throughput": "Output tokens",
    "total_token_throughput": "All tokens",
}


def print_comparison(
    baseline: str, run: str, comparison: Comparison, warnings: list[str], confidence: float, tolerance: float | None = None
) -> None:
    """Print one table, then the other differences.

    tolerance: of --fail-if-worse. Without control codes unless on a terminal.
    """
    screen = Screen()
    table = plain_table(*difference_heads(confidence), ends=1)
    for one in comparison.differences:
        table.add_row(*difference_cells(one))
    trees = " and ".join(f"{n:,}" for n in comparison.conversations)
    how = "drawn in pairs" if comparison.paired else "drawn separately, because they differ"
    screen.print(f"\nbaseline: {baseline}\nrun:      {run}\n", wrap=False)
    screen.print(table)
    screen.print(
        f"\nBounds: from {trees} conversations with their children, {how}, and from parts of each run: 10, or 30 for rates."
    )
    judged = sum(one.beyond_noise is not None for one in comparison.differences)
    by_chance = judged * (100 - confidence) / 100
    if by_chance >= 0.5:
        screen.print(f"Of {judged} figures, {by_chance:.0f} or so may be beyond these bounds by chance.")
    for why in dict.fromkeys(d.why_not for d in comparison.differences if d.why_not):
        screen.print(f"Too few: {why}.")
    share = tolerance or 0.0
    if tolerance is not None and comparison.judged:
        worse = [f"{_name(one)} by {one.percent or 0.0:+.1f} %" for one in comparison.worse(share)]
        found = f"worse: {', '.join(worse)}" if worse else f"none of {len(comparison.judged)} figures is worse"
        screen.print(bold(f"Beyond chance and a tolerance of {100 * share:g} %, {found}."))
    if seen := [
        (_name(one), comparison.seen(one, share))
        for one in comparison.judged
        if one.statistic in ("avg", "p50", "at_equal_load")
    ]:
        sizes = ", ".join(f"{name} {percent:.1f} %" for name, percent in seen if percent is not None)
        screen.print(f"A worsening of this size would have been found 9 times in 10: {sizes}.")
    for text in warnings:
        screen.print(warning(f"Note: {text}"))
    screen.close()


def difference_heads(confidence: float) -> list[str]:
    """Return the notes on a comparison. confidence: in percent."""
    return ["", "baseline", "run", "change", f"{confidence:g} % bounds", "verdict"]


def difference_cells(one: Difference) -> list[str]:
    """Return the cells of one difference: values, difference, percent, bounds."""
    percent = "" if one.percent is None else f"{one.percent:+.1f} %"
    bounds = "-" if one.low is None or one.high is None else f"{_signed(one.low)} to {_signed(one.high)}"
    unit = one.unit.removeprefix("requests").removeprefix("tokens").replace("sec", "s")
    name = _name(one) + (f", {unit}" if unit else "")
    return [name, number(one.baseline), number(one.value), percent or _signed(one.difference), bounds, _verdict(one)]


def _name(one: Difference) -> str:
    return f"{_WORDS.get(one.tag, one.title)} {one.statistic.replace('_', ' ')}".strip()


def _verdict(one: Difference) -> str:
    if one.beyond_noise is None:
        return "too few"
    if not one.beyond_noise:
        return "within noise"
    return "differs" if one.better is None else "better" if one.better else "worse"


def _signed(value: float) -> str:
    return ("+" if value > 0 else "-" if value < 0 else "") + number(abs(value))
