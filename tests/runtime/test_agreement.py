"""Replicas that hold other bytes than each other are found, and only those."""

from sailor.runtime.agreement import Agreement
from tests.helpers.builders import a_layout, a_plan


def two_replicas():
    """Two replicas of two stages; and for each rank digests that agree: a box's own number."""
    layout = a_layout(a_plan([2], [2]))
    number = {box: index for index, box in enumerate(layout.owners)}
    digests = {rank: [number[box] for box in boxes] for rank, boxes in enumerate(layout.boxes)}
    return layout, digests


def tell(agreement, digests, *, step=3):
    """All ranks tell; the last answer, and that there was none before."""
    *before, last = (
        agreement.hear(agreement.layout.workers[rank], step=step, digests=told)
        for rank, told in digests.items()
    )
    assert set(before) == {None}
    return last


def test_equal_replicas_agree_on_every_box_they_share():
    layout, digests = two_replicas()
    answer = tell(Agreement(layout=layout), digests)
    assert answer.differences == ()
    assert (answer.step, answer.num_compared) == (3, len(layout.owners))


def test_one_flipped_box_is_named_with_who_holds_what():
    layout, digests = two_replicas()
    digests[2][1] += 1000
    (difference,) = tell(Agreement(layout=layout), digests).differences
    assert difference.box == layout.boxes[2][1].name
    twin = next(r for r in layout.owners[layout.boxes[2][1]] if r != 2)
    assert [workers for _, workers in difference.holders] == [
        (layout.workers[twin],), (layout.workers[2],)
    ]  # fmt: skip


def test_a_box_with_one_owner_is_compared_with_nothing():
    layout = a_layout(a_plan([2]))
    digests = {rank: range(len(boxes)) for rank, boxes in enumerate(layout.boxes)}
    answer = tell(Agreement(layout=layout), digests)
    tied = [box for box, owners in layout.owners.items() if len(owners) > 1]
    assert answer.num_compared == len(tied) == 1  # the token matrix, on both ends of the pipeline


def test_steps_that_some_rank_skipped_are_forgotten_and_strangers_ignored():
    layout, digests = two_replicas()
    agreement = Agreement(layout=layout)
    for step in range(100):
        assert agreement.hear(layout.workers[0], step=step, digests=digests[0]) is None
    assert len(agreement._told) <= 4
    stranger = a_layout(a_plan([], [], [], [], [])).workers[4]
    assert agreement.hear(stranger, step=5, digests=digests[0]) is None
    assert agreement.hear(layout.workers[0], step=5, digests=[1]) is None
    assert tell(agreement, digests, step=100).differences == ()
