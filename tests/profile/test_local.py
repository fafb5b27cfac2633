"""This computer's speed: measured once, remembered, and assumed aloud when measuring fails."""

from __future__ import annotations

import json
import logging

import sailor.profile.local as local
from sailor.profile.local import core_speed, local_gpu


def test_the_speed_is_measured_once_and_then_remembered(tmp_path):
    first = core_speed(cache=tmp_path)
    assert first.source.startswith("measured")
    assert first.flops > 1e8
    (path,) = tmp_path.iterdir()
    known = json.loads(path.read_text())
    path.write_text(json.dumps({**known, "flops": 123.0}))
    assert core_speed(cache=tmp_path).flops == 123.0


def test_a_damaged_memory_is_measured_again(tmp_path):
    core_speed(cache=tmp_path)
    (path,) = tmp_path.iterdir()
    path.write_text("{")
    assert core_speed(cache=tmp_path).flops > 1e8


def test_when_measuring_fails_a_slow_core_is_assumed_aloud(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(local.sys, "executable", str(tmp_path / "no-python"))
    with caplog.at_level(logging.WARNING):
        speed = core_speed(cache=tmp_path)
    assert speed.source.startswith("assumed")
    assert "slow core is assumed" in caplog.text
    assert list(tmp_path.iterdir()) == []


def test_workers_share_the_cores(tmp_path):
    one = local_gpu(memory_bytes=1 << 20, num_workers=1, cache=tmp_path)
    many = local_gpu(memory_bytes=1 << 20, num_workers=10_000, cache=tmp_path)
    assert many.peak_flops < one.peak_flops
    assert many.link_bytes_per_second < one.link_bytes_per_second
    # copied into shared memory, and out of it
    assert one.link_bytes_per_second == one.memory_bytes_per_second / 2
    assert not one.has_context
