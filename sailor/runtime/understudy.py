"""The trainer a standby has ready for the role it will most likely take: its memory is faulted in.

Rehearsals run one after the other on trainers that are thrown away, so that no two are in memory at
once; after the last of them the likeliest role's is made again and kept. Making one takes as long
as its weights are many, and in a promotion everybody would wait for it.
"""

from __future__ import annotations

import logging

import torch

from sailor.errors import DataError
from sailor.parallel.layout import Layout
from sailor.parallel.stand_in import same_seat
from sailor.training.settings import TrainSettings
from sailor.training.trainer import Trainer

log = logging.getLogger(__name__)


class Understudy:
    """One worker's, of its builder thread alone."""

    def __init__(self) -> None:
        self._likeliest: tuple[Layout, int, TrainSettings] | None = None
        self._trainer: Trainer | None = None

    def told(self, layout: Layout, rank: int, *, settings: TrainSettings) -> None:
        """A role is about to be rehearsed: what was kept makes room. The first of a plan's roles
        is the likeliest."""
        self._trainer = None
        if self._likeliest is None or self._likeliest[0].plan != layout.plan:
            self._likeliest = (layout, rank, settings)

    def get_ready(self) -> None:
        """Nothing more is to be rehearsed. Without the memory for it there is none: it may be had
        when it is needed."""
        if self._likeliest is None or self._trainer is not None:
            return
        layout, rank, settings = self._likeliest
        if layout.plan.optimizer_sharding:
            return  # such a seat is always taken with a new one
        try:
            trainer = Trainer(layout=layout, rank=rank, settings=settings)
            trainer.touch()
        except (DataError, MemoryError, torch.OutOfMemoryError) as error:
            log.warning("no trainer is kept ready: %s", error)
        else:
            self._trainer = trainer

    def take(self, layout: Layout, rank: int, *, settings: TrainSettings) -> Trainer | None:
        """The kept trainer, if this is a seat like the one it was made for; kept no longer in any
        case."""
        trainer, self._trainer, self._likeliest = self._trainer, None, None
        if trainer is None or trainer.settings != settings:
            return None
        if not same_seat(trainer.layout, trainer.rank, layout, rank):
            return None
        trainer.move_to(layout, rank)
        return trainer
