"""Reading Hugging Face folders: what they hold, and what is wrong with those that are refused."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from actions import domain
from actions.arguments import options
from sailor.errors import DataError
from sailor.models.hf.config import config_of, spec_of
from sailor.models.hf.read import HuggingFaceFolder
from sailor.models.hf.tensors import their_tensors
from sailor.models.spec import Activation, Positions
from sailor.parallel.boxes import all_boxes, cut
from tests.helpers.compose import ROOT, a_config
from tests.helpers.engine import a_gpt, a_llama
from tests.helpers.hf import FAMILIES, a_folder, a_model


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    """A grouped, tied Llama in several shards; never written to."""
    return a_folder(tmp_path_factory.mktemp("hf") / "llama", "llama 3", shard="20KB")


@pytest.fixture
def copy(llama, tmp_path):
    """A copy of it, to be broken."""
    for file in llama.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


def refusal(path) -> DataError:
    with pytest.raises(DataError) as caught:
        HuggingFaceFolder(path).check()
    assert caught.value.exit_code == 5
    assert caught.value.fix
    return caught.value


@pytest.mark.parametrize("family", FAMILIES)
def test_a_shape_survives_both_ways(tmp_path, family):
    config = a_model(family).config.to_dict()
    spec = spec_of(config, name="model")
    again = spec_of(config_of(spec), name="model")
    assert again == spec


@pytest.mark.parametrize("pieces", [1, 2])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_box_has_its_shape_and_all_of_them_make_the_model(tmp_path, family, pieces):
    folder = HuggingFaceFolder(a_folder(tmp_path / "model", family))
    folder.check()
    total = 0
    for box in all_boxes(folder.spec, pieces=pieces):
        weight = folder.read(box)
        assert weight.shape == box.shape
        assert weight.dtype == torch.float32
        total += weight.double().sum().item()
    expected = sum(p.detach().double().sum().item() for p in a_model(family).parameters())
    assert total == pytest.approx(expected, rel=1e-9)


def test_a_vocabulary_that_does_not_divide_is_padded_with_idle_rows(tmp_path):
    folder = HuggingFaceFolder(a_folder(tmp_path / "model", "gpt2"))
    spec = folder.spec
    assert (spec.vocab_size, spec.vocab_padding, spec.num_tokens) == (320, 63, 257)
    last = cut(spec.tensors[0], pieces=8)[-1]
    assert (last.offset, last.offset + last.extent) == (280, 320)
    assert not folder.read(last).any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_comes_as_fp32(tmp_path, dtype):
    folder = HuggingFaceFolder(a_folder(tmp_path / "model", "llama", dtype=dtype))
    folder.check()
    (box,) = [b for b in all_boxes(folder.spec, pieces=1) if b.tensor == "head.norm.weight"]
    expected = a_model("llama").model.norm.weight.to(dtype).float()
    assert torch.equal(folder.read(box), expected)


def test_the_bare_model_saves_its_names_without_the_first_word(tmp_path):
    """The GPT-2 that everybody downloads is one: "h.0.ln_1.weight", with masks as buffers."""
    a_model("gpt2").save_pretrained(tmp_path / "model")
    file = tmp_path / "model" / "model.safetensors"
    weights = {name.removeprefix("transformer."): w for name, w in load_file(file).items()}
    weights["h.0.attn.bias"] = torch.ones(1, 1, 64, 64)
    save_file(weights, file, metadata={"format": "pt"})
    HuggingFaceFolder(tmp_path / "model").check()


def test_older_configs_say_rotary_parameters_one_by_one():
    new = a_model("llama 3").config.to_dict()
    old = {key: value for key, value in new.items() if key != "rope_parameters"}
    scaling = {k: v for k, v in new["rope_parameters"].items() if k != "rope_theta"}
    old |= {"rope_theta": new["rope_parameters"]["rope_theta"], "rope_scaling": scaling}
    assert spec_of(old, name="m") == spec_of(new, name="m")
    old["rope_scaling"]["type"] = old["rope_scaling"].pop("rope_type")
    assert spec_of(old, name="m") == spec_of(new, name="m")


def test_keys_that_were_left_out_have_the_defaults_of_transformers():
    import transformers

    for kind in ("gpt2", "opt", "llama", "qwen2", "mistral"):
        whole = transformers.AutoConfig.for_model(kind).to_dict()
        assert spec_of({"model_type": kind}, name="m") == spec_of(whole, name="m"), kind


def test_a_mistral_without_a_window_sees_everything():
    assert spec_of({"model_type": "mistral"}, name="m").sliding_window == 4096
    assert spec_of({"model_type": "mistral", "sliding_window": None}, name="m").sliding_window == 0


@pytest.mark.parametrize(
    ("config", "word"),
    [
        ({"model_type": "bert"}, "'bert'"),
        ({}, "None"),
        ({"model_type": "gpt2", "activation_function": "swish"}, "swish"),
        ({"model_type": "gpt2", "scale_attn_by_inverse_layer_idx": True}, "inverse_layer"),
        ({"model_type": "opt", "do_layer_norm_before": False}, "do_layer_norm_before"),
        ({"model_type": "opt", "word_embed_proj_dim": 512}, "word_embed_proj_dim"),
        ({"model_type": "llama", "hidden_act": "gelu"}, "gelu"),
        ({"model_type": "llama", "rope_scaling": {"rope_type": "yarn"}}, "yarn"),
        ({"model_type": "llama", "rope_scaling": {"rope_type": "llama3"}}, "factor"),
        ({"model_type": "llama", "rope_parameters": {"partial_rotary_factor": 0.5}}, "partial"),
        ({"model_type": "qwen2", "use_sliding_window": True}, "some layers"),
        ({"model_type": "llama", "num_key_value_heads": 5}, "num_kv_heads"),
        ({"model_type": "llama", "hidden_size": "wide"}, "shape"),
        ({"model_type": "llama", "num_hidden_layers": 0}, "num_layers"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_not_computed_here_is_refused_by_name(config, word):
    with pytest.raises(DataError) as caught:
        spec_of(config, name="model")
    assert caught.value.code == "E512"
    assert word in caught.value.what + caught.value.why


@pytest.mark.parametrize(
    "spec",
    [
        a_gpt(num_kv_heads=2),
        a_gpt(position_offset=1),
        a_llama(activation=Activation.gelu),
        a_llama(attention_output_bias=True),
        a_llama(attention_bias=True, attention_output_bias=True, sliding_window=8),
        a_llama(sliding_window=8, ffn_bias=True),
    ],
)
def test_a_shape_transformers_does_not_have_cannot_be_written(spec):
    with pytest.raises(DataError) as caught:
        config_of(spec)
    assert caught.value.code == "E514"
    assert "gpt2: " in caught.value.why


@pytest.mark.parametrize(
    "model", [name for name in options("model", root=ROOT) if name != "hf"]
)  # fmt: skip
def test_every_model_of_conf_can_leave_as_a_hugging_face_folder(model):
    spec = domain.model_spec(a_config(f"model={model}"))
    again = spec_of(config_of(spec), name=spec.name)
    idle = {"vocab_size": spec.vocab_size, "vocab_padding": spec.vocab_padding}
    assert replace(again, **idle) == spec  # but for idle rows
    assert again.num_tokens == spec.num_tokens
    assert {part.tensor.name for t in their_tensors(spec) for part in t.parts} == {
        tensor.name for tensor in spec.tensors
    }


def test_our_own_models_have_a_place_in_transformers():
    assert config_of(a_gpt())["model_type"] == "gpt2"
    assert config_of(a_gpt(activation=Activation.relu, position_offset=2))["model_type"] == "opt"
    assert config_of(a_llama())["model_type"] == "llama"
    assert config_of(a_llama(sliding_window=8))["model_type"] == "mistral"
    assert config_of(a_llama(attention_bias=True))["model_type"] == "qwen2"
    assert a_llama().positions is Positions.rotary


def test_a_folder_that_is_none(tmp_path):
    assert refusal(tmp_path).code == "E511"
    assert "no such folder" in refusal(tmp_path / "nowhere").why
    (tmp_path / "config.json").write_text("[]")
    assert refusal(tmp_path).code == "E511"


def test_a_missing_shard_is_named(copy):
    shard = sorted(copy.glob("model-*.safetensors"))[1]
    shard.unlink()
    error = refusal(copy)
    assert (error.code, error.what) == ("E513", f"{shard.name} is missing")
    assert str(shard) == error.where
    assert "get that file again" in error.fix


def test_a_half_written_shard_is_named(copy):
    shard = sorted(copy.glob("model-*.safetensors"))[1]
    shard.write_bytes(shard.read_bytes()[:-100])
    error = refusal(copy)
    assert (error.code, error.what) == ("E513", f"{shard.name} cannot be read")


def test_a_weight_that_no_file_has_is_named(copy):
    index = json.loads((copy / "model.safetensors.index.json").read_text())
    del index["weight_map"]["model.layers.2.mlp.up_proj.weight"]
    (copy / "model.safetensors.index.json").write_text(json.dumps(index))
    error = refusal(copy)
    assert (error.code, error.what) == ("E513", "model.layers.2.mlp.up_proj.weight is in no file")


def test_weights_of_another_shape_are_refused(copy):
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, "intermediate_size": 64}))
    error = refusal(copy)
    assert error.code == "E513"
    assert "(48, 32)" in error.what
    assert "(64, 32)" in error.why


def test_weights_the_model_has_no_place_for_are_refused(copy):
    """Qwen3 is a Llama with norms on query and key: without them it would be another model."""
    shard = sorted(copy.glob("model-*.safetensors"))[0]
    name = "model.layers.0.self_attn.q_norm.weight"
    save_file({**load_file(shard), name: torch.ones(8)}, shard, metadata={"format": "pt"})
    index = json.loads((copy / "model.safetensors.index.json").read_text())
    index["weight_map"][name] = shard.name
    (copy / "model.safetensors.index.json").write_text(json.dumps(index))
    error = refusal(copy)
    assert error.code == "E513"
    assert name in error.what


def test_quantised_weights_are_refused(tmp_path):
    a_folder(tmp_path / "model", "llama")
    file = tmp_path / "model" / "model.safetensors"
    name = "model.layers.0.mlp.up_proj.weight"
    save_file({**load_file(file), name: torch.zeros(48, 32, dtype=torch.int8)}, file)
    assert "I8" in refusal(tmp_path / "model").what


def test_pickled_weights_are_refused_with_the_way_to_convert_them(tmp_path):
    a_folder(tmp_path / "model", "llama")
    (tmp_path / "model" / "model.safetensors").rename(tmp_path / "model" / "pytorch_model.bin")
    error = refusal(tmp_path / "model")
    assert error.code == "E513"
    assert "pytorch_model.bin" in error.why
    assert "save_pretrained" in error.fix


def test_looking_at_a_folder_does_not_need_torch(llama):
    code = (
        "import sys; from pathlib import Path\n"
        "from sailor.models.hf.read import HuggingFaceFolder\n"
        f"HuggingFaceFolder(Path({str(llama)!r})).check()\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# 16 MiB in its largest tensor, 52 in all.
_LARGE = {
    "vocab_size": 16384, "hidden_size": 256, "num_attention_heads": 8, "num_key_value_heads": 8,
    "intermediate_size": 1024, "num_hidden_layers": 6,
}  # fmt: skip


@pytest.mark.parametrize("dtype", [None, torch.bfloat16], ids=["float32", "bfloat16"])
def test_a_rank_reads_its_boxes_without_holding_the_model(tmp_path, dtype):
    """Rank 1 of two stages: what it allocates, beyond where its boxes go, is a box and a half."""
    folder = a_folder(tmp_path / "model", "llama", dtype=dtype, **_LARGE)
    done = subprocess.run(
        [sys.executable, "-c", _PEAK, str(folder)], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    peak, largest, mine, total = map(int, done.stdout.split())
    assert total > 3 * largest
    assert peak < 1.5 * largest, f"{peak:,} bytes at the peak, the largest box has {largest:,}"
    assert mine < 0.6 * total


# Anonymous memory, watched by a thread while the boxes are read; mapped files are not the
# process's own.
_PEAK = """
import sys, threading
from pathlib import Path
import torch
from sailor.models.hf.read import HuggingFaceFolder
from sailor.parallel.boxes import all_boxes

def anonymous():
    status = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return int(status["RssAnon"].split()[0]) << 10

folder = HuggingFaceFolder(Path(sys.argv[1]))
mine = {t.name for t in folder.spec.tensors_of(blocks=range(3, 6), first=False, last=True)}
boxes = [box for box in all_boxes(folder.spec, pieces=2) if box.tensor in mine]
targets = {box: torch.zeros(box.shape) for box in boxes}
for target in targets.values():
    target.fill_(1.0)  # faulted in
folder.read(boxes[0])  # what loading and opening takes
before, peak, done = anonymous(), [0], threading.Event()

def watch():
    while not done.is_set():
        peak[0] = max(peak[0], anonymous())

watcher = threading.Thread(target=watch)
watcher.start()
for box, target in targets.items():
    target.copy_(folder.read(box))
done.set()
watcher.join()
print(max(0, peak[0] - before), max(b.numel for b in boxes) * 4,
      sum(b.numel for b in boxes) * 4, folder.spec.num_parameters * 4)
"""
