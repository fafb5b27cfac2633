"""What cannot be done is said in one message, before anything is rented, written or destroyed."""

from __future__ import annotations

import pytest

from tests.helpers.running import Ended, Place


def refused(ended: Ended, *, exit_code: int, code: str) -> list[str]:
    """One error of the one shape; the lines of its message."""
    assert ended.code == exit_code, ended.err
    assert ended.err.startswith(f"error[{code}] "), ended.err
    assert ended.err.count("error[") == 1
    assert "Traceback" not in ended.err + ended.out
    lines = ended.err.splitlines()
    assert lines[0].endswith(f"(exit {exit_code})")
    assert any(line.split()[:1] == ["fix"] for line in lines), ended.err
    assert not (ended.folder / "events.jsonl").exists()
    assert not (ended.folder / "checkpoints").exists()
    return lines


@pytest.mark.parametrize(
    ("arguments", "exit_code", "code", "words"),
    [
        (["model=gpt_tinny"], 2, "E102", ["gpt_tiny"]),
        (["+train.stepz=3"], 2, "E101", ["train.steps"]),
        (["planner.tensor_parallel=3"], 3, "E304", ["=2", "=4"]),
        (["planner.tensor_parallel=4", "model.num_kv_heads=2"], 3, "E304", ["num_kv_heads 2"]),
        (["planner.pipeline_parallel=9"], 3, "E304", ["planner.pipeline_parallel=4"]),
        (["planner.microbatch_size=5"], 3, "E304", ["planner.microbatch_size=4"]),
        (["model.vocab_size=100"], 5, "E505", ["model.vocab_size=256"]),
        (
            ["train.sequence_parallel=true", "planner.tensor_parallel=3"],
            2,
            "E104",
            ["train.sequence_length=30"],
        ),
        (["cloud.memory_per_gpu=100KiB"], 3, "E301", ["memory_per_gpu"]),
        (["data.path=/nowhere/at/all"], 5, "E501", ["/nowhere/at/all"]),
        (["train.sequence_length=64"], 2, "E104", ["max_positions"]),
        (["cloud=gcp"], 4, "E406", ["action=plan"]),
    ],
    ids=lambda value: value[0] if isinstance(value, list) and value else None,
)
def test_a_wrong_wish_is_one_message_with_a_way_out(
    place: Place, arguments, exit_code, code, words
):
    lines = refused(place.call(*arguments), exit_code=exit_code, code=code)
    for word in words:
        assert any(word in line for line in lines), lines


def test_an_empty_folder_of_text_is_refused_and_the_folder_kept(place: Place):
    empty = place.root / "empty"
    empty.mkdir(exist_ok=True)
    refused(place.call(f"data.path={empty}"), exit_code=5, code="E501")
    assert list(empty.iterdir()) == []
