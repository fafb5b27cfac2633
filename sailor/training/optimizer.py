"""AdamW over a worker's flat arrays, in the fused kernel torch has for it.

torch.optim is not imported: its first optimizer loads the compiler, which takes longer than
loading torch. The step count of the optimizer is the step of the run, so there is no other state
than the moments.
"""

from __future__ import annotations

import torch

from sailor.parallel.state import StageState
from sailor.training.settings import OptimizerSettings


class AdamW:
    """Decoupled weight decay (Loshchilov and Hutter 2019) on tensors that decay, none elsewhere."""

    def __init__(self, state: StageState, settings: OptimizerSettings) -> None:
        self._state = state
        self._settings = settings

    def apply(self, *, step: int, learning_rate: float, clip: float) -> None:
        """Update weights and moments in place. ``clip`` multiplies the gradients first."""
        settings = self._settings
        updates = list(self._state.updates())
        device = self._state.gradients.device
        # The kernel divides by this; it is what loss scaling uses.
        scale = None if clip == 1.0 else torch.tensor(1.0 / clip, device=device)
        for decay in (True, False):
            wanted = [update for update in updates if update.decay is decay]
            if not wanted:
                continue
            torch._fused_adamw_(
                [update.weight for update in wanted],
                [update.gradient for update in wanted],
                [update.moment1 for update in wanted],
                [update.moment2 for update in wanted],
                [],
                [torch.tensor(float(step), device=device) for _ in wanted],
                amsgrad=False,
                lr=learning_rate,
                beta1=settings.beta1,
                beta2=settings.beta2,
                weight_decay=settings.weight_decay if decay else 0.0,
                eps=settings.epsilon,
                maximize=False,
                grad_scale=scale,
                found_inf=None,
            )
        self._state.publish()
