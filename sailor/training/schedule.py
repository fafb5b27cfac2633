"""The learning rate of a step: pure functions of the step, whoever trains. No torch."""

from __future__ import annotations

from math import cos, pi

from sailor.training.settings import OptimizerSettings


def learning_rate(step: int, *, settings: OptimizerSettings, total_steps: int) -> float:
    """The rate applied by step ``step``, the first being 1 and the last ``total_steps``.

    Linear warm-up to ``learning_rate`` over ``warmup_steps``, then
    cosine: half a cosine down to ``min_learning_rate`` at the last step (Loshchilov and Hutter
    2017); wsd: constant, then a straight line down over the last ``decay_steps`` (Hu et al. 2024);
    constant: as it is. Raises ValueError on another name.
    """
    peak, floor = settings.learning_rate, settings.min_learning_rate
    if step <= settings.warmup_steps:
        return peak * step / settings.warmup_steps
    match settings.schedule:
        case "constant":
            return peak
        case "cosine":
            span = max(1, total_steps - settings.warmup_steps)
            done = min(1.0, (step - settings.warmup_steps) / span)
            return floor + (peak - floor) * 0.5 * (1.0 + cos(pi * done))
        case "wsd":
            left = max(0, total_steps - step)
            if left >= settings.decay_steps:
                return peak
            return floor + (peak - floor) * left / settings.decay_steps
        case other:
            raise ValueError(f"there is no schedule {other!r}: cosine, wsd or constant")
