"""One worker's share of training: holds its boxes, and does its part of every step.

A trainer belongs to one layout and one rank. It is made without communication, given state
(``initialise``, or written from outside and ``loaded``), connected to its groups, and stepped. The
step's last collective is its point of no return: whoever has its result applies the update, and the
result says the same on every rank. Processes, snapshots and generations are not its business.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from sailor.data.sampler import Order
from sailor.data.tokens import TokenStream, load_manifest
from sailor.models.stage import StageModule
from sailor.parallel.boxes import Box
from sailor.parallel.comm import Communicator, LoopbackCommunicator
from sailor.parallel.groups import loopback_groups
from sailor.parallel.layout import GroupKind, Layout
from sailor.parallel.pipeline import Links, Microbatch, Pipeline
from sailor.parallel.reduce import ExactSum, FastSum, GradientSum
from sailor.parallel.slots import Slot
from sailor.parallel.spread import WeightSpread
from sailor.parallel.stand_in import only_workers_differ, same_seat
from sailor.parallel.state import BoxTensors, StageState
from sailor.parallel.tensor import TensorGroup
from sailor.training.evaluate import evaluation
from sailor.training.guard import Guard
from sailor.training.initial import initial_weights
from sailor.training.optimizer import AdamW
from sailor.training.schedule import learning_rate
from sailor.training.settings import TrainSettings

log = logging.getLogger(__name__)

COMPUTE_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class StepRefused(Exception):
    """A step is not fit to be applied, all ranks know it, and nothing was applied anywhere."""

    def __init__(self, *, step: int, loss: float, grad_norm: float, why: str) -> None:
        super().__init__(f"step {step}: its {why} (loss {loss}, gradient norm {grad_norm})")
        self.step = step
        self.loss = loss
        self.grad_norm = grad_norm
        self.why = why


@dataclass(frozen=True, kw_only=True, slots=True)
class Costs:
    """Seconds that the newest snapshot held a rank up, and that its newest step took; 0: none."""

    snapshot_s: float = 0.0
    step_s: float = 0.0


NO_COSTS = Costs()


@dataclass(frozen=True, kw_only=True, slots=True)
class StepOutcome:
    """What one applied step was. All but ``seconds`` and ``phases`` is the same on every rank.

    ``loss`` is the mean over the global batch in nats per token, before the update. Samples are
    counted from the start of the run: step s has [first_sample, first_sample + num_samples).
    ``stop``: some rank asked to stop after this step, and every rank knows it. ``room``: every rank
    has room for a snapshot, so that all take one of this step or none does. ``skipped``: what was
    wrong with the step, where it was left out: the weights are those of the step before.
    ``costs``: means over the ranks of what each had to say of its costs (``Costs``).
    """

    step: int
    loss: float
    tokens: int
    grad_norm: float  # before clipping
    learning_rate: float
    seconds: float
    phases: Mapping[str, float]  # seconds: data, forward, backward, wait, reduce, norm, optimizer
    first_sample: int
    num_samples: int
    stop: bool
    room: bool
    costs: Costs
    skipped: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Agreed:
    """What every rank knows after a step's last collective."""

    loss: float
    grad_norm: float
    stop: bool
    room: bool
    costs: Costs


class Trainer:
    """See the module's docstring. ``state`` has the boxes that this rank keeps (Layout.kept)."""

    def __init__(self, *, layout: Layout, rank: int, settings: TrainSettings) -> None:
        plan = layout.plan
        if plan.global_batch_size != settings.global_batch_size:
            raise ValueError(
                f"the plan has a global batch of {plan.global_batch_size}, the settings of "
                f"{settings.global_batch_size}"
            )
        if plan.sequence_length != settings.sequence_length:
            raise ValueError(
                f"the plan has sequences of {plan.sequence_length} tokens, the settings of "
                f"{settings.sequence_length}"
            )
        if settings.compute_dtype not in COMPUTE_DTYPES:
            raise ValueError(f"{settings.compute_dtype} is none of {', '.join(COMPUTE_DTYPES)}")
        if settings.device == "cpu":
            torch.set_num_threads(1)  # bits depend on it, and workers share the cores
        self.settings = settings
        self.device = torch.device(settings.device)
        at = layout.coordinates[rank]
        stage = layout.stage_of(rank)
        if settings.sequence_parallel and plan.sequence_length % stage.tensor_parallel:
            raise ValueError(
                f"sequences of {plan.sequence_length} tokens do not go into "
                f"{stage.tensor_parallel} equal runs"
            )
        self._tensor = TensorGroup(
            rank=at.tensor_rank, size=stage.tensor_parallel,
            split_sequences=settings.sequence_parallel,
        )  # fmt: skip
        self._module = StageModule(
            layout.spec, blocks=stage.layers, first=layout.is_first(rank),
            last=layout.is_last(rank), recompute=stage.recompute, group=self._tensor,
            compiled=settings.compile_blocks,
        )  # fmt: skip
        dtype = COMPUTE_DTYPES[settings.compute_dtype]
        self._state = StageState(
            layout, rank, device=self.device, dtype=dtype, split_sequences=self._tensor.splits
        )
        self.state: dict[Box, BoxTensors] = self._state.boxes
        self._parameters = self._state.bind(self._module.leaves())
        self._spread = WeightSpread(self._state) if plan.optimizer_sharding else None
        self._stale = True  # the keepers' weights have not been handed out since they changed
        self._optimizer = AdamW(self._state, settings.optimizer)
        manifest = load_manifest(Path(settings.tokens_path))
        self._train = TokenStream(
            manifest, manifest.train, sequence_length=settings.sequence_length
        )
        self._held_out = TokenStream(
            manifest, manifest.held_out, sequence_length=settings.sequence_length
        )
        self._place(layout, rank)
        self._world: Communicator = LoopbackCommunicator()
        self._owners: dict[tuple[int, ...], Communicator] = {}
        self._connected = False
        self._hold: Callable[[], object] | None = None
        self._clean = True  # no operation was left while it might write into our memory
        self._exact = settings.deterministic  # as far as is known
        self._guard = Guard(spike_factor=settings.spike_factor)
        self._phases: dict[str, float] = {}

    def _place(self, layout: Layout, rank: int, *, memory: torch.Tensor | None = None) -> None:
        """What depends on who else there is: sums, the pipeline's ends, shares of batches."""
        plan, settings = layout.plan, self.settings
        self.layout, self.rank = layout, rank
        self._replica = plan.replicas[layout.coordinates[rank].replica]
        self._order = Order(
            seed=settings.seed, blend=self._train.blend,
            global_batch_size=settings.global_batch_size,
            offset=layout.sample_offset(layout.coordinates[rank].replica),
            count=self._replica.num_samples,
        )  # fmt: skip
        self._sum: GradientSum = (ExactSum if settings.deterministic else FastSum)(
            self._state, self._parameters, tokens_per_step=plan.tokens_per_step, memory=memory
        )
        self._pipeline = Pipeline(
            self._module, layout, rank, device=self.device, dtype=self._state.weights.dtype
        )
        self._evaluation = evaluation(
            plan, eval_samples=settings.eval_samples,
            blend=self._held_out.blend,
        )  # fmt: skip
        self._counted = self._boxes_counted_here()
        self._counted_at = torch.tensor(
            [index for index, _, _ in self._counted], dtype=torch.long, device=self.device
        )
        self._counted_gradients: list[torch.Tensor] = []

    # State

    def initialise(self, boxes: Iterable[Box]) -> None:
        """Give some boxes their content of step 0. Raises DataError, see initial_weights."""
        settings = self.settings
        read = initial_weights(self.layout.spec, seed=settings.seed, folder=settings.init_from)
        for box in sorted(boxes, key=lambda box: (box.tensor, box.offset)):
            tensors = self.state[box]
            tensors.weight.copy_(read(box))
            tensors.moment1.zero_()
            tensors.moment2.zero_()
        self.loaded()

    def loaded(self) -> None:
        """State was written from outside: compute with it from now on."""
        self._state.publish()
        self._stale = True

    def republish(self) -> None:
        """State was changed in place, on this rank alone: compute with it here."""
        self._state.publish()

    def recall(self, losses: Iterable[float]) -> None:
        """The losses of the steps before, newest last, NaN for one skipped: see Guard."""
        self._guard.recall(losses)

    def warm_up(self) -> None:
        """Run a step of one microbatch alone, before there is state: loads kernels, touches memory.

        A process's first step takes several times as long as its second. Leaves state zero, and
        the trainer on stand-ins: connect it afterwards.
        """
        self.connect(loopback_groups(self.layout, self.rank))
        whole, self._replica = self._replica, replace(self._replica, num_microbatches=1)
        self.step(1, stop=False)
        self._replica = whole
        self._guard = Guard(spike_factor=self.settings.spike_factor)
        self._state.clear()
        self._connected = False

    def rehearse(self, groups: Mapping[str, Communicator]) -> None:
        """Run one whole step alone, before there is state, over groups that answer as others would
        (``sailor.parallel.sandbox``).

        Weights are thrown away, but are no zeros: numbers must be as they are in real life. Leaves
        state zero; connect afterwards. Raises StepRefused and whatever the stand-ins raise; the
        state is zero then as well.
        """
        self.connect(groups)
        chance = torch.Generator(self.device).manual_seed(1)
        try:
            for tensors in self.state.values():
                # Of the size that weights have: numbers grow or vanish as they do in a real step.
                tensors.weight.normal_(std=0.02, generator=chance)
            self.loaded()
            outcome = self.step(1, stop=False)
            if outcome.skipped:
                raise StepRefused(
                    step=1, loss=outcome.loss, grad_norm=outcome.grad_norm, why=outcome.skipped
                )
        finally:
            self._state.clear()
            self._stale = True
            self._connected = False
            self._exact = self.settings.deterministic
            self._guard = Guard(spike_factor=self.settings.spike_factor)

    def touch(self) -> None:
        """Fault in the memory that state and gradients will lie in, before there is state."""
        self._state.clear()
        self._state.gradients.zero_()

    def move_to(self, layout: Layout, rank: int) -> None:
        """The same share of the model among others: see ``stand_in.same_seat``.

        Weights, moments and their memory stay as they are; connect afterwards.
        """
        unmoved = only_workers_differ(self.layout, self.rank, layout, rank)
        if self._spread is not None or not (
            unmoved or same_seat(self.layout, self.rank, layout, rank)
        ):
            raise ValueError(f"rank {self.rank} does other work as rank {rank} of the new layout")
        self._connected = False
        self._owners = {}
        self._world = LoopbackCommunicator()  # where nobody else is left there is no such group
        if unmoved:
            self.layout = layout  # its groups have other keys; all else is a matter of ranks
            return
        memory = self._sum.detach()
        self._state.move_to(layout, rank)
        self._place(layout, rank, memory=memory)

    def connect(self, groups: Mapping[str, Communicator]) -> None:
        """Speak over these groups from now on: all of the layout's that have this rank."""
        mine = self.layout.groups_of(self.rank)
        missing = [group.key for group in mine if group.key not in groups]
        if missing:
            raise ValueError(f"rank {self.rank} needs groups {missing}")
        if not self._clean:
            if self._spread is not None:
                raise ValueError("others may still write into these weights: take a new trainer")
            self._sum.renew()
            self._clean = True
        for group in mine:
            match group.kind:
                case GroupKind.world:
                    self._world = groups[group.key]
                case GroupKind.tensor:
                    self._tensor.communicator = groups[group.key]
                case GroupKind.reduce:
                    self._owners[group.ranks] = groups[group.key]
                case _:
                    pass
        self._pipeline.connect(Links.of(self.layout, self.rank, groups))
        gradients = self._state.gradients
        self._counted_gradients = [
            slot.box_of(slot.of(gradients), box) for _, slot, box in self._counted
        ]
        self._connected = True

    def hold_update(self, hold: Callable[[], object]) -> None:
        """State is being read: the next update calls ``hold`` before it changes any."""
        self._hold = hold

    # Work

    def step(
        self, step: int, *, stop: bool, room: Callable[[], bool] = lambda: True,
        costs: Costs = NO_COSTS,
    ) -> StepOutcome:  # fmt: skip
        """Train on the global batch of ``step`` (the first is 1). Collective.

        ``stop`` is this rank's vote to stop afterwards; ``room``, asked as late as possible, is
        its vote on whether it could take a snapshot; ``costs`` are told to all. Raises Aborted,
        with nothing applied here, or StepRefused, with nothing applied anywhere.
        """
        began = time.monotonic()
        self._phases = {}
        microbatches = self._microbatches(step)
        self._enter()
        self._sum.begin(self._owners, num_microbatches=len(microbatches))
        losses = self._pipeline.train(
            microbatches, size=self._replica.microbatch_size, seed=self._sum.seed
        )
        self._phases |= self._pipeline.seconds
        with self._phase("reduce"):
            self._sum.reduce()
        with self._phase("norm"):
            agreed = self._agree(losses, stop=stop, room=room(), costs=costs)
        self._clean = True
        loss, grad_norm = agreed.loss, agreed.grad_norm
        settings = self.settings
        rate = learning_rate(step, settings=settings.optimizer, total_steps=settings.total_steps)
        fault = self._guard.fault(loss=loss, grad_norm=grad_norm)
        if not fault:
            if self._hold is not None:
                with self._phase("snapshot"):
                    self._hold()
                self._hold = None
            with self._phase("optimizer"):
                limit = settings.optimizer.clip_norm
                clip = limit / grad_norm if 0.0 < limit < grad_norm else 1.0
                self._optimizer.apply(step=step, learning_rate=rate, clip=clip)
                self._stale = True
            self._guard.applied(loss)
        elif settings.guard != "skip" or not self._guard.may_skip():
            raise StepRefused(step=step, loss=loss, grad_norm=grad_norm, why=fault)
        return StepOutcome(
            step=step, loss=loss, tokens=self.layout.plan.tokens_per_step, grad_norm=grad_norm,
            learning_rate=rate, seconds=time.monotonic() - began, phases=self._phases,
            first_sample=(step - 1) * settings.global_batch_size,
            num_samples=settings.global_batch_size, stop=agreed.stop, room=agreed.room,
            costs=agreed.costs,
            skipped=fault,
        )  # fmt: skip

    def evaluate(self) -> float:
        """Mean loss over the held-out sequences, in nats per token. Collective. Raises Aborted."""
        plan, at = self.layout.plan, self.layout.coordinates[self.rank]
        share = self._evaluation.share(at.replica, plan=plan)
        num_microbatches, size = self._evaluation.sequences.shape
        microbatches = [
            self._microbatch(self._held_out.read(self._evaluation.sequences[index]))
            for index in share
        ]
        self._enter()
        losses = self._pipeline.evaluate(microbatches, size=size)
        sums = torch.zeros(num_microbatches, size, dtype=torch.float64, device=self.device)
        if at.tensor_rank == 0:
            for index, losses_BT in zip(share, losses, strict=False):  # none but on the last stage
                sums[index] = losses_BT.sum(dim=1, dtype=torch.float64)
        self._world.all_reduce(sums).wait()
        self._world.settle()
        self._clean = True
        counted = sums.flatten()[: self._evaluation.num_samples].tolist()
        return math.fsum(counted) / (self._evaluation.num_samples * plan.sequence_length)

    # The parts of a step

    def _enter(self) -> None:
        """From here until ``_clean`` is set again, operations may be under way in our memory."""
        if not (self._connected and self._clean):
            raise ValueError("connect first, and again after a step or evaluation was left midway")
        self._clean = False
        if self._spread is not None and self._stale:
            # Now, and not behind the update: that must not fail when a peer does.
            with self._phase("weights"):
                self._spread.run(self._owners)
            self._stale = False

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        self._phases[name] = time.monotonic() - began

    def _microbatches(self, step: int) -> list[Microbatch]:
        """This replica's contiguous part of the step's samples."""
        with self._phase("data"):
            replica, count = self._replica, self._replica.num_microbatches
            if not (self._pipeline.first or self._pipeline.last):
                return [Microbatch(inputs=None, targets=None)] * count
            tokens = self._train.read(self._order.of_step(step)[: replica.num_samples])
            return [self._microbatch(part) for part in np.split(tokens, count)]

    def _microbatch(self, tokens: npt.NDArray[np.int64]) -> Microbatch:
        """Inputs and their successors, of [B, T + 1] tokens."""
        both = torch.from_numpy(tokens).to(self.device)
        return Microbatch(
            inputs=both[:, :-1] if self._pipeline.first else None,
            targets=both[:, 1:] if self._pipeline.last else None,
        )

    def _agree(
        self, losses: list[torch.Tensor], *, stop: bool, room: bool, costs: Costs
    ) -> _Agreed:
        """One sum over the world: squared norm per box, loss per microbatch, costs and votes.

        Every number has one contributor, so the sum carries it as it is; each rank then adds them
        up in the same exact way. Before: everybody has their part; after: mean loss, gradient
        norm and what was voted, alike everywhere.
        """
        plan, at = self.layout.plan, self.layout.coordinates[self.rank]
        num_boxes, num_microbatches = len(self.layout.owners), plan.num_microbatches
        numbers = torch.zeros(
            num_boxes + num_microbatches + 5, dtype=torch.float64, device=self.device
        )
        if self._counted_gradients:
            # Sums in fp64 go element by element on a CPU, up to ten times as long: where bits do
            # not count, each box is summed up in fp32.
            wide = torch.float64 if self.settings.deterministic else None
            norms = torch._foreach_norm(self._counted_gradients, 2, dtype=wide)
            numbers[self._counted_at] = torch.stack(norms).double().square()
        if losses and at.tensor_rank == 0:
            first = num_boxes + self.layout.microbatch_offset(at.replica)
            numbers[first : first + len(losses)] = torch.stack(losses).double()
        numbers[-5], numbers[-4] = costs.snapshot_s, costs.step_s
        numbers[-3] = self._sum.magnitude()
        numbers[-2] = float(not room)
        numbers[-1] = float(stop)
        self._world.all_reduce(numbers).wait()
        self._world.settle()
        summed = numbers.tolist()
        if summed[-3] >= 1.0 and self._exact:
            self._exact = False
            log.warning(
                "gradients are too large for exact sums (bound %.1f of 1): from here on another "
                "layout may differ in the last bits", summed[-3],
            )  # fmt: skip
        return _Agreed(
            loss=_exact_sum(summed[num_boxes:-5]) / plan.tokens_per_step,
            grad_norm=math.sqrt(_exact_sum(summed[:num_boxes])),
            stop=summed[-1] > 0,
            room=summed[-2] == 0,
            costs=Costs(
                snapshot_s=summed[-5] / self.layout.world_size,
                step_s=summed[-4] / self.layout.world_size,
            ),
        )

    def _boxes_counted_here(self) -> list[tuple[int, Slot, Box]]:
        """The boxes whose lowest keeper this rank is, with their place in the vector of all."""
        index = {box: i for i, box in enumerate(self.layout.owners)}
        return [
            (index[box], slot, box)
            for slot in self._state.slots
            for box in slot.boxes
            if self.layout.keepers[box][0] == self.rank
        ]


def _exact_sum(values: list[float]) -> float:
    """The correctly rounded sum, in any order the same; NaN where there is none."""
    try:
        return math.fsum(values)
    except (OverflowError, ValueError):  # too large on the way, or infinities of both signs
        return math.nan
