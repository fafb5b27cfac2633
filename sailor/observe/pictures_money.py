"""What the run has cost over time, beside its budget and what its plan said it would."""

from __future__ import annotations

from markupsafe import Markup

from sailor.observe.charts import Axis, chart, level, level_band, line, time_axis
from sailor.observe.history import RunHistory
from sailor.observe.metrics import Metrics, planned_cost
from sailor.observe.picture import Picture, both, running_time

_NUM_POINTS = 200


def money(history: RunHistory, figures: Metrics) -> Picture | None:
    """Dollars spent. Nothing where machines cost nothing."""
    if figures.cost_usd <= 0:
        return None
    shrink = running_time(history)
    wall, until = figures.wall_s, shrink(figures.wall_s)
    budget = history.start("budget_usd")
    planned = planned_cost(history)
    spent = [
        (shrink(t), history.ledger.cost(now=t))
        for t in (i * wall / _NUM_POINTS for i in range(_NUM_POINTS + 1))
    ]
    top = max(figures.cost_usd, planned.high_usd if planned else 0.0)
    top = max(top, budget) if budget and budget < 3 * top else top  # a far budget is only told

    def draw(width: int) -> Markup:
        marks = [line(spent, colour="train", title="spent")]
        if budget and budget <= top:
            marks.insert(0, level(budget, colour="lost", title=f"budget: {_dollars(budget)}"))
        if planned is not None:
            low, high = planned.low_usd, planned.high_usd
            title = f"planned: {_dollars(low)} to {_dollars(high)}"
            marks.insert(0, level_band(low, high, colour="fill", title=title))
        return chart(
            marks, x=time_axis(until), width=width, height=190,
            y=Axis(name="US dollars", limits=(0.0, top * 1.1),
                   format=_format(top)),
            label=f"Dollars spent over time, {_dollars(figures.cost_usd)} in the end",
        )  # fmt: skip

    note = f"{_dollars(figures.cost_usd)} spent"
    legend = [("train", "spent")]
    if budget:
        note += f" of a budget of {_dollars(budget)}"
        legend.append(("lost", "budget"))
    if planned is not None:
        note += (
            f"; the plan said {_dollars(planned.usd)}, as a range {_dollars(planned.low_usd)} to "
            f"{_dollars(planned.high_usd)}, without interruptions"
        )
        legend.append(("fill", "what the plan said it would cost"))
    return both("Money", f"{note}.", draw, legend)


def _format(top: float) -> str:
    """d3's form of dollars up to ``top``: cents where they matter, less where all is less."""
    return "$,.2~r" if top < 1 else "$,.2f" if top < 100 else "$,.0f"


def _dollars(value: float) -> str:
    return f"${value:,.2f}" if value < 100 else f"${value:,.0f}"
