"""action=train: plan, rent, train through whatever happens, save, release, report.

Only wiring: every decision is made by what is wired here. A second start of a finished run says so
and changes nothing; of an unfinished one resumes it.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from actions.anchor import Anchor, anchor
from actions.begin import Beginning, begin
from actions.console import Console
from actions.ending import error_of
from actions.foretold import foretold
from actions.hazards import hazard_of
from actions.limits import Afterwards, refuse_when_spent, watch
from actions.machines import (
    Machinery,
    first_requests,
    machinery,
    offers_by_place,
    own_network,
    shares_network,
)
from actions.own_machine import beside_per_hour
from actions.planning import Question, question
from actions.prospects import answered
from actions.run_folder import config_digest
from actions.run_page import beside
from actions.signals import signals_restored, stop_signals
from actions.standing_by import with_standbys
from actions.steering import farewell, goes_on_without_terminal, hear_hang_ups, keys_of
from actions.terrain import Terrain
from actions.trackers import follow, names_of
from actions.waits import limits, rebalance_every_s, stragglers
from actions.whence import changed, versions
from actions.worth import Worth
from provision.catalog import LOCAL_MACHINE
from provision.faults import FaultInjector
from provision.full_disk import FullDisk
from provision.namespaces import Namespaces
from provision.outlook import BackOff, foreseen
from provision.recruit import Crew, Rules
from provision.recruiter import Recruiter, Refusal
from sailor.addresses import bare
from sailor.checkpoint.files import is_remote
from sailor.checkpoint.interval import LossRate
from sailor.cluster.provisioner import NodeRequest, is_anchor
from sailor.config import Config, ControllerPlace, Output
from sailor.errors import Interrupted, SailorError
from sailor.observe.events import Event, EventLog, read_events
from sailor.observe.history import replay
from sailor.observe.live import View, open_view
from sailor.observe.report import write_report
from sailor.observe.summary import summarise, write_summary
from sailor.parallel.boxes import finest_pieces
from sailor.planner.hazard import PRIOR
from sailor.planner.question import Candidate
from sailor.runtime.controller import Controller
from sailor.runtime.controller_settings import ControllerSettings
from sailor.runtime.identity import create_identity
from sailor.runtime.messages import RunSettings
from sailor.runtime.state import End
from sailor.units import parse_seconds

EXIT_CODES = {End.done: 0, End.failed: 1, End.diverged: 6, End.limit: 7, End.interrupted: 75}


def run(config: Config, console: Console) -> int:
    """Train. Returns the exit code of docs/architecture.md; raises SailorError before it starts."""
    names_of(config)  # what is not installed is said before anything starts
    if config.cloud.controller is ControllerPlace.cluster:
        from actions.sending import run as send  # here: it has this module on the other side

        return send(config, console)
    return train_here(config, console)


def train_here(config: Config, console: Console) -> int:
    """Train with the controller in this process: also on the machine that is its own."""
    with signals_restored(), begin(config, console) as beginning:
        if beginning is None:
            return 0
        return _Training(config=config, console=console, beginning=beginning).run()


@dataclass(frozen=True, kw_only=True, slots=True)
class _Ending:
    """How a start of a run ended, in the words of the log."""

    end: str
    why: str
    exit_code: int
    refusal: SailorError | None = None  # told last, where the end was none that was wished for


@dataclass(kw_only=True)
class _Training:
    """One start of one run."""

    config: Config
    console: Console
    beginning: Beginning
    network: Namespaces | None = None
    anchor: Anchor | None = None

    def run(self) -> int:
        """From the plan to the report."""
        folder = self.beginning.folder
        with self.console.waiting("searching for plans"):
            asked = question(self.config, live=self.config.cloud.live is not False)
            chosen = answered(asked)[0].best
            self.config = with_standbys(self.config, chosen, asked)
            self.anchor = anchor(self.config, chosen)
        folder.plan.write_bytes(chosen.plan.to_json())
        past = read_events(folder.events) if folder.events.exists() else ()
        page = beside(self.config, self.console, folder=folder.path)
        with EventLog(folder.events, run=folder.name) as events, page:
            view = open_view(
                self._view(), console=self.console, events=events, past=past, folder=folder.path,
                keys=keys_of(folder.path), farewell=farewell(folder.path),
            )  # fmt: skip
            hear_hang_ups(view)
            trackers = None
            try:
                trackers = follow(
                    self.config, folder.path, command=self.console.command, events=events, past=past
                )
                refuse_when_spent(self.config.budget, past=past, now=events.t)
                self._announce(events, asked, chosen)
                with own_network(self.config, run=folder.name) as self.network:
                    ending = asyncio.run(self._drive(asked, chosen, events, past, view))
                ending = self._named(ending)
                events.write(
                    "run_ended", end=ending.end, why=ending.why, exit_code=ending.exit_code
                )
                summary = summarise(read_events(folder.events))
                write_summary(folder.summary, summary)
                write_report(folder.path)
            finally:
                if trackers is not None:
                    trackers.close()
                view.close()
        self.console.document(summary)
        if ending.refusal is not None:
            raise ending.refusal
        return ending.exit_code

    def _named(self, ending: _Ending) -> _Ending:
        """An end that nobody wished for, with its error (E701, E801)."""
        if ending.refusal is not None or ending.end not in (End.failed.value, End.diverged.value):
            return ending
        history = replay(read_events(self.beginning.folder.events))
        error = error_of(End(ending.end), why=ending.why, history=history, config=self.config)
        assert error is not None
        return replace(ending, refusal=error, exit_code=error.exit_code)

    def _announce(self, events: EventLog, asked: Question, chosen: Candidate) -> None:
        config, plan = self.config, chosen.plan
        events.write(
            "run_started",
            status="resumed" if self.beginning.folder.resumed else "fresh",
            model=config.model.name,
            cloud=config.cloud.name,
            parameters=asked.spec.num_parameters,
            total_steps=self.beginning.settings.total_steps,
            global_batch_size=config.train.global_batch_size,
            sequence_length=config.train.sequence_length,
            deterministic=self.beginning.settings.deterministic,
            flops_per_token=asked.spec.flops_per_token(
                sequence_length=config.train.sequence_length
            ),
            deadline_s=None
            if config.budget.deadline is None
            else parse_seconds(config.budget.deadline),
            changed=changed(config),
            versions=versions(),
            config_digest=config_digest(config),
            command=self.console.command,
            sources=self.beginning.sources,
            budget_usd=config.budget.total_usd,
        )
        told = foretold(plan, chosen.estimate, asked, priced=True)
        told["estimate_usd_per_hour"] += beside_per_hour(config)
        if self.anchor is not None:
            told["anchor"] = self.anchor.document()
        events.write("plan_chosen", **told)

    def _settings(
        self, asked: Question, requests: tuple[NodeRequest, ...], past: tuple[Event, ...]
    ) -> ControllerSettings:
        config, beginning = self.config, self.beginning
        most_gpus = asked.catalogue.pool.max_gpus_per_machine
        spot = [asked.believed.get((r.zone, r.machine_type), PRIOR) for r in requests if r.spot]
        # Machines that are not taken away fail all the same; the worst place sets the pace.
        hazard = max(spot, key=lambda h: h.events_per_machine_hour, default=PRIOR)
        return ControllerSettings(
            directory=beginning.folder.path,
            run=RunSettings(
                run=beginning.folder.name,
                spec=asked.spec,
                pieces=finest_pieces(asked.spec, max_degree=most_gpus),
                train=beginning.settings,
                checkpoint_directory=beginning.checkpoint_directory,
                compare_every=config.checkpoint.compare_every,
                anchored=self.anchor is not None,
            ),
            limits=limits(config, initial_nodes=len(requests)),
            nodes=requests,
            host=bare(config.runtime.host) if self.network is None else self.network.host,
            port=config.runtime.port,
            heartbeat_s=parse_seconds(config.runtime.heartbeat),
            lease_s=parse_seconds(config.runtime.lease),
            reconnect_s=parse_seconds(config.runtime.reconnect),
            silence_s=parse_seconds(config.runtime.silence),
            keep=config.checkpoint.keep,
            keep_every=config.checkpoint.keep_every,
            losses={
                event["step"]: math.nan if event.get("skipped") else event["loss"]
                for event in past
                if event.kind == "step" and event.get("loss") is not None
            },
            recorded=frozenset((e.generation, e["step"]) for e in past if e.kind == "step"),
            hazard=LossRate(losses=hazard.shape * hazard.mean_bulk, machine_s=hazard.rate * 3600),
            rehearse=config.runtime.rehearse,
            anchor=None if self.anchor is None else self.anchor.request(),
            anchor_join_s=parse_seconds(config.cloud.join),
            stragglers=stragglers(config),
            rebalance_every_s=rebalance_every_s(config),
            # Machines that share this computer's own network have no lines to measure.
            link_factor=None if shares_network(config) else config.runtime.link_factor,
        )

    def _view(self) -> str:
        return "quiet" if self.config.output is Output.json else self.config.ui.mode.value

    async def _drive(
        self, asked: Question, chosen: Candidate, events: EventLog, past: tuple[Event, ...],
        view: View,
    ) -> _Ending:  # fmt: skip
        """Controller, machines and faults, until the run has ended and all is released."""
        config, folder = self.config, self.beginning.folder
        requests = first_requests(config, chosen)
        terrain, worth = Terrain(asked, chosen.plan), Worth(asked, chosen.plan)
        terrain.changed.append(worth.learn)
        keys = folder.path / ".identity"
        controller = Controller(
            self._settings(asked, requests, past),
            identity=create_identity(keys, run=folder.name),
            replan=terrain.replan,
            not_worth=worth.not_worth if config.cloud.replace else None,
            foretold=lambda plan: foretold(
                plan, terrain.asked.estimate(plan), terrain.asked, priced=False
            ),
            links=terrain,
            prospect=worth,
            events=events,
        )
        ends: list[SailorError] = []
        recruiter = Recruiter(
            self._crew(asked, chosen, target=len(requests)),
            events=events,
            run=controller,
            gain=worth.gain,
            give_up=lambda refusal: self._give_up(refusal, ends, controller),
            patience_s=parse_seconds(config.planner.patience),
        )
        machines = machinery(
            config, asked, run=folder.name, folder=folder.path, controller=await controller.start(),
            identity=keys, tokens=self.beginning.tokens, tell_capacity=recruiter.tell_capacity,
            network=self.network, host=None if self.anchor is None else self.anchor.host,
        )  # fmt: skip
        wanted = [n for n in controller.members if self.anchor is not None or not is_anchor(n)]
        taken = machines.provisioner.adopt(*wanted)
        controller.adopt(taken)
        recruiter.take_over(past, taken)
        for proof in await machines.leftovers(taken):
            events.write(
                "node_released", node=proof.node, released=proof.released, proof=proof.proof
            )
        running = asyncio.ensure_future(controller.run(machines.provisioner))
        with stop_signals(
            ask=lambda why: controller.ask_stop(End.interrupted, why),
            now=running.cancel,  # it still releases every machine; once it has ended, nothing
            unwatched=lambda: goes_on_without_terminal(view),
        ) as codes:
            async with self._beside(controller, machines, recruiter, events, past):
                try:
                    outcome = await running
                except asyncio.CancelledError:
                    return _Ending(end="killed", why="told to stop twice", exit_code=codes[0])
        if ends:
            error = ends[0]
            return _Ending(
                end=outcome.end.value, why=error.what, exit_code=error.exit_code, refusal=error
            )
        return _Ending(end=outcome.end.value, why=outcome.why, exit_code=EXIT_CODES[outcome.end])

    @asynccontextmanager
    async def _beside(
        self, controller: Controller, machines: Machinery, recruiter: Recruiter, events: EventLog,
        past: tuple[Event, ...],
    ) -> AsyncIterator[None]:  # fmt: skip
        """What runs beside the controller while it runs: limits, faults, the trace, recruiting."""
        config = self.config
        tasks = [
            asyncio.ensure_future(
                watch(
                    config.budget,
                    events=events,
                    past=past,
                    afterwards=Afterwards.of(config.cloud),
                    stop=lambda why: controller.ask_stop(End.limit, why),
                )
            )
        ]
        injector = None
        if machines.breakable is not None:
            injector = FaultInjector(
                self.beginning.faults,
                events=events,
                machines=machines.breakable,
                join=self._joiner(controller, recruiter),
                seed=config.seed,
                past=past,
                disk=_disk(self.beginning.checkpoint_directory),
            )
            injector.start()
        if machines.play is not None:
            tasks.append(asyncio.ensure_future(_play(machines.play, events)))
        if config.cloud.replace:
            recruiter.start()
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await recruiter.stop()
            if injector is not None:
                await injector.stop()
            if machines.close is not None:
                await machines.close()

    def _crew(self, asked: Question, chosen: Candidate, *, target: int) -> Crew:
        config = self.config
        # A trace that is played faster closes and settles its places faster as well.
        pace = config.cloud.trace.faster if config.cloud.name == "trace" else 1.0
        usual = Rules()
        per_hour = config.budget.per_hour_usd
        if per_hour is not None:
            per_hour -= beside_per_hour(config)
        rules = Rules(
            join_s=parse_seconds(config.cloud.join),
            dollars_per_hour=per_hour,
            back_off=BackOff(
                first_s=usual.back_off.first_s / pace, longest_s=usual.back_off.longest_s / pace
            ),
            settle_s=usual.settle_s / pace,
        )
        offers = offers_by_place(config, asked, chosen)
        return Crew(
            target=target,
            offers=offers,
            rules=rules,
            outlooks={
                place: foreseen(
                    losses=hazard.shape * hazard.mean_bulk,
                    machine_hours=hazard.rate,
                    obtainable=asked.catalogue.obtainable.get(place[:2]) if place[2] else None,
                )
                for place, offer in offers.items()
                for hazard in (hazard_of(offer, asked.believed),)
            },
        )

    def _give_up(self, refusal: Refusal, ends: list[SailorError], controller: Controller) -> None:
        """No machine can be had: stop, and end as the cloud's answer says."""
        error: SailorError = refusal.error
        if not refusal.lasting:  # it may be had later, by the same command
            fix = error.fix or "planner.patience=2h   waits longer"
            error = Interrupted(
                error.what, code=error.code, why=error.why, where=error.where, fix=fix
            )
        ends.append(error)
        controller.ask_stop(End.interrupted, error.what)

    def _joiner(self, controller: Controller, recruiter: Recruiter) -> Callable[[], None]:
        """Asks for one more machine each time it is called, up to cloud.max_nodes."""
        config = self.config
        zones = list(dict.fromkeys(zone for zone, _, _ in recruiter.crew.offers))
        apart = config.cloud.standbys or 0
        spare = iter(range(config.cloud.nodes + apart, config.cloud.max_nodes + apart))
        tasks = []

        def join() -> None:
            index = next(spare, None)
            if index is not None:
                request = NodeRequest(
                    node=f"node-{index + 1}",
                    zone=zones[index % len(zones)],
                    machine_type=LOCAL_MACHINE,
                    spot=True,
                )
                tasks.append(asyncio.ensure_future(controller.add_nodes(request)))

        return join


def _disk(checkpoints: str) -> FullDisk | None:
    """Where durable checkpoints go, if that is a folder."""
    return None if is_remote(checkpoints) else FullDisk(Path(checkpoints))


async def _play(play: Callable[[], Coroutine[Any, Any, None]], events: EventLog) -> None:
    """Let a trace's time begin when training does: booting is real, and would be half of it."""
    begun = asyncio.Event()

    def see(event: Event) -> None:
        if event.kind == "generation_started":
            begun.set()

    unsubscribe = events.subscribe(see)
    try:
        await begun.wait()
    finally:
        unsubscribe()
    await play()
