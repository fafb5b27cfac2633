"""Seeded random faults on real processes; the life cycle alone has thousands of seeds of its own
(tests/runtime/test_lifecycle_chaos.py)."""

from __future__ import annotations

import pytest

from tests.end_to_end.chaos import APART, FEWEST, LOSES_A_NODE, a_script, alone, play


def test_a_script_is_the_same_for_the_same_seed_and_never_counts_on_too_few_machines():
    scripts = [a_script(seed=seed, events=200) for seed in range(20)]
    assert scripts[3] == a_script(seed=3, events=200)
    assert scripts[3] != scripts[4]
    for script in scripts:
        nodes = 4
        for entry in script:
            nodes += (entry["kind"] == "join") - (entry["kind"] in LOSES_A_NODE)
            assert nodes >= FEWEST
        assert [entry["at"] // APART for entry in script] != []


@pytest.mark.matrix
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_random_faults_change_nothing(place, undisturbed, seed):
    ended = play(place, undisturbed, seed=seed, events=15)  # holds it to the invariants
    assert ended.summary["status"] == "done"


@pytest.mark.matrix
@pytest.mark.parametrize("seed", [4, 5, 6])
def test_nor_do_they_where_workers_share_a_machine(place, seed):
    """What they exchange goes through memory that dies with them."""

    def undisturbed(steps):
        return alone(place, steps=steps, workers=2)

    ended = play(place, undisturbed, seed=seed, events=12, workers=2)
    assert ended.summary["status"] == "done"
