"""A recipe at the smallest scale: its own family of model, two blocks of it, on this computer.

``smoke_settings`` says what that means, in settings like those of a recipe. ``make`` writes what
they read: a little text, and for recipes that go on from a model a Hugging Face folder of random
weights with a tokenizer learned from that text.
"""

from __future__ import annotations

import importlib.util
import random
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from actions.recipe.book import Recipe

if TYPE_CHECKING:
    from sailor.config import Config

_PLACE = "${runs_dir}/smoke"
_BYTES_VOCABULARY, _LEARNED_VOCABULARY = 256, 320
_MAX_POSITIONS = 64
_NUM_TEXTS, _LINES = 40, 60

_SIZES = {
    "model.num_layers": "2", "model.hidden_size": "32", "model.num_heads": "4",
    "model.head_size": "8", "model.ffn_hidden_size": "64", "model.vocab_padding": "0",
    "model.max_positions": str(_MAX_POSITIONS),
    "train.steps": "4", "train.global_batch_size": "8", "train.sequence_length": "32",
    "train.eval_every": "0", "train.eval_samples": "8", "optim.warmup_steps": "null",
    "optim.decay_steps": "null",
}  # fmt: skip
_HERE = {
    "cloud": "local", "cloud.nodes": "2", "cloud.max_nodes": "3", "cloud.gpus_per_node": "1",
    "cloud.memory_per_gpu": "64MiB", "cloud.live": "null", "cloud.standbys": "0",
    "cloud.replace": "false", "cloud.zones": "[]", "cloud.regions": "[]",
    "cloud.machine_types": "[]", "cloud.cluster": "null", "cloud.shared_files": "false",
    "budget": "none", "budget.total_usd": "null", "budget.per_hour_usd": "null",
    "budget.deadline": "null",
    "planner.tensor_parallel": "null", "planner.pipeline_parallel": "null",
    "planner.data_parallel": "2", "planner.microbatch_size": "null",
    "planner.profile": "null", "planner.calibrate": "null",
    "runtime.device": "cpu", "runtime.host": "127.0.0.1", "runtime.address": "null",
    "runtime.port": "0", "runtime.silence": "30s", "runtime.halt": "45s",  # however busy it is here
    "train.dtype": "null", "train.compile": "false",
    "checkpoint.directory": "null", "checkpoint.persist_every": "2",
    "data": "text", "data.path": f"{_PLACE}/text", "data.cache": f"{_PLACE}/tokens",
    "faults": "none", "eval.tokens": "8",
}  # fmt: skip


def smoke_settings(recipe: Recipe) -> Mapping[str, str]:
    """The settings of the small scale, before those the recipe itself has for it."""
    said = recipe.settings
    learned = said.get("tokenizer", "bytes") != "bytes" and _has_tokenizers()
    settings = {**_SIZES, **_HERE}
    if "/" in said.get("model", ""):  # a folder has one size
        settings["model"] = "gpt_tiny"
    if said.get("cloud.max_nodes") == "1":
        settings |= {"cloud.nodes": "1", "planner.data_parallel": "null"}
    settings["model.num_kv_heads"] = "2" if _shares_heads(said.get("model", "")) else "4"
    settings["model.vocab_size"] = str(_LEARNED_VOCABULARY if learned else _BYTES_VOCABULARY)
    if not learned:
        settings |= {"tokenizer": "bytes", "tokenizer.path": "null", "tokenizer.vocab_size": "null"}
    elif said.get("tokenizer") == "file" and "model.init_from" not in said:
        settings |= {"tokenizer": "bpe", "tokenizer.path": "null"}  # one like it, of the text
    if "model.init_from" in said:
        settings["model.init_from"] = f"{_PLACE}/{recipe.name}"
    return settings


def make(config: Config) -> None:
    """Write what the small scale reads, unless it is there."""
    from filelock import FileLock

    from actions.sources import corpus

    text = Path(config.data.path or "").expanduser()
    place = Path(config.runs_dir).expanduser() / "smoke"
    place.mkdir(parents=True, exist_ok=True)
    with FileLock(place / ".lock"):
        if text.parent == place and not text.exists():
            _write_text(text)
        if config.model.init_from is not None:
            folder = Path(config.model.init_from).expanduser()
            if folder.parent == place:
                _write_model(folder, config, texts=list(corpus(config).documents()))


def _write_text(folder: Path) -> None:
    """Words that follow each other by chance, the same every time; some files are held out."""
    chance = random.Random(0)
    words = ["".join(chance.choices("abcdefghij", k=chance.randint(2, 6))) for _ in range(60)]
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    for number in range(_NUM_TEXTS):
        lines = (" ".join(chance.choices(words, k=8)) for _ in range(_LINES))
        (partial / f"{number:02d}.txt").write_text("\n".join(lines))
    partial.rename(folder)


def _write_model(folder: Path, config: Config, *, texts: list[bytes]) -> None:
    """A Hugging Face folder of random weights and the configured shape; made anew if it has
    another one."""
    import numpy as np
    import numpy.typing as npt

    from actions import domain
    from sailor.data.tokenizer import JSON_FILE, open_tokenizer, train_tokenizer
    from sailor.errors import DataError
    from sailor.models.hf.config import config_of, read_config
    from sailor.models.hf.write import FLOAT32, write_folder
    from sailor.training.initial import initial_weight

    spec = domain.model_spec(config)
    described = config_of(spec)
    try:
        kept = read_config(folder)
    except DataError:
        kept = {}
    if {key: kept.get(key) for key in described} == described:
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    files: dict[str, bytes] = {}
    if config.tokenizer.name == "file":
        path = folder.with_name(f".{folder.name}-{JSON_FILE}")
        train_tokenizer(texts, vocab_size=spec.num_tokens, path=path)
        files = dict(open_tokenizer(path).files())
        path.unlink()
    tensors = {tensor.name: tensor for tensor in spec.tensors}

    class Random:
        """Where the weights come from: the seed."""

        def rows(self, tensor: str, start: int, stop: int) -> npt.NDArray[np.float32]:
            whole = initial_weight(tensors[tensor], seed=config.seed)
            return np.asarray(whole[start:stop].numpy(), dtype=np.float32)

    write_folder(
        folder, spec=spec, weights=Random(), config=described, dtype=FLOAT32,
        max_shard_bytes=1 << 30, files=files,
    )  # fmt: skip


def _shares_heads(model: str) -> bool:
    """Whether the model has fewer key and value heads than query heads."""
    import yaml

    path = Path(__file__).resolve().parents[2] / "conf" / "model" / f"{model}.yaml"
    if not path.is_file():
        return False
    shape = yaml.safe_load(path.read_text())
    return bool(shape["num_kv_heads"] != shape["num_heads"])


def _has_tokenizers() -> bool:
    return importlib.util.find_spec("tokenizers") is not None
