"""action=profile: times the model's parts, the optimizer and the links of the computer at hand.

The measuring is done by processes of their own (sailor/measure), which load torch. The outcome is
one versioned JSON file, named by what was measured; asked again for the same, it says that it is
there (run.fresh=true measures again).
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from rich.table import Table

from actions.console import Console
from actions.domain import compute_dtype, model_spec
from sailor.cluster.device_names import gpu_type_of
from sailor.cluster.gpu import GpuType
from sailor.config import Config, Dtype
from sailor.errors import DataError
from sailor.models.spec import ModelSpec
from sailor.profile.analytic import AnalyticProfile
from sailor.profile.local import core_speed, local_gpu
from sailor.profile.measured import (
    BadProfile,
    Cell,
    Fit,
    Measurement,
    read_measurement,
    shape_digest,
)
from sailor.profile.profile import Numerics, Part
from sailor.units import MIB, gib

SIZES = (1, 2, 4, 8)
DEGREES = (1, 2)
DEADLINE_SECONDS = 600.0


def run(config: Config, console: Console) -> int:
    """Measure, or find what was measured. Raises DataError E520 when measuring fails."""
    spec = model_spec(config)
    compute_bytes = 4 if compute_dtype(config) is Dtype.float32 else 2
    device = _device_of(config)
    path = _path(config, spec, compute_bytes, device)
    known = not config.run.fresh and path.exists()
    with console.waiting("measuring"):
        measurement = read_profile(path) if known else _measure(config, spec, compute_bytes, device)
    if not known:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_suffix(f".{os.getpid()}")
        beside.write_text(measurement.to_json())
        beside.replace(path)
    compared = _compared(measurement, spec, device.gpu)
    console.print(_table(compared))
    links = {
        "point to point": measurement.point_to_point,
        "all-reduce of two": measurement.all_reduce,
    }
    for name, fit in links.items():
        if fit is not None:
            rate = "-" if not fit.beta else f"{1 / fit.beta / MIB:,.0f} MiB/s"
            console.print(
                f"{name}: {_ms(fit.alpha)} to start, then {rate} (worst miss {fit.worst:.0%})"
            )
    if device.gpu is None:
        console.print(
            f"no list of prices has a {device.name}: only plans that name it so will use this"
        )
    console.print(
        f"profile {'is there already' if known else 'written'}: {path}\n"
        f"use it with planner.profile={path}",
        soft_wrap=True,
    )  # fmt: skip
    console.document(
        {"action": "profile", "path": str(path), "measured_now": not known, "parts": compared,
         "provenance": dict(measurement.provenance)}
    )  # fmt: skip
    return 0


def read_profile(path: Path) -> Measurement:
    """The measurement in a file. Raises DataError E520 with what is wrong with it."""
    try:
        return read_measurement(path.read_text())
    except (OSError, UnicodeDecodeError, BadProfile) as error:
        raise DataError(
            "the profile cannot be used", code="E520", why=str(error), where=str(path),
            fix="python run.py action=profile run.fresh=true   measures again",
        ) from error  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Device:
    """What is measured. ``name`` is what plans call it, ``gpu`` its data sheet where there is one;
    ``peak_flops`` the rate of a worker with a core for itself, 1 for a GPU, which nobody shares."""

    kind: str  # as torch calls it: cpu or cuda
    name: str
    gpu: GpuType | None
    peak_flops: float = 1.0
    count: int = 1


def cuda_device(answer: Mapping[str, Any]) -> Device:
    """The device that sailor.measure.device describes."""
    name = str(answer["name"])
    gpu = gpu_type_of(name, memory_bytes=answer["memory_bytes"])
    return Device(
        kind="cuda", name=name if gpu is None else gpu.name, gpu=gpu, count=int(answer["count"])
    )


def _device_of(config: Config) -> Device:
    wish = config.runtime.device
    if wish is not None and wish.value != "cpu":
        return cuda_device(_child("sailor.measure.device"))
    cpu = local_gpu(memory_bytes=1, num_workers=1)
    return Device(
        kind="cpu", name="cpu", gpu=cpu, peak_flops=core_speed().flops, count=os.cpu_count() or 1
    )


def _path(config: Config, spec: ModelSpec, compute_bytes: int, device: Device) -> Path:
    key = (shape_digest(spec), config.train.sequence_length, compute_bytes, device.name)
    digest = hashlib.sha256(repr(key).encode()).hexdigest()[:8]
    return Path(config.runs_dir).expanduser() / "profiles" / f"{spec.name}-{digest}.json"


def _measure(config: Config, spec: ModelSpec, compute_bytes: int, device: Device) -> Measurement:
    batch = config.train.global_batch_size
    degrees = [d for d in DEGREES if spec.num_kv_heads % d == 0 and spec.vocab_size % d == 0]
    question = {
        "spec": msgspec.to_builtins(spec), "sequence_length": config.train.sequence_length,
        "microbatch_sizes": [size for size in SIZES if batch % size == 0],
        "degrees": degrees, "device": device.kind, "compute_bytes": compute_bytes,
    }  # fmt: skip
    layers = _child("sailor.measure.layers", given=json.dumps(question))
    # A GPU that is alone has no link to measure; two processes can share a CPU, not a GPU.
    alone = device.kind == "cuda" and device.count < 2
    links = {} if alone else _child("sailor.measure.links", device.kind)
    return Measurement(
        model=shape_digest(spec),
        sequence_length=config.train.sequence_length,
        compute_bytes=compute_bytes,
        gpu=device.name,
        peak_flops=device.peak_flops,
        cells=tuple(Cell(**cell) for cell in layers["cells"]),
        update_seconds_per_parameter=layers["update_seconds_per_parameter"],
        point_to_point=_fit(links.get("point_to_point")),
        all_reduce=_fit(links.get("all_reduce")),
        provenance=(
            ("measured", time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())),
            ("computer", f"{platform.machine()} {platform.system()}"),
            ("python", platform.python_version()),
            ("torch", layers["torch"]),
            ("model", spec.name),
        ),
    )


def _fit(found: Mapping[str, float] | None) -> Fit | None:
    return None if found is None else Fit(**found)


def _child(module: str, *words: str, given: str = "") -> dict[str, Any]:
    one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    path = os.pathsep.join(p for p in sys.path if p)
    try:
        done = subprocess.run(
            [sys.executable, "-m", module, *words], input=given, capture_output=True, text=True,
            check=True, timeout=DEADLINE_SECONDS,
            env={**os.environ, **one_thread, "PYTHONPATH": path},
        )  # fmt: skip
        found: dict[str, Any] = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None) or str(error)
        raise DataError(
            f"measuring failed in {module}", code="E520", why=str(said).strip()[-600:],
            fix="free the device and run action=profile again",
        ) from error  # fmt: skip
    return found


def _compared(
    measurement: Measurement, spec: ModelSpec, gpu: GpuType | None
) -> list[dict[str, str | int | float]]:
    """Measured beside what would be assumed of such a GPU without measuring."""
    analytic = AnalyticProfile(
        spec=spec, sequence_length=measurement.sequence_length,
        numerics=Numerics(compute_bytes=measurement.compute_bytes),
    )  # fmt: skip
    rows: list[dict[str, str | int | float]] = []
    for cell in measurement.cells:
        row: dict[str, str | int | float] = {
            "part": cell.part, "tensor_parallel": cell.tensor_parallel,
            "microbatch_size": cell.microbatch_size, "forward_s": cell.forward,
            "backward_s": cell.backward, "kept_bytes": cell.kept_bytes,
        }  # fmt: skip
        if gpu is not None:
            assumed = analytic.part_seconds(
                Part(cell.part), gpu=gpu, tensor_parallel=cell.tensor_parallel,
                microbatch_size=cell.microbatch_size,
            )  # fmt: skip
            row["modelled_s"] = assumed.forward + assumed.backward
        rows.append(row)
    return rows


def _ms(seconds: str | int | float) -> str:
    return f"{1000 * float(seconds):.3f} ms"


def _table(rows: list[dict[str, str | int | float]]) -> Table:
    shown = Table("part", "tp", "mb", "forward", "backward", "kept", "modelled / measured",
                  box=None, pad_edge=False)  # fmt: skip
    for row in rows:
        total = float(row["forward_s"]) + float(row["backward_s"])
        modelled = f"{float(row['modelled_s']) / total:.2f}" if "modelled_s" in row else "-"
        shown.add_row(
            str(row["part"]), str(row["tensor_parallel"]), str(row["microbatch_size"]),
            _ms(row["forward_s"]), _ms(row["backward_s"]),
            gib(float(row["kept_bytes"])), modelled,
        )  # fmt: skip
    return shown
