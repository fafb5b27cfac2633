"""Boxes, layouts and what differs between two of them: properties over random valid plans."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sailor.parallel.boxes import all_boxes, allowed_degrees, cut, finest_pieces
from sailor.parallel.layout import GroupKind, Layout
from sailor.parallel.transition import change_between
from sailor.plan import Plan, Replica
from tests.helpers.builders import a_layout, a_member, a_plan, a_spec, a_stage

SPEC = a_spec()
PIECES = 4


@st.composite
def plans(draw, max_replicas=3):
    """Heterogeneous plans of the 4-block test model: any cuts, any degrees, any shares."""
    replicas = []
    for _ in range(draw(st.integers(1, max_replicas))):
        cuts = sorted(draw(st.sets(st.integers(1, SPEC.num_layers - 1))))
        bounds = [0, *cuts, SPEC.num_layers]
        stages = tuple(
            a_stage(a, b, tp=draw(st.sampled_from([1, 2, 4])))
            for a, b in zip(bounds[:-1], bounds[1:], strict=True)
        )
        replicas.append(
            Replica(
                stages=stages,
                num_microbatches=draw(st.integers(1, 3)),
                microbatch_size=draw(st.integers(1, 2)),
            )
        )
    return Plan(model=SPEC.name, replicas=tuple(replicas), sequence_length=16)


def seated(plan, *, previous=None, offset=0):
    members = [a_member(f"n{i + offset}", slots=4) for i in range(plan.num_gpus)]
    return Layout.of(plan, spec=SPEC, pieces=PIECES, members=members, previous=previous)


@given(plans())
def test_a_plan_survives_json(plan):
    assert Plan.from_json(plan.to_json()) == plan
    assert plan.to_json() == Plan.from_json(plan.to_json()).to_json()


@given(plans())
@settings(max_examples=60)
def test_every_replica_holds_every_box_exactly_once_per_use(plan):
    layout = seated(plan)
    wanted = set(all_boxes(SPEC, pieces=PIECES))
    assert set(layout.owners) == wanted
    for replica in range(len(plan.replicas)):
        held: dict = {}
        for rank, at in enumerate(layout.coordinates):
            if at.replica != replica:
                continue
            for box in layout.boxes[rank]:
                held.setdefault(box, []).append(at)
        assert set(held) == wanted
        for box, places in held.items():
            tensor = next(t for t in SPEC.tensors if t.name == box.tensor)
            if tensor.split_axis is not None:
                stages = [at.stage for at in places]
                assert len(stages) == len(set(stages)), "a cut box twice in one stage"


@given(plans())
@settings(max_examples=60)
def test_a_ranks_boxes_are_the_same_whatever_its_neighbours_do(plan):
    layout = seated(plan)
    for rank, at in enumerate(layout.coordinates):
        stage = layout.stage_of(rank)
        total = sum(box.numel for box in layout.boxes[rank])
        tensors = SPEC.tensors_of(
            blocks=stage.layers, first=layout.is_first(rank), last=layout.is_last(rank)
        )
        expected = sum(
            t.numel // (stage.tensor_parallel if t.split_axis is not None else 1) for t in tensors
        )
        assert total == expected
        assert at.tensor_rank < stage.tensor_parallel


@given(plans())
@settings(max_examples=60)
def test_groups_are_in_one_order_for_all_and_cover_what_must_talk(plan):
    layout = seated(plan)
    keys = [group.key for group in layout.groups]
    assert len(keys) == len(set(keys))
    reduce = {group.ranks for group in layout.groups if group.kind is GroupKind.reduce}
    assert reduce == {ranks for ranks in layout.owners.values() if len(ranks) > 1}
    for replica in range(len(plan.replicas)):
        pairs = [g for g in layout.groups if g.kind is GroupKind.forward]
        mine = [g for g in pairs if layout.coordinates[g.ranks[0]].replica == replica]
        assert len(mine) == plan.replicas[replica].num_stages - 1
    for rank in range(layout.world_size):
        order = [layout.groups.index(group) for group in layout.groups_of(rank)]
        assert order == sorted(order)


@given(plans())
@settings(max_examples=40)
def test_nothing_changes_between_a_layout_and_itself(plan):
    layout = seated(plan)
    again = seated(plan, previous=layout)
    assert again.workers == layout.workers
    change = change_between(layout, again)
    assert change.built == change.dropped == ()
    assert change.kept == layout.groups
    assert change.bytes_moved == 0


@given(plans(), plans())
@settings(max_examples=60)
def test_a_change_names_each_arriving_box_once_and_keeps_only_equal_groups(old_plan, new_plan):
    old = seated(old_plan)
    new = seated(new_plan, previous=old, offset=1)
    change = change_between(old, new)
    assert {g.key for g in change.kept} | {g.key for g in change.built} == {
        g.key for g in new.groups
    }
    for group in change.kept:
        before = next(g for g in old.groups if g.key == group.key)
        assert [old.workers[r] for r in before.ranks] == [new.workers[r] for r in group.ranks]
    for rank, worker in enumerate(new.workers):
        before_rank = old.rank_of(worker)
        held = set(old.boxes[before_rank]) if before_rank is not None else set()
        arriving = change.arriving[rank]
        assert len(arriving) == len(set(arriving))
        assert held | set(arriving) >= set(new.boxes[rank])
        assert not held & set(arriving)


def test_a_restarted_worker_does_not_inherit_groups():
    layout = a_layout(a_plan([2], [2]))
    reborn = replace(layout.workers[0], incarnation=2)
    again = replace(layout, workers=(reborn, *layout.workers[1:]))
    change = change_between(layout, again)
    assert all(0 not in group.ranks for group in change.kept)
    assert change.arriving[0] == again.boxes[0]
    assert change.arriving[1:] == ((), (), ())


def test_survivors_keep_their_stage_when_a_replica_is_dropped():
    layout = a_layout(a_plan([2], [2]))
    members = [a_member(f"n{i}") for i in (0, 1)]
    shrunk = Layout.of(a_plan([2]), spec=SPEC, pieces=1, members=members, previous=layout)
    assert shrunk.workers == layout.workers[:2]
    assert change_between(layout, shrunk).bytes_moved == 0


def test_members_that_cannot_seat_the_plan_are_refused_by_name():
    with pytest.raises(ValueError, match="no local in a with 1 free GPU"):
        a_layout(a_plan([2], [2]), nodes=3)


def test_boxes_of_a_cut_tensor_tile_it():
    for tensor in SPEC.tensors:
        boxes = cut(tensor, pieces=PIECES)
        assert sum(box.numel for box in boxes) == tensor.numel
        assert [box.offset for box in boxes] == [i * boxes[0].extent for i in range(len(boxes))]
        assert len({box.name for box in boxes}) == len(boxes)


def test_the_cut_of_a_run_allows_every_degree_that_divides_the_model():
    assert allowed_degrees(SPEC, max_degree=8) == (1, 2, 4)
    assert finest_pieces(SPEC, max_degree=8) == 4
    assert finest_pieces(SPEC, max_degree=1) == 1
    assert allowed_degrees(a_spec(num_kv_heads=2), max_degree=8) == (1, 2)
