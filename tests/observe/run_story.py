"""Tells the story of a made-up run as events, for tests of what is drawn from them."""

from __future__ import annotations

from typing import Any, Self

from sailor.observe.events import Event, contract_problems

BATCH = 8
SEQUENCE = 16


class Story:
    """Events on a clock moved by hand. Every method appends and returns the story."""

    def __init__(self) -> None:
        self.t = 0.0
        self.events: list[Event] = []

    def say(self, kind: str, *, generation: int = 0, after: float = 0.0, **fields: Any) -> Self:
        """One event, ``after`` seconds later than the last; it must keep the contract."""
        assert contract_problems(kind, fields) == []
        self.t += after
        self.events.append(
            Event(
                seq=len(self.events) + 1,
                t=self.t,
                time="2027-01-15T08:00:00.000Z",
                run="swift-otter",
                generation=generation,
                kind=kind,
                fields=fields,
            )
        )
        return self

    def start(self, status: str = "fresh", **changes: Any) -> Self:
        fields = {
            "status": status, "model": "gpt_tiny", "parameters": 820_000, "total_steps": 20,
            "global_batch_size": BATCH, "sequence_length": SEQUENCE, "deterministic": True,
            "config_digest": "7c1e", "command": "python run.py model=gpt_tiny",
        }  # fmt: skip
        return self.say("run_started", **{**fields, **changes})

    def nodes(self, *names: str, price_per_hour: float = 0.0, boot: float = 1.0) -> Self:
        for i, name in enumerate(names):
            self.say(
                "node_requested", node=name, zone=f"local-{'ab'[i % 2]}", machine_type="cpu-1",
                spot=True, price_per_hour=price_per_hour,
            )  # fmt: skip
        for i, name in enumerate(names):
            self.say(
                "node_joined", after=boot if i == 0 else 0.0, node=name,
                zone=f"local-{'ab'[i % 2]}", machine_type="cpu-1", pid=1000 + i,
                workers=[{"worker": f"{name}/0.1", "pid": 2000 + i}],
            )  # fmt: skip
        return self

    def generation(
        self, number: int, *nodes: str, step: int = 0, layout: str = "", after: float = 0.0
    ) -> Self:
        return self.say(
            "generation_started", generation=number, after=after, step=step,
            layout=layout or f"pp1 x dp{len(nodes)} x tp1", world_size=len(nodes),
            nodes=list(nodes), kept_groups=1, built_groups=2,
            ranks=[
                {"rank": i, "worker": f"{node}/0.1", "replica": i, "stage": 0, "tensor_rank": 0}
                for i, node in enumerate(nodes)
            ],
        )  # fmt: skip

    def steps(
        self, first: int, last: int, *, generation: int, seconds: float = 1.0, gap: float = 0.0,
        **changes: Any,
    ) -> Self:  # fmt: skip
        for step in range(first, last + 1):
            fields = {
                "step": step, "loss": 6.0 - 0.1 * step, "tokens": BATCH * SEQUENCE,
                "grad_norm": 1.0, "learning_rate": 1e-3, "seconds": seconds, "phases": {},
                "first_sample": (step - 1) * BATCH, "num_samples": BATCH,
            }  # fmt: skip
            self.say("step", generation=generation, after=seconds + gap, **{**fields, **changes})
        return self

    def transition(self, number: int, cause: str, *, planned: bool, after: float = 0.0) -> Self:
        return self.say(
            "transition_started", generation=number, after=after, cause=cause, planned=planned
        )

    def pause(self, number: int, cause: str, *, planned: bool, redone: int = 0) -> Self:
        return self.say(
            "pause", generation=number, cause=cause, planned=planned, detect_s=0.1, decide_s=0.05,
            prepare_s=0.2, copy_s=0.1, switch_s=0.05, first_step_s=0.12, total_s=0.62,
            steps_redone=redone, source="memory",
        )  # fmt: skip

    def end(self, end: str = "done", exit_code: int = 0, after: float = 0.0) -> Self:
        return self.say("run_ended", after=after, end=end, why="", exit_code=exit_code)


def demo() -> Story:
    """Four nodes; one preempted with notice, one killed, one joins; ends after step 20.

    Steps 9 and 10 of generation 2 are lost with node-3 and done again. 1 s a step.
    """
    story = Story().start()
    story.say(
        "plan_chosen", generation=1, plan={"model": "gpt_tiny"}, describe="pp1 x dp4 x tp1",
        estimate_step_s=0.8, estimate_usd_per_hour=0.4,
    )  # fmt: skip
    story.nodes("node-1", "node-2", "node-3", "node-4", price_per_hour=0.1, boot=2.0)
    story.transition(1, "start", planned=False)
    story.generation(1, "node-1", "node-2", "node-3", "node-4", after=1.0)
    story.steps(1, 5, generation=1)
    story.say("fault_injected", fault="preempt", target="node-2", at="step 5")
    story.say("notice", generation=1, node="node-2", seconds=30.0, source="local")
    story.transition(2, "node-2 leaves in 30 s", planned=True)
    story.steps(6, 6, generation=1)
    story.generation(2, "node-1", "node-3", "node-4", step=6, after=0.5)
    story.steps(7, 7, generation=2)
    story.pause(2, "node-2 leaves in 30 s", planned=True)
    story.say("node_released", node="node-2", proof="pid 1001 gone")
    story.steps(8, 10, generation=2, eval_loss=None)
    story.say("fault_injected", fault="kill_node", target="node-3", at="step 10")
    story.say(
        "node_lost", generation=2, after=0.6, node="node-3", cause="connection lost", silent_s=0.2
    )
    story.transition(3, "node-3 lost: connection closed", planned=False)
    story.generation(3, "node-1", "node-4", step=8, after=0.4)
    story.steps(9, 9, generation=3)
    story.pause(3, "node-3 lost: connection closed", planned=False, redone=2)
    story.nodes("node-5", price_per_hour=0.1, boot=0.0)
    story.transition(4, "node-5 joined", planned=True)
    story.steps(10, 12, generation=3)
    story.say("snapshot", generation=3, step=12, workers=1, bytes=4_000_000, stall_s=0.25,
              copy_s=0.0, slowest="node-1/0.1")  # fmt: skip
    story.say("persisted", generation=3, step=12, bytes=8_000_000, seconds=0.3, path="c/12")
    story.generation(4, "node-1", "node-4", "node-5", step=12, after=0.5)
    story.steps(13, 13, generation=4)
    story.pause(4, "node-5 joined", planned=True)
    story.steps(14, 20, generation=4)
    story.say("evaluated", generation=4, after=0.4, step=20, eval_loss=4.2, seconds=0.4)
    story.say("persisted", generation=4, after=0.1, step=20, bytes=8_000_000, seconds=0.1,
              path="c/20")  # fmt: skip
    for node in ("node-1", "node-3", "node-4", "node-5"):
        story.say("node_released", after=0.1, node=node, proof="pid gone, group empty")
    return story.end()
