"""One example of every error there is, brought about by what raises it, printed as people see it.

The pages in docs/errors/ show these texts; ``python -m tests.errors.pages`` writes them there.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

import run
from actions import domain
from actions.arguments import expand, refuse_unknown_keys
from actions.away import Away
from actions.complaints import not_installed
from actions.ending import error_of
from actions.homecoming import unreached
from actions.limits import refuse_when_spent
from actions.machines import no_networks
from actions.origin import check_first_weights, read_tokens
from actions.preflight import check_checkpoints, check_reach
from actions.run_folder import hold
from provision.hosts import host
from provision.refusals import judge
from sailor.checkpoint.arena import open_arena
from sailor.checkpoint.store import read_manifest, write_part
from sailor.config_keys import plain
from sailor.data.megatron import export_megatron
from sailor.data.tokenizer import tokenizer
from sailor.data.tokens import Manifest, load_manifest
from sailor.errors import SailorError
from sailor.models.hf.config import config_of, spec_of
from sailor.models.hf.read import HuggingFaceFolder
from sailor.models.hf.write import write_folder
from sailor.observe.history import replay
from sailor.parallel.layout import WorkerId
from sailor.runtime.state import End
from sailor.simulate.fleet import rent
from tests.helpers.builders import a_spec
from tests.helpers.compose import ROOT, a_config
from tests.helpers.simulation import Change_
from tests.observe.run_story import Story


@dataclass(frozen=True)
class Example:
    """``command`` is what was typed, or "" for what a part of Sailor says by itself."""

    make: Callable[[Path], object]
    command: str = ""


def printed(code: str, folder: Path) -> str:
    """What the terminal shows of an example that is made in an empty folder, places made up."""
    example = EXAMPLES[code]
    with contextlib.chdir(folder):
        try:
            made = example.make(folder)
            assert isinstance(made, tuple | SailorError), f"{code} came to nothing"
            text = said(*made) if isinstance(made, tuple) else made.render()
        except SailorError as error:
            text = error.render()
    text = text.rstrip("\n") + "\n"
    for place, shown in ((str(folder), "/home/you/here"), (str(ROOT), "/home/you/sailor")):
        text = text.replace(place, shown)
    text = re.sub(r"/\S*/sailor-bug-\w+\.txt", "/tmp/sailor-bug-4f3k2j1h.txt", text)
    text = re.sub(r"process \d+ \([\w.-]+\)", "process 4711 (python)", text)
    text = re.sub(r"process \d+ works", "process 4711 works", text)
    text = text.replace(sys.executable, "/home/you/venv/bin/python")
    text = re.sub(r"\.export\.\d+", ".export.4711", text)
    text = re.sub(r"(sailor-mine-node-1)-\d+", r"\1-4711", text)
    return re.sub(r"kill -INT \d+", "kill -INT 4711", text)


def said(*arguments: str) -> str:
    """Standard error of a command, run here: composing is quick, starting Python is not."""
    session = run.Session(arguments=list(arguments))
    before = sys.argv
    with (
        contextlib.redirect_stderr(io.StringIO()) as err,
        contextlib.redirect_stdout(io.StringIO()),
    ):
        sys.argv = ["run.py", *arguments]
        try:
            expanded = expand(session.arguments, root=ROOT)
            refuse_unknown_keys(expanded)
            run.compose(expanded, session)
        except SailorError as error:
            run.fail(error, session)
        finally:
            sys.argv = before
    return err.getvalue()


def typed(command: str, before: Callable[[Path], object] | None = None) -> Example:
    """An example that a command brings about, in a folder that ``before`` has prepared."""

    def make(folder: Path) -> tuple[str, ...]:
        if before is not None:
            before(folder)
        return tuple(command.split())

    return Example(make, f"python run.py {command}")


def inside(make: Callable[[Path], object]) -> Example:
    """An example that a part of Sailor raises when ``make`` calls it, or gives back."""
    return Example(make)


def a_run(folder: Path, *arguments: str) -> Path:
    """The folder of a run called mine, as far as the messages look into it."""
    path = folder / "runs" / "mine"
    path.mkdir(parents=True)
    config = a_config("run.name=mine", "runs_dir=runs", *arguments)
    (path / "config.yaml").write_text(yaml.safe_dump(plain(config)))
    (path / "events.jsonl").touch()
    return path


def texts(folder: Path, *, files: int = 1, words: int = 3) -> None:
    (folder / "text").mkdir()
    for number in range(files):
        (folder / "text" / f"{number}.txt").write_text(f"{number} " + "ahoy " * words)


def a_recipe(folder: Path) -> None:
    (folder / "mine.yaml").write_text("about: a recipe without steps\n")


def a_copy(folder: Path) -> None:
    (folder / "recipes").mkdir()
    (folder / "recipes" / "mine.yaml").write_text("# mine\n")


def faults_on_a_cloud(folder: Path) -> object:
    (folder / "faults.yaml").write_text("- {at_step: 10, kind: kill_node, node: node-2}\n")
    return domain.faults(a_config("cloud=gcp", "faults=faults.yaml"))


def refused_by_gcp(kind: str, text: str) -> Example:
    facts = {
        "kind": "ResourcesUnavailableError", "text": "Failed to provision all resources",
        "history": [{"kind": kind, "text": text, "history": []}],
    }  # fmt: skip
    return inside(
        lambda _: judge(facts, cloud="gcp", machine="a2-highgpu-8g", zone="us-central1-a").error
    )


def a_broken_archive(folder: Path) -> None:
    (folder / "text").mkdir()
    (folder / "text" / "part-1.txt.gz").write_bytes(b"not compressed at all")


def broken_trace(folder: Path) -> None:
    (folder / "trace.csv").write_text("when,what\n3,gone\n")


def no_words(folder: Path) -> None:
    (folder / "words.json").write_text("{}")


GPT2 = {
    "model_type": "gpt2", "vocab_size": 256, "n_positions": 64, "n_embd": 32, "n_layer": 2,
    "n_head": 4, "bos_token_id": 0, "eos_token_id": 0,
}  # fmt: skip


def another_model(folder: Path) -> object:
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text(json.dumps(GPT2))
    return check_first_weights(a_config("model=gpt_tiny", "model.init_from=model"))


def a_model_without_weights(folder: Path) -> object:
    model = folder / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(GPT2))
    index = {"weight_map": {"transformer.wte.weight": "model-00001-of-00002.safetensors"}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    return HuggingFaceFolder(model).check()


def an_export_into_a_file(folder: Path) -> object:
    (folder / "full").touch()
    return write_folder(
        Path("full/export"), spec=a_spec(), weights=None, config={}, dtype="float32",
        max_shard_bytes=1 << 30, files={},
    )  # fmt: skip


def tokens_into_a_file(folder: Path) -> object:
    (folder / "full").touch()
    manifest = Manifest(
        version=1, corpus="", fingerprint="", tokenizer="bytes", vocab_size=256, dtype="uint8",
        train=(), held_out=(), num_documents=0, path=".",
    )  # fmt: skip
    return export_megatron(manifest, end_of_text=0, base=Path("full/tokens"))


def an_export_that_is_there(folder: Path) -> object:
    from actions.export import _there

    (folder / "export").mkdir()
    return _there(Path("export"), {"run": "mine", "step": 200})


def foreign_tokens(folder: Path) -> None:
    (folder / "tokens.bin").write_bytes(b"\0" * 6)
    (folder / "tokens.idx").write_bytes(b"not an index")


def a_checkpoint_into_a_file(folder: Path) -> object:
    (folder / "checkpoints").touch()
    return write_part(Path("checkpoints"), step=200, name="node-1", sources=[])


@contextlib.contextmanager
def a_listener() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def a_port_in_use(_: Path) -> object:
    from actions.preflight import check_port

    with a_listener() as port:
        try:
            return check_port(a_config(f"runtime.port={port}"))
        except SailorError as error:
            for name in ("what", "why", "where", "fix"):
                setattr(error, name, getattr(error, name).replace(str(port), "29500"))
            return error


def an_open_run(folder: Path) -> object:
    a_run(folder)
    with hold(folder / "runs" / "mine", name="mine"), hold(folder / "runs" / "mine", name="mine"):
        return None


def little_memory(folder: Path) -> object:
    (folder / "shm").mkdir()
    arena = open_arena(run="mine", node="node-1", budget_bytes=1 << 20, root=folder / "shm")
    writer = WorkerId(node="node-1", slot=0, incarnation=1)
    return arena.segment(writer=writer, boxes=[("blocks.0.mlp.up#0", (1024, 1024))])


def spent(_: Path) -> object:
    story = Story().start().nodes("node-1", price_per_hour=60.0).generation(1, "node-1")
    story.steps(1, 5, generation=1, seconds=720.0)
    budget = a_config("budget.total_usd=50").budget
    return refuse_when_spent(budget, past=story.events, now=story.t)


def diverged(_: Path) -> SailorError:
    story = Story().start(total_steps=200).nodes("node-1").generation(1, "node-1")
    story.steps(1, 16, generation=1)
    story.say("persisted", step=10, bytes=9, seconds=0.1, path="x")
    story.say("step_refused", step=17, why="loss is not finite", action="stop", generation=1)
    why = "step 17 was refused: its loss is not finite; step 16 is kept"
    error = error_of(End.diverged, why=why, history=replay(story.events), config=a_config())
    assert error is not None
    return error


def could_not_go_on(_: Path) -> SailorError:
    story = Story().start(total_steps=200).nodes("node-1").generation(1, "node-1")
    story.steps(1, 16, generation=1)
    story.say("persisted", step=10, bytes=9, seconds=0.1, path="x")
    why = "20 transitions in a row failed, the last one: worker node-2/0.21 lost: signal 9"
    error = error_of(End.failed, why=why, history=replay(story.events), config=a_config())
    assert error is not None
    return error


def a_bug(_: Path) -> SailorError:
    session = run.Session(arguments=["run=mine"])
    with contextlib.redirect_stderr(io.StringIO()) as err:
        run.apologise(ZeroDivisionError("division by zero"), session)
    path = re.search(r"where (\S+)", err.getvalue())
    assert path is not None
    Path(path[1]).unlink()
    told = session.documents[-1]["error"]
    return SailorError(told.pop("what"), **told)


RUNS = "runs_dir=runs run.name=mine"
MODEL_GCP = "action=plan model=gpt_1b cloud=gcp cloud.live=false"


def a_run_out_of_reach(folder):
    """Where its controller was, nobody opens."""
    path = Path("runs/mine")
    path.mkdir(parents=True)
    (path / "config.yaml").write_text("")
    return unreached(Away(path=path), "its door is not open: Connection refused")


EXAMPLES: dict[str, Example] = {
    "E101": typed("modle=gpt_1b optim.lr=1"),
    "E102": typed("planner=cheepest"),
    "E103": typed("model= gpt_1b"),
    "E104": typed("budget.deadline=24"),
    "E105": typed(f"{RUNS} faults=faults.yaml"),
    "E106": inside(faults_on_a_cloud),
    "E107": typed("data.cache=hf_abcdefghijklmnopqrstuvwxyz0123"),
    "E108": typed("action=plan planner.calibrate=yesterday runs_dir=runs"),
    "E109": typed("recipe=mine.yaml", a_recipe),
    "E110": typed("action=recipe.copy name=gpt_125m_laptop to=mine", a_copy),
    "E205": inside(lambda _: tokenizer("words")),
    "E301": typed(f"{RUNS} model=gpt_1b"),
    "E302": typed(f"{MODEL_GCP} budget.total_usd=20"),
    "E303": typed(f"{MODEL_GCP} budget.deadline=1h"),
    "E304": typed(f"{RUNS} planner.tensor_parallel=3"),
    "E305": inside(lambda _: host("aws", needed_bytes=5000 << 30)),
    "E401": refused_by_gcp("NoCloudAccessError", "No cloud is enabled"),
    "E402": refused_by_gcp("HttpError", "403 PERMISSION_DENIED: 'compute.instances.create'"),
    "E403": refused_by_gcp(
        "HttpError",
        "QUOTA_EXCEEDED: Quota 'PREEMPTIBLE_NVIDIA_A100_GPUS' exceeded.  Limit: 8.0 in region "
        "us-central1.",
    ),
    "E404": refused_by_gcp("ResourcesUnavailableError", "No resource satisfying a2-highgpu-8g"),
    "E405": refused_by_gcp("VMError", "ZONE_RESOURCE_POOL_EXHAUSTED"),
    "E406": typed(f"{RUNS} cloud=gcp"),
    "E407": inside(lambda _: check_reach(a_config("cloud=gcp"))),
    "E408": inside(
        lambda _: check_reach(
            a_config("cloud=gcp", "runtime.host=0.0.0.0", "runtime.address=203.0.113.7")
        )
    ),
    "E409": inside(lambda _: no_networks("a namespace needs root: Operation not permitted")),
    "E410": inside(a_run_out_of_reach),
    "E501": typed("action=prepare data=text data.path=txt data.cache=cache", texts),
    "E502": typed("action=prepare data=text data.path=text data.cache=cache", a_broken_archive),
    "E503": inside(lambda _: load_manifest(Path("cache/bytes-7c1e"))),
    "E504": typed("action=prepare data=text data.path=text data.cache=cache", texts),
    "E505": typed(f"{RUNS} model.vocab_size=100"),
    "E506": typed("action=simulate cloud=trace cloud.trace.paths=[trace.csv]", broken_trace),
    "E507": typed("action=prepare tokenizer=words.json", no_words),
    "E508": inside(
        lambda _: rent(
            [Change_(0, "us-east1-b", 2), Change_(60, "us-east1-b", -3)],
            seconds=100,
            target=2,
            boot_seconds=10,
            source="trace.csv",
        )
    ),
    "E509": inside(lambda folder: read_tokens(folder / "runs" / "mine")),
    "E510": inside(another_model),
    "E511": inside(lambda folder: HuggingFaceFolder(folder / "models" / "mine")),
    "E512": inside(lambda _: spec_of({"model_type": "mamba"}, name="mine")),
    "E513": inside(a_model_without_weights),
    "E514": inside(lambda _: config_of(a_spec(num_kv_heads=2))),
    "E515": inside(an_export_into_a_file),
    "E516": typed(f"action=export {RUNS}", a_run),
    "E517": inside(an_export_that_is_there),
    "E518": inside(tokens_into_a_file),
    "E519": typed(
        "action=prepare data=tokens data.path=tokens.bin data.cache=cache", foreign_tokens
    ),
    "E520": typed("action=plan planner.profile=profile.json"),
    "E601": inside(a_checkpoint_into_a_file),
    "E602": inside(a_port_in_use),
    "E603": typed(f"{RUNS} optim.learning_rate=0.01", a_run),
    "E604": inside(lambda folder: read_manifest(folder / "checkpoints" / "step-00000200")),
    "E605": inside(lambda _: not_installed("hydra")),
    "E606": inside(an_open_run),
    "E607": typed("runs_dir=readme run.name=mine", lambda folder: (folder / "readme").touch()),
    "E608": typed("action=report runs_dir=runs run.name=yours", a_run),
    "E609": inside(little_memory),
    "E610": typed("action=migrate runs_dir=runs run.name=mine node=node-1", a_run),
    "E611": inside(
        lambda _: check_checkpoints(a_config("checkpoint.directory=ftp://127.0.0.1:1/runs"))
    ),
    "E701": inside(diverged),
    "E702": inside(spent),
    "E801": inside(could_not_go_on),
    "E901": inside(a_bug),
}
