"""action=train: plan, rent, train through whatever happens, save, release, report.

Only wiring: every decision is made by what is wired here. A second start of a finished run says so
and changes nothing; of an unfinished one resumes it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass

from actions import domain
from actions.begin import Beginning, begin
from actions.console import Console
from actions.limits import refuse_when_spent, watch
from actions.planning import Question, question
from actions.run_folder import config_digest
from actions.signals import signals_restored, stop_signals
from provision.catalog import LOCAL_ZONES
from provision.faults import FaultInjector
from provision.local import LocalProvisioner, end_leftovers
from sailor.cluster.provisioner import NodeRequest
from sailor.config import Config, Output
from sailor.observe.events import Event, EventLog, read_events
from sailor.observe.live import open_view
from sailor.observe.report import write_report
from sailor.observe.summary import summarise, write_summary
from sailor.parallel.boxes import finest_pieces
from sailor.planner.question import Candidate
from sailor.runtime.controller import Controller, ControllerSettings, Replanner
from sailor.runtime.identity import create_identity
from sailor.runtime.messages import RunSettings
from sailor.runtime.state import End
from sailor.units import parse_seconds

EXIT_CODES = {End.done: 0, End.failed: 1, End.diverged: 6, End.limit: 7, End.interrupted: 75}


def run(config: Config, console: Console) -> int:
    """Train. Returns the exit code of docs/architecture.md; raises SailorError before it starts."""
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


@dataclass(kw_only=True)
class _Training:
    """One start of one run."""

    config: Config
    console: Console
    beginning: Beginning

    def run(self) -> int:
        """From the plan to the report."""
        folder = self.beginning.folder
        asked = question(self.config)
        chosen = asked.answer().best
        folder.plan.write_bytes(chosen.plan.to_json())
        past = read_events(folder.events) if folder.events.exists() else ()
        with EventLog(folder.events, run=folder.name) as events:
            view = open_view(
                self._view(), console=self.console, events=events, past=past, folder=folder.path
            )
            try:
                refuse_when_spent(self.config.budget, past=past, now=events.t)
                self._announce(events, asked, chosen)
                settings = self._settings(asked)
                replan = asked.replanner(chosen.plan)
                ending = asyncio.run(self._drive(settings, replan, events, past))
                events.write(
                    "run_ended", end=ending.end, why=ending.why, exit_code=ending.exit_code
                )
                summary = summarise(read_events(folder.events))
                write_summary(folder.summary, summary)
                write_report(folder.path)
            finally:
                view.close()
        self.console.document(summary)
        return ending.exit_code

    def _announce(self, events: EventLog, asked: Question, chosen: Candidate) -> None:
        config, plan = self.config, chosen.plan
        events.write(
            "run_started",
            status="resumed" if self.beginning.folder.resumed else "fresh",
            model=config.model.name,
            parameters=asked.spec.num_parameters,
            total_steps=self.beginning.settings.total_steps,
            global_batch_size=config.train.global_batch_size,
            sequence_length=config.train.sequence_length,
            deterministic=self.beginning.settings.deterministic,
            config_digest=config_digest(config),
            command=self.console.command,
        )
        events.write(
            "plan_chosen",
            plan=json.loads(plan.to_json())["plan"],
            describe=plan.describe(),
            estimate_step_s=chosen.estimate.step_seconds,
            estimate_usd_per_hour=chosen.estimate.dollars_per_hour,
        )

    def _settings(self, asked: Question) -> ControllerSettings:
        config, beginning = self.config, self.beginning
        most_gpus = asked.catalogue.pool.max_gpus_per_machine
        return ControllerSettings(
            directory=beginning.folder.path,
            run=RunSettings(
                run=beginning.folder.name,
                spec=asked.spec,
                pieces=finest_pieces(asked.spec, max_degree=most_gpus),
                train=beginning.settings,
                checkpoint_directory=beginning.checkpoint_directory,
                compare_every=config.checkpoint.compare_every,
            ),
            limits=domain.limits(config, initial_nodes=config.cloud.nodes),
            nodes=tuple(self._request(index) for index in range(config.cloud.nodes)),
            host=config.runtime.host,
            port=config.runtime.port,
            heartbeat_s=parse_seconds(config.runtime.heartbeat),
            lease_s=parse_seconds(config.runtime.lease),
            reconnect_s=parse_seconds(config.runtime.reconnect),
            silence_s=parse_seconds(config.runtime.silence),
            keep=config.checkpoint.keep,
        )

    def _request(self, index: int) -> NodeRequest:
        return NodeRequest(
            node=f"node-{index + 1}",
            zone=LOCAL_ZONES[index % len(LOCAL_ZONES)],
            machine_type="local",
            spot=True,
        )

    def _view(self) -> str:
        return "quiet" if self.config.output is Output.json else self.config.ui.mode.value

    async def _drive(
        self,
        settings: ControllerSettings,
        replan: Replanner,
        events: EventLog,
        past: tuple[Event, ...],
    ) -> _Ending:
        """Controller, machines and faults, until the run has ended and all is released."""
        config, folder = self.config, self.beginning.folder
        for proof in await end_leftovers(folder.path, run=folder.name):
            events.write(
                "node_released", node=proof.node, released=proof.released, proof=proof.proof
            )
        keys = folder.path / ".identity"
        controller = Controller(
            settings,
            identity=create_identity(keys, run=folder.name),
            replan=replan,
            events=events,
        )
        machines = LocalProvisioner(
            run=folder.name,
            folder=folder.path,
            controller=await controller.start(),
            identity=keys,
            slots={"local": config.cloud.gpus_per_node},
            zones=LOCAL_ZONES,
        )
        injector = FaultInjector(
            self.beginning.faults,
            events=events,
            machines=machines,
            join=self._joiner(controller),
            seed=config.seed,
            past=past,
        )
        task = asyncio.current_task()
        assert task is not None
        with stop_signals(
            ask=lambda why: controller.ask_stop(End.interrupted, why),
            now=lambda code: _cancel(task, code),
        ):
            injector.start()
            limits = asyncio.create_task(
                watch(
                    config.budget,
                    events=events,
                    past=past,
                    stop=lambda why: controller.ask_stop(End.limit, why),
                )
            )
            try:
                outcome = await controller.run(machines)
            except asyncio.CancelledError as stopped:
                (code,) = stopped.args
                return _Ending(end="killed", why="told to stop twice", exit_code=code)
            finally:
                limits.cancel()
                await injector.stop()
        return _Ending(end=outcome.end.value, why=outcome.why, exit_code=EXIT_CODES[outcome.end])

    def _joiner(self, controller: Controller) -> Callable[[], None]:
        """Asks for one more machine each time it is called, up to cloud.max_nodes."""
        spare = iter(range(self.config.cloud.nodes, self.config.cloud.max_nodes))
        tasks = []

        def join() -> None:
            index = next(spare, None)
            if index is not None:
                request = self._request(index)
                tasks.append(asyncio.ensure_future(controller.add_node(request)))

        return join


def _cancel(task: asyncio.Task[_Ending], code: int) -> None:
    """Stop now; winding down still releases every machine."""
    task.cancel(code)
