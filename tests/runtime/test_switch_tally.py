"""What a switch cost, for its line in the log."""

from __future__ import annotations

from sailor.runtime.messages import Switched
from sailor.runtime.switch_tally import SwitchTally


def told(node: str, *, generation: int = 2, cpu_s: float = 0.0, num_bytes: int = 0) -> Switched:
    return Switched(
        generation=generation, node=node, copy_s=0.1, bytes_moved=num_bytes, cpu_s=cpu_s
    )


def test_the_busiest_of_those_that_stay_and_of_those_that_come_are_told_apart():
    tally = SwitchTally()
    tally.halted(cpu_s=10.0)
    tally.halted(cpu_s=10.4)  # only the first counts
    tally.switched(told("a", cpu_s=0.02), stayed=True)
    tally.switched(told("b", cpu_s=0.01), stayed=True)
    tally.switched(told("c", cpu_s=0.5, num_bytes=100), stayed=False)
    tally.gone(cpu_s=11.0)
    assert tally.fields(2) == {
        "bytes_moved": 100, "stayer_cpu_s": 0.02, "newcomer_cpu_s": 0.5, "controller_cpu_s": 1.0,
    }  # fmt: skip


def test_of_another_generation_nothing_is_known_and_the_next_one_begins_anew():
    tally = SwitchTally()
    tally.switched(told("a", cpu_s=0.02, num_bytes=7), stayed=True)
    assert tally.fields(3) == {"bytes_moved": 0}
    tally.switched(told("a", generation=3, cpu_s=0.01, num_bytes=1), stayed=True)
    tally.gone(cpu_s=5.0)
    assert tally.fields(3)["stayer_cpu_s"] == 0.01
    assert tally.fields(3)["bytes_moved"] == 1
    assert tally.fields(3)["controller_cpu_s"] == 0.0  # nobody was seen to halt
