"""1F1B: the right work, in an order that cannot deadlock, with bounded memory."""

from hypothesis import given
from hypothesis import strategies as st

from sailor.parallel.schedule import Backward, Forward, in_flight, one_forward_one_backward


@given(st.integers(1, 8), st.integers(1, 12))
def test_every_microbatch_goes_forward_then_backward_once_in_order(num_stages, microbatches):
    for stage in range(num_stages):
        order = one_forward_one_backward(
            stage=stage, num_stages=num_stages, num_microbatches=microbatches
        )
        forwards = [op.microbatch for op in order if isinstance(op, Forward)]
        backwards = [op.microbatch for op in order if isinstance(op, Backward)]
        assert forwards == backwards == list(range(microbatches))
        held = most = 0
        for op in order:
            held += 1 if isinstance(op, Forward) else -1
            most = max(most, held)
        assert most == in_flight(stage=stage, num_stages=num_stages, num_microbatches=microbatches)


@given(st.integers(1, 6), st.integers(1, 8))
def test_stages_executing_their_orders_never_wait_for_each_other_forever(num_stages, microbatches):
    orders = [
        list(one_forward_one_backward(
            stage=stage, num_stages=num_stages, num_microbatches=microbatches
        ))
        for stage in range(num_stages)
    ]  # fmt: skip
    done: set[tuple[int, object]] = set()
    while any(orders):
        progressed = False
        for stage, order in enumerate(orders):
            if not order:
                continue
            op = order[0]
            if isinstance(op, Forward):
                ready = stage == 0 or (stage - 1, op) in done
            else:
                ready = stage == num_stages - 1 or (stage + 1, op) in done
            if ready:
                done.add((stage, order.pop(0)))
                progressed = True
        assert progressed, "deadlock"
    assert (0, Backward(microbatches - 1)) in done
