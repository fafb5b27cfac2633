"""What the run has cost over time, beside its budget and what its plan said it would."""

from __future__ import annotations

from markupsafe import Markup

from sailor.observe.charts import Plot, clock, time_ticks
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
        plot = Plot(
            width=width, height=190, x=(0.0, until), y=(0.0, top * 1.1), x_label="time",
            y_label="US dollars", x_format=clock, y_format=_dollars, x_ticks=time_ticks,
        )  # fmt: skip
        if planned is not None:
            title = f"planned: {_dollars(planned.low_usd)} to {_dollars(planned.high_usd)}"
            plot.level_band(planned.low_usd, planned.high_usd, style="planned", title=title)
        if budget:
            plot.level(budget, style="budget", title=f"budget: {_dollars(budget)}")
        plot.line(spent, style="train")
        return plot.svg(f"Dollars spent over time, {_dollars(figures.cost_usd)} in the end")

    note = f"{_dollars(figures.cost_usd)} spent"
    legend = [("k-train", "spent")]
    if budget:
        note += f" of a budget of {_dollars(budget)}"
        legend.append(("k-budget", "budget"))
    if planned is not None:
        note += (
            f"; the plan said {_dollars(planned.usd)}, as a range {_dollars(planned.low_usd)} to "
            f"{_dollars(planned.high_usd)}, without interruptions"
        )
        legend.append(("k-planned", "what the plan said it would cost"))
    return both("Money", f"{note}.", draw, legend)


def _dollars(value: float) -> str:
    return f"${value:,.2f}" if value < 100 else f"${value:,.0f}"
