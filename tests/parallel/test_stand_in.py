"""Who takes whose seat when a layout is kept."""

from dataclasses import replace

from sailor.parallel.layout import Layout
from sailor.parallel.stand_in import same_seat, stand_in
from sailor.parallel.transition import change_between
from tests.helpers.builders import a_layout, a_member, a_plan, a_spec


def two_by_two():
    """Two replicas of two stages on n0 to n3."""
    return a_layout(a_plan([2], [2]))


def keeps(old, new, node):
    ranks = [layout.rank_of(a_member(node).workers[0]) for layout in (old, new)]
    return same_seat(old, ranks[0], new, ranks[1])


def members(*names, **changes):
    return [a_member(name, **changes) for name in names]


def test_the_standby_takes_the_leavers_seat_and_everybody_else_keeps_theirs():
    old = two_by_two()
    new = stand_in(old, staying=members("n0", "n2", "n3"), others=members("n9"))
    assert [w.node for w in new.workers] == ["n0", "n9", "n2", "n3"]
    assert new.plan == old.plan
    for node in ("n0", "n2", "n3"):
        assert keeps(old, new, node)
    change = change_between(old, new)
    assert [len(boxes) > 0 for boxes in change.arriving] == [False, True, False, False]
    assert change.kept
    assert all("n1/" not in group.key for group in change.kept)


def test_a_replica_less_leaves_the_others_at_the_same_work_and_another_cut_does_not():
    three = a_layout(a_plan([], [], [], microbatches=[2, 2, 2]))
    two = Layout.of(
        a_plan([], [], microbatches=[3, 3]), spec=three.spec, pieces=1,
        members=members("n0", "n2"), previous=three,
    )  # fmt: skip
    assert keeps(three, two, "n0")
    assert keeps(three, two, "n2")  # which is another rank now
    cut = Layout.of(
        a_plan([2], microbatches=[6]), spec=three.spec, pieces=1, members=members("n0", "n2"),
        previous=three,
    )  # fmt: skip
    assert not keeps(three, cut, "n0")


def test_nobody_missing_leaves_the_very_same_layout():
    old = two_by_two()
    assert stand_in(old, staying=members("n0", "n1", "n2", "n3"), others=members("n9")) is old


def test_two_leavers_and_one_standby_cannot_keep_the_layout():
    assert stand_in(two_by_two(), staying=members("n0", "n3"), others=members("n9")) is None


def test_a_restarted_worker_keeps_the_seat_of_its_slot():
    old = two_by_two()
    staying = [*members("n0", "n2", "n3"), a_member("n1", incarnation=2)]
    new = stand_in(old, staying=staying, others=members("n9"))
    assert [(w.node, w.incarnation) for w in new.workers] == [
        ("n0", 1), ("n1", 2), ("n2", 1), ("n3", 1),
    ]  # fmt: skip


def test_a_node_that_cannot_fill_its_tensor_group_gives_up_all_of_it():
    layout = Layout.of(a_plan([], tp=2), spec=a_spec(), pieces=2, members=[a_member("n0", slots=2)])
    half = replace(a_member("n0", slots=2), workers=a_member("n0", slots=2).workers[:1])
    new = stand_in(layout, staying=[half], others=[a_member("n1"), a_member("n2", slots=2)])
    assert [str(w) for w in new.workers] == ["n2/0.1", "n2/1.1"]
    assert stand_in(layout, staying=[half], others=[a_member("n1")]) is None


def test_the_same_zone_comes_first_and_a_zone_the_plan_does_not_use_never():
    old = two_by_two()
    staying = members("n0", "n2", "n3")
    foreign = a_member("n8", zone="z")
    assert stand_in(old, staying=staying, others=[foreign]) is None
    assert "n9" in stand_in(old, staying=staying, others=[foreign, a_member("n9")]).nodes


def test_another_zone_of_the_plan_is_written_into_the_stage_that_moves():
    stages = two_by_two().plan
    first = replace(stages.replicas[0].stages[0], zone="b")
    plan = replace(
        stages,
        replicas=(
            replace(stages.replicas[0], stages=(first, stages.replicas[0].stages[1])),
            stages.replicas[1],
        ),
    )
    nodes = [a_member("n0", zone="b"), *members("n1", "n2", "n3")]
    old = Layout.of(plan, spec=a_spec(), pieces=1, members=nodes)
    staying = [member for member in nodes if member.node != "n0"]
    new = stand_in(old, staying=staying, others=members("n9"))
    assert new.plan.replicas[0].stages[0].zone == "a"
    assert new.boxes == old.boxes
    assert keeps(old, new, "n1")


def test_a_machine_of_another_type_does_not_fit():
    other = replace(a_member("n9"), machine_type="bigger")
    assert stand_in(two_by_two(), staying=members("n0", "n1", "n2"), others=[other]) is None
