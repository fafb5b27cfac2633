"""What to resume from: the newest step every box can reach, each box from the nearest place."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from sailor.checkpoint.placement import domain, needing_copies, peers
from sailor.checkpoint.restore import Copy, choose, on_history
from tests.helpers.builders import a_layout, a_member, a_plan

PIPELINE = a_layout(a_plan([2]))  # n0 has blocks 0-1, n1 blocks 2-3
FIRST, LAST = (frozenset(box.name for box in boxes) for boxes in PIPELINE.boxes)


def held(rank, *, step, node=None, live=False, generation=1, layout=PIPELINE):
    worker = layout.workers[rank]
    names = frozenset(box.name for box in layout.boxes[rank])
    return Copy(
        step=step,
        boxes=names,
        generation=generation,
        worker=worker,
        node=node or worker.node,
        live=live,
    )


def tiers(restore, rank):
    return {name: fetch.tier for fetch in restore.fetches[rank] for name in fetch.boxes}


def test_without_any_copy_everything_starts_from_the_seed():
    restore = choose(PIPELINE, [], starts={})
    assert restore.step == 0
    assert restore.farthest_tier == "init"
    assert set(tiers(restore, 0)) == FIRST


def test_workers_that_still_hold_their_state_keep_it():
    copies = [held(r, step=7, live=live) for r in (0, 1) for live in (True, False)]
    restore = choose(PIPELINE, copies, starts={})
    assert restore.step == 7
    assert restore.farthest_tier == "live"


def test_who_stays_keeps_all_of_it_and_only_who_comes_fetches():
    layout = a_layout(a_plan([2], [2]))
    copies = [held(r, step=7, live=live, layout=layout) for r in range(4) for live in (True, False)]
    newcomer = a_member("n9").workers[0]
    moved = replace(layout, workers=(layout.workers[0], newcomer, *layout.workers[2:]))
    restore = choose(moved, copies, starts={})
    assert restore.step == 7
    for rank in (0, 2, 3):
        (kept,) = restore.fetches[rank]
        assert kept.tier == "live"
        assert {*kept.boxes} == layout.kept_names[rank]
    assert {fetch.tier for fetch in restore.fetches[1]} == {"peer"}
    # Who leaves and who has the same stage share it; the tied token matrix is everywhere.
    assert {fetch.copy.node for fetch in restore.fetches[1]} == {"n1"}  # it leaves: it has the time
    assert {*tiers(restore, 1)} == layout.kept_names[1]


def test_those_ahead_go_back_to_the_step_all_can_reach():
    copies = [
        held(0, step=8, live=True),
        held(0, step=8),
        held(0, step=7),
        held(1, step=7, live=True),
        held(1, step=7),
    ]
    restore = choose(PIPELINE, copies, starts={})
    assert restore.step == 7
    assert set(tiers(restore, 0).values()) == {"memory"}
    # The tied token matrix of the last stage is kept as well, for the worker holds it live.
    assert set(tiers(restore, 1).values()) == {"live"}


def test_a_step_that_some_worker_could_only_have_from_anothers_tensors_is_not_reachable():
    """A snapshot that was skipped at a halt would have left such boxes at their initial values."""
    swapped = replace(PIPELINE, workers=PIPELINE.workers[::-1])
    copies = [held(r, step=8, live=True) for r in (0, 1)] + [held(r, step=7) for r in (0, 1)]
    assert choose(PIPELINE, copies, starts={}).step == 8
    restore = choose(swapped, copies, starts={})
    assert restore.step == 7
    assert restore.farthest_tier == "peer"


def test_a_lost_nodes_boxes_come_from_the_peer_that_copied_them():
    copies = [held(0, step=7), held(1, step=7, node="n0")]
    survivor = replace(PIPELINE, workers=(PIPELINE.workers[0], a_member("n2").workers[0]))
    restore = choose(survivor, copies, starts={})
    assert restore.step == 7
    assert set(tiers(restore, 0).values()) == {"memory"}
    assert set(tiers(restore, 1).values()) == {"peer"}


def test_a_durable_checkpoint_is_used_only_when_memory_cannot_serve_it_newer():
    disk = Copy(step=5, boxes=FIRST | LAST, path="ckpt/step-5")
    assert choose(PIPELINE, [disk, held(0, step=7)], starts={}).step == 5
    newest = choose(PIPELINE, [disk, held(0, step=7), held(1, step=7)], starts={})
    assert newest.step == 7
    assert newest.farthest_tier == "memory"


def test_an_anchor_comes_after_peers_and_before_disk():
    everything = FIRST | LAST
    anchored = Copy(step=7, boxes=everything, node="anchor-1", anchor=True)
    disk = Copy(step=7, boxes=everything, path="ckpt/step-7")
    alone = choose(PIPELINE, [disk, anchored], starts={})
    assert (alone.step, alone.farthest_tier) == (7, "anchor")
    among = choose(PIPELINE, [disk, anchored, held(0, step=7), held(1, step=7, node="n0")],
                   starts={})  # fmt: skip
    assert set(tiers(among, 0).values()) == {"memory"}
    assert set(tiers(among, 1).values()) == {"peer"}
    newer = Copy(step=8, boxes=everything, path="ckpt/step-8")
    assert choose(PIPELINE, [newer, anchored], starts={}).farthest_tier == "disk"


def test_a_state_that_was_given_up_is_never_mixed_in():
    # Generation 1 reached step 8 in places; generation 2 went back to 6 and is at 7 now.
    stale = held(0, step=8, generation=1)
    assert not on_history(stale, {1: 0, 2: 6})
    assert on_history(held(0, step=6, generation=1), {1: 0, 2: 6})
    copies = [stale, held(1, step=8, generation=1), held(0, step=7, generation=2),
              held(1, step=7, generation=2)]  # fmt: skip
    assert choose(PIPELINE, copies, starts={1: 0, 2: 6}).step == 7


def served_by(restore, layout, rank):
    """Bytes that each node serves a rank."""
    sizes = {box.name: box.num_bytes for box in layout.kept[rank]}
    return {
        fetch.copy.node: sum(sizes[name] for name in fetch.boxes) for fetch in restore.fetches[rank]
    }


def a_newcomer_among_replicas():
    layout = a_layout(a_plan([], [], []))  # three whole replicas
    copies = [held(0, step=3, layout=layout), held(1, step=3, layout=layout)]
    return replace(layout, workers=(*layout.workers[:2], a_member("n9").workers[0])), copies


def test_reads_of_replicated_boxes_are_spread_over_survivors_portion_by_portion(monkeypatch):
    layout, copies = a_newcomer_among_replicas()
    largest = max(box.num_bytes for box in layout.kept[2])
    monkeypatch.setattr("sailor.checkpoint.restore.PORTION_BYTES", largest)
    served = served_by(choose(layout, copies, starts={}), layout, 2)
    assert set(served) == {"n0", "n1"}
    assert abs(served["n0"] - served["n1"]) <= 2 * largest


def test_what_is_less_than_a_portion_is_not_worth_a_second_sender():
    layout, copies = a_newcomer_among_replicas()
    assert layout.kept[2]
    assert set(served_by(choose(layout, copies, starts={}), layout, 2)) == {"n0"}


@given(st.sets(st.integers(0, 3)), st.integers(0, 3))
@settings(max_examples=50)
def test_every_box_gets_exactly_one_source_at_the_chosen_step(lost, victim_step):
    layout = a_layout(a_plan([1, 2, 3]))
    partner = {0: 1, 1: 0, 2: 3, 3: 2}
    copies = []
    for rank in range(4):
        for step in (5, 6):
            if rank == victim_step and step == 6:
                continue  # this one had not applied step 6 yet
            for holder in (rank, partner[rank]):
                if holder not in lost:
                    copies.append(held(rank, step=step, node=f"n{holder}", layout=layout))
    restore = choose(layout, copies, starts={})
    survives = all({r, partner[r]} - lost for r in range(4))
    assert restore.step == (5 if survives else 0)
    for rank, fetches in enumerate(restore.fetches):
        names = [name for fetch in fetches for name in fetch.boxes]
        assert sorted(names) == sorted(box.name for box in layout.boxes[rank])
        for fetch in fetches:
            assert fetch.copy is None or fetch.copy.step == restore.step


# Placement


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=12))
def test_every_node_with_company_has_a_keeper_that_is_not_itself(zones):
    members = [a_member(f"n{i:02}", zone=zone) for i, zone in enumerate(zones)]
    keeps = peers(members)
    assert set(keeps) == {member.node for member in members}
    for node, keepers in keeps.items():
        assert node not in keepers
        assert len(keepers) == (1 if len(members) > 1 else 0)


@given(st.integers(1, 6))
def test_two_equal_zones_are_paired_across(half):
    members = [a_member(f"n{i:02}", zone="ab"[i % 2]) for i in range(2 * half)]
    zone_of = {member.node: domain(member) for member in members}
    keeps = peers(members)
    for node, (keeper,) in keeps.items():
        assert zone_of[node] != zone_of[keeper]
        assert keeps[keeper] == (node,), "pairs, not rings"


def test_an_odd_node_copies_outside_its_zone():
    members = [a_member("n0", zone="a"), a_member("n1", zone="b"), a_member("n2", zone="b")]
    keeps = peers(members)
    assert keeps["n2"] == ("n0",)


def test_boxes_on_two_nodes_need_no_copy():
    assert needing_copies(a_layout(a_plan([2], [2]))) == {}
    alone = needing_copies(PIPELINE)
    assert {box.tensor for boxes in alone.values() for box in boxes} == {
        t.name for t in PIPELINE.spec.tensors if t.name != "embedding.tokens.weight"
    }
