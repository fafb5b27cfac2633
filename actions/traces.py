"""From cloud.trace to the trace that is played: read or drawn, cut, scaled, sped up."""

from __future__ import annotations

from pathlib import Path
from string import ascii_lowercase

from provision.catalog import LOCAL_MACHINE
from provision.spot_model import RATES, ZoneModel, draw
from provision.trace import Trace, merge, read_trace
from sailor.config import Config
from sailor.errors import ConfigError
from sailor.units import parse_seconds


def trace_of(config: Config) -> Trace:
    """The trace of a configuration, in seconds of the run, its machines those of this computer.

    Raises DataError E506 for a file that cannot be used, ConfigError E102 for unknown rates and
    E104 for a beginning after the end.
    """
    wish = config.cloud.trace
    begin, length = parse_seconds(wish.begin), parse_seconds(wish.length)
    if wish.paths:
        trace = merge([read_trace(Path(path).expanduser()) for path in wish.paths])
    else:
        trace = _drawn(config, seconds=begin + length)
    if begin >= trace.seconds:
        raise ConfigError(
            f"the trace is over before cloud.trace.begin={wish.begin}",
            code="E104",
            why=f"{trace.source} is {trace.seconds:,.0f} s long",
            fix="cloud.trace.begin=0s",
        )
    trace = trace.cut(begin, min(begin + length, trace.seconds))
    trace = trace.placed(lambda place: (place[0], LOCAL_MACHINE)).fitting(wish.most)
    trace = trace.faster(wish.faster)
    if wish.notice is not None:
        trace = trace.announced(parse_seconds(wish.notice))
    return trace


def zones_of(trace: Trace) -> tuple[str, ...]:
    """Zones of a trace, in order of appearance."""
    return tuple(dict.fromkeys(zone for zone, _ in trace.places))


def _drawn(config: Config, *, seconds: float) -> Trace:
    wish = config.cloud.trace
    if wish.rates not in RATES:
        raise ConfigError(
            f"there are no rates {wish.rates!r}",
            code="E102",
            why="rates are measured on: "
            + "; ".join(f"{name}, {rates.source}" for name, rates in RATES.items()),
            where=f"cloud.trace.rates={wish.rates}",
            fix=f"cloud.trace.rates={next(iter(RATES))}",
        )
    rates = RATES[wish.rates]
    machines = max(1, wish.most // wish.zones)
    models = [
        ZoneModel(
            zone=f"zone-{letter}",
            machine_type=LOCAL_MACHINE,
            machines=machines,
            node_hours_per_loss=rates.node_hours_per_loss,
            mean_bulk=rates.mean_bulk,
        )
        for letter in ascii_lowercase[: wish.zones]
    ]
    return draw(models, seconds=seconds, seed=config.seed)
