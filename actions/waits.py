"""How long a run waits for what: the configuration's times as the life cycle's limits.

Apart from domain.py, which plans need: they do without the run time's states.
"""

from __future__ import annotations

from actions.domain import HERE
from sailor.config import Config, Guard
from sailor.runtime.state import Limits
from sailor.runtime.straggler import Rules
from sailor.units import parse_seconds


def limits(config: Config, *, initial_nodes: int) -> Limits:
    """Every wait of the run's life. ``initial_nodes`` is what the plan starts with."""
    runtime = config.runtime
    assemble = runtime.assemble or ("120s" if config.cloud.name in HERE else config.cloud.join)
    return Limits(
        initial_nodes=initial_nodes, standbys=config.cloud.standbys or 0,
        assemble_s=parse_seconds(assemble),
        halt_s=parse_seconds(runtime.halt), boundary_s=parse_seconds(runtime.boundary),
        plan_s=parse_seconds(runtime.plan), prepare_s=parse_seconds(runtime.prepare),
        restore_s=parse_seconds(runtime.restore), switch_s=parse_seconds(runtime.switch),
        save_s=parse_seconds(runtime.save), park_s=parse_seconds(config.planner.patience),
        leave_margin_s=parse_seconds(runtime.leave_margin), max_restarts=runtime.max_restarts,
        roll_back=config.train.guard is Guard.rollback,
    )  # fmt: skip


def rebalance_every_s(config: Config) -> float | None:
    """Time between two looks at who has whose seats, None where nobody looks."""
    every = config.runtime.rebalance_every
    return None if every is None else parse_seconds(every)


def stragglers(config: Config) -> Rules | None:
    """What counts as slow, None where nothing does."""
    slow = config.runtime.straggler
    # Half way back to the usual pace it is no more suspected.
    return None if slow is None else Rules(slow=slow, clear=(1.0 + slow) / 2)
