"""The answers of `llmirage size` as HTML pages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from llmirage_client.report.html.charts import Axis, Better, Mark, ParetoPoint, Series, line, pareto
from llmirage_client.report.html.page import Banner, Card, PageHead, Section, State, charts, figure, notes, page, table
from llmirage_client.simulator.deployments import models_of
from llmirage_client.size.day import DayReport
from llmirage_client.size.error_margin import Confidence, least_confident, margins_of_answer
from llmirage_client.size.max_rate_report import MaxRateReport
from llmirage_client.size.report import (
    Question,
    SizeReport,
    about_lines,
    answer_line,
    effort_text,
    missed_lines,
    name_of,
    notes_of,
    pool_lines,
    ratio_rows,
    refused_rows,
    tightest_cells,
    usd,
)
from llmirage_client.size.sizing import Priced
from llmirage_shared.plural import plural, rounded

_STATES: dict[Confidence, State] = {"safe": "good", "marginal": "warn", "not proven": "warn"}


def page_of(report: SizeReport | MaxRateReport | DayReport) -> str:
    """Return the report as HTML."""
    if isinstance(report, DayReport):
        return _day_page(report)
    return _size_page(report) if isinstance(report, SizeReport) else _max_rate_page(report)


def _size_page(report: SizeReport) -> str:
    question, sizing, answer = report.question, report.sizing, report.sizing.answer
    facts = {
        "Model": question.base.model,
        "Traffic": f"{question.traffic.text}: {question.traffic.source.text}",
        "Objectives": question.slo,
    }
    sections: list[Section] = []
    cards: list[Card] = []
    if answer is None:
        banner = Banner("bad", "No deployment meets the objectives.", list(missed_lines(sizing)))
    else:
        margins = margins_of_answer(answer.capacity)
        confidence = least_confident(margins)
        banner = Banner(_STATES[confidence], f"{answer_line(answer)}: {confidence}", about_lines(margins))
        cards = [Card("GPUs", str(answer.gpus))]
        if answer.usd_per_h is not None:
            cards.append(Card("Price", f"{answer.usd_per_h:,.2f}", "USD/h", "of all GPUs"))
        cards += [
            Card(one.objective.text, one.measured, hint=f"{one.load:.0%} of the limit; 90 % band {margin.band_text}")
            for one, margin in zip(answer.capacity.trial.verdicts, margins, strict=True)
        ]
        rows = []
        for priced in (answer, *sizing.runners_up):
            trial = priced.capacity.trial
            objective, share = tightest_cells(trial)
            tightest = "-" if trial.tightest is None else f"{objective}, {share} of it"
            confidence = least_confident(margins_of_answer(priced.capacity))
            rows.append([name_of(priced), priced.gpus, usd(priced.usd_per_h), tightest, confidence])
        columns = ["Deployment", "GPUs", "USD/h", "Tightest objective", "Verdict"]
        lines = notes(list(notes_of(answer, question.traffic)))
        drawn = charts(*[figure(chart) for chart in _cost((answer, *sizing.runners_up))])
        lead = "The axes span the points, not 0." if drawn else ""
        sections.append(Section("Answer and runners-up", [table(columns, rows), lines, drawn], lead))
    if report.pools is not None and report.pools.answer is not None:
        best = report.pools.answer
        margins = margins_of_answer(best.capacity)
        about = [f"{answer_line(best)}: {least_confident(margins)}", *pool_lines(answer, report.pools)]
        lines = notes([*about, *about_lines(margins), *notes_of(best, question.traffic)])
        sections.append(Section("Separate prefill and decode", [lines, table(*ratio_rows(report.pools), wrap=(7,))]))
    left_out = [(search.shape.name, search.reason) for search in sizing.given_up]
    left_out += refused_rows(question.refused, explain=True)
    left_out += [
        (search.shape.name, f"{plural(search.least or 0, 'instance')} or more: too expensive") for search in sizing.left
    ]
    head = PageHead("Size of a deployment", facts, [banner], cards)
    return _page(head, sections, left_out, question)


def _cost(found: Sequence[Priced]) -> Iterator[str]:
    """Yield the price of each deployment against what it reaches of each objective; nothing for one alone."""
    priced = all(one.usd_per_h is not None for one in found)
    y = Axis("Price", "USD/h") if priced else Axis("GPUs", integer=True)
    for at, objective in enumerate(found[0].capacity.trial.verdicts if len(found) > 1 else ()):
        points = []
        for one in found:
            reached = one.capacity.trial.verdicts[at].value
            if reached is not None:
                cost = one.usd_per_h if priced and one.usd_per_h is not None else one.gpus
                points.append(ParetoPoint(reached, cost, name_of(one), one.capacity.shape.gpu))
        better: Better = "less" if objective.objective.comparison[0] == "<" else "more"
        x = Axis(objective.objective.text, objective.objective.metric.unit)
        title = f"{y.title} against {objective.objective.text}"
        yield pareto(points, title=title, x=x, y=y, better_x=better, better_y="less", groups_of="GPU")


def _max_rate_page(report: MaxRateReport) -> str:
    points, rows = [], []
    for one, trial in report.carried:
        figures, tpot = trial.figures, trial.figures["tpot_ms"]
        name = report.name(one)
        if tpot:
            gpu = "" if one.shape is None else one.shape.gpu
            points.append(ParetoPoint(1e3 / tpot["mean"], figures["output_tok_per_s_per_gpu"], name, gpu))
        rows.append(
            [
                name,
                figures["gpus"],
                rounded(trial.amount),
                rounded(trial.amount / figures["gpus"], 3),
                usd(report.usd_per_m(one)),
                report.most_tried if one.beyond is None else f"{one.beyond.traffic}: {one.beyond.reason}",
            ]
        )
    unit = report.unit
    columns = ["Deployment", "GPUs", unit, f"{unit} per GPU", "USD per M output tokens", "What is missed next"]
    drawn = pareto(
        points,
        title="At the highest load of each",
        x=Axis("Speed per user (1/TPOT)", "tokens/s"),
        y=Axis("Output tokens/s per GPU", "tokens/s"),
    )
    sections = [Section("What each carries", [charts(figure(drawn), size="half"), table(columns, rows, wrap=(5,))])]
    question = report.question
    facts = {"Model": models_of(question.base), "Requests": question.traffic.source.text, "Objectives": question.slo}
    head = PageHead("Highest sustained traffic of deployments", facts)
    return _page(head, sections, report.left_out(), question)


def _day_page(report: DayReport) -> str:
    question, found = report.question, report.found
    facts = {"Model": question.base.model, "Day": found.day.source, "Objectives": question.slo}
    if found.autoscaled is None or found.static is None:
        banner = Banner("bad", report.headline, list(missed_lines(found.sizing)))
        return _page(PageHead("A day", facts, [banner]), [], [], question)
    hours = np.arange(len(found.day.rates))
    plan, fixed = found.autoscaled, found.static
    drawn = [
        line(
            [Series(tenant.name, hours, tenant.rates, "step") for tenant in found.day.tenants],
            title="Load",
            x=Axis("Hour"),
            y=Axis("Requests", "req/s"),
        ),
        line(
            [
                Series("static", hours, [hour.instances for hour in fixed.hours], "step"),
                Series("autoscaled", hours, [hour.instances for hour in plan.hours], "step"),
            ],
            title="Instances",
            x=Axis("Hour"),
            y=Axis("Instances", integer=True),
        ),
        line(
            [Series(name, hours, [100 * hour.goodput[name] for hour in plan.hours], "step") for name in plan.goodput],
            title="Requests within the objectives, autoscaled",
            x=Axis("Hour"),
            y=Axis("Goodput", "%", low=0.0, high=100.0),
        ),
        line(
            [
                Series(
                    objective.text,
                    hours,
                    [
                        100 * hour.trial.verdicts[at].load if hour.trial and hour.trial.verdicts else np.nan
                        for hour in plan.hours
                    ],
                    "step",
                )
                for at, objective in enumerate(question.objectives)
            ],
            title="Objectives, autoscaled, in the steady state",
            x=Axis("Hour"),
            y=Axis("Of the limit", "%"),
            marks=[Mark(100.0, "limit")],
        ),
    ]
    columns, rows = report.plan_rows()
    sections = [
        Section("The day", [charts(*map(figure, drawn), size="half")]),
        Section("Static and autoscaled", [table(columns, rows), notes(list(report.lines()))]),
        Section("By hour", [table(*report.hour_rows())]),
    ]
    head = PageHead("A day", facts, [Banner("good" if plan.hours[plan.worst_hour].worst > 0 else "warn", report.headline)])
    return _page(head, sections, [], question)


def _page(head: PageHead, sections: list[Section], left_out: Sequence[tuple[str, str]], question: Question) -> str:
    if left_out:
        sections.append(Section("Left out", [table(["Deployment", "Why"], left_out, left=2, wrap=(1,))]))
    if question.notes:
        sections.append(Section("Notes", [notes(question.notes)]))
    return page(head, sections, f"{effort_text(question.effort)}. Prices: {question.price_source}")
