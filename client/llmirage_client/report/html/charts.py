"""Every kind of chart of the product, each a function of arrays and a spec that returns one SVG element as text.

All are drawn for a page with this package's style sheet (page.py), which colours them in light and dark. Titles and labels
are escaped here. A chart without data is drawn too, and says so.
"""

from __future__ import annotations

from llmirage_client.report.html.bars import Bars, bars
from llmirage_client.report.html.distribution import Sample, histogram
from llmirage_client.report.html.frame import HALF, SMALL, WIDE, LegendEntry, Size
from llmirage_client.report.html.gantt import Bar, Lane, LaneGroup, Link, gantt
from llmirage_client.report.html.heat import heat_strip
from llmirage_client.report.html.pareto import ParetoPoint, frontier, pareto
from llmirage_client.report.html.scale import Axis
from llmirage_client.report.html.xy import Mark, Series, line, scatter

__all__ = [
    "HALF",
    "SMALL",
    "WIDE",
    "Axis",
    "Bar",
    "Bars",
    "Lane",
    "LaneGroup",
    "LegendEntry",
    "Link",
    "Mark",
    "ParetoPoint",
    "Sample",
    "Series",
    "Size",
    "bars",
    "frontier",
    "gantt",
    "heat_strip",
    "histogram",
    "line",
    "pareto",
    "scatter",
]
