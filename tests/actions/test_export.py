"""action=export, action=check and action=eval on a run's folder."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from actions import check, domain, export
from actions import eval as evaluate
from actions.console import Console
from actions.origin import read_tokens
from sailor.config import Output
from sailor.data.tokens import TokenStream, load_manifest
from sailor.errors import ConfigError, DataError
from sailor.models.dcp import DcpFolder
from sailor.parallel.boxes import all_boxes
from sailor.training.evaluate import held_out_sequences
from tests.actions.test_origin import with_bytes
from tests.helpers.compose import a_config
from tests.helpers.hf import a_folder, loaded, transformers
from tests.helpers.run_folders import TINY, a_run_folder

# torch says that it runs in one process; that is what is meant.
pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


def act(action, *arguments):
    """The action's document."""
    console = Console(output=Output.json)
    assert action.run(a_config(*arguments), console) == 0
    (document,) = console.documents
    return document


@pytest.fixture(scope="module")
def it(tmp_path_factory):
    """A gpt_tiny made smaller, with bytes as tokens; exported once."""
    root = tmp_path_factory.mktemp("run")
    said = a_run_folder(root, *TINY)
    return said, act(export, *said, "output=json")


def held_out(said):
    """Tokens of the evaluation, [N, T + 1], by way of the run's record."""
    config = a_config(*said)
    manifest = load_manifest(Path(read_tokens(Path(config.runs_dir) / "it").path))
    stream = TokenStream(manifest, manifest.held_out, sequence_length=config.train.sequence_length)
    chosen = held_out_sequences(eval_samples=config.train.eval_samples, blend=stream.blend)
    return torch.from_numpy(stream.read(chosen))


def loss_of(model, tokens):
    with torch.no_grad():
        logits = model(tokens[:, :-1]).logits
    return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).item()


def test_an_export_is_a_model_with_its_tokenizer_that_generates(it):
    _, document = it
    folder = document["directory"]
    assert document["written"]
    assert (document["run"], document["step"], document["format"]) == ("it", 5, "hf")
    model = loaded(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    settings = model.generation_config
    assert (settings.eos_token_id, settings.bos_token_id) == (0, 0)
    prompt = tokenizer("ahoy", return_tensors="pt")
    more = model.generate(**prompt, max_new_tokens=4, do_sample=False, pad_token_id=0)
    assert tokenizer.decode(more[0]).startswith("ahoy")


def test_held_out_loss_bits_and_texts_are_those_of_the_exported_model(it):
    said, document = it
    found = act(evaluate, *said, "eval.temperature=0", "eval.tokens=12", "eval.prompts=[ahoy]")
    model = loaded(document["directory"])
    tokens = held_out(said)
    loss = loss_of(model, tokens)
    # The same fp32 sums in another order.
    assert found["held_out_loss"] == pytest.approx(loss, rel=1e-6)
    assert found["perplexity"] == pytest.approx(math.exp(loss), rel=1e-5)
    num_bytes = int((tokens[:, 1:] != 0).sum())
    assert found["held_out_tokens"] == tokens[:, 1:].numel()
    assert found["bits_per_byte"] == pytest.approx(
        loss * tokens[:, 1:].numel() / math.log(2) / num_bytes, rel=1e-6
    )
    prompt = torch.tensor([list(b"ahoy")])
    with torch.no_grad():
        theirs = model.generate(prompt, max_new_tokens=12, do_sample=False, pad_token_id=0)
    expected = bytes(theirs[0].tolist()).rstrip(b"\0").decode(errors="replace")
    assert [sample["text"] for sample in found["samples"]] == [expected]


def test_an_evaluation_is_kept_in_the_runs_folder(it, tmp_path):
    said, document = it
    found = act(evaluate, *said, "eval.prompts=[]")
    kept = Path(document["directory"]).parent.parent / "eval" / "step-00000005.json"
    assert json.loads(kept.read_text()) == found
    assert found["samples"] == []


def test_exporting_again_says_that_it_is_there(it):
    said, document = it
    again = act(export, *said)
    assert not again["written"]
    assert again["directory"] == document["directory"]
    with pytest.raises(ConfigError) as caught:
        act(export, *said, "export.dtype=bfloat16")
    assert caught.value.code == "E517"


def test_a_folder_with_something_else_is_left_alone(it, tmp_path):
    said, _ = it
    (tmp_path / "mine.txt").write_text("precious")
    with pytest.raises(ConfigError) as caught:
        act(export, *said, f"export.directory={tmp_path}")
    assert caught.value.code == "E517"
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_half_the_bytes_are_asked_for_and_shards_too(it, tmp_path):
    said, document = it
    small = act(
        export, *said, f"export.directory={tmp_path / 'small'}", "export.dtype=bfloat16",
        "export.max_shard=20KB",
    )  # fmt: skip
    assert len(list((tmp_path / "small").glob("model-*-of-*.safetensors"))) > 1
    assert small["bytes"] < 0.7 * document["bytes"]
    transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "small")


def test_a_torch_checkpoint_has_the_weights_and_the_optimizers_state(it, tmp_path):
    said, document = it
    act(export, *said, "export.format=dcp", f"export.directory={tmp_path / 'dcp'}")
    spec = domain.model_spec(a_config(*said))
    weights = DcpFolder(tmp_path / "dcp", spec=spec)
    theirs = dict(loaded(document["directory"]).named_parameters())
    ours = {box.tensor: weights.read(box) for box in all_boxes(spec, pieces=1)}
    assert torch.equal(ours["embedding.tokens.weight"], theirs["transformer.wte.weight"])
    assert torch.equal(ours["blocks.1.ffn.up.weight"].T, theirs["transformer.h.1.mlp.c_fc.weight"])
    assert [path.name for path in tmp_path.glob(".*")] == []


def test_a_model_that_came_from_a_folder_leaves_with_its_own_configuration(tmp_path):
    original = with_bytes(a_folder(tmp_path / "original", "qwen2"))
    settings = json.loads((original / "generation_config.json").read_text())
    (original / "generation_config.json").write_text(json.dumps({**settings, "top_k": 7}))
    said = a_run_folder(tmp_path, f"model={original}", "train.steps=5")
    found = act(export, *said)
    folder = found["directory"]
    before = json.loads((original / "config.json").read_text())
    after = json.loads((tmp_path / folder / "config.json").read_text())
    assert {key: after[key] for key in before} == before
    assert loaded(folder).generation_config.top_k == 7
    tokens = torch.arange(40).view(2, 20) * 3
    with torch.no_grad():
        assert torch.equal(loaded(folder)(tokens).logits, loaded(original)(tokens).logits)


def test_a_models_folder_is_evaluated_without_a_run(tmp_path):
    original = with_bytes(a_folder(tmp_path / "original", "llama 3"))
    said = a_run_folder(tmp_path, f"model={original}", "train.steps=5")
    free = [word for word in said if not word.startswith("run.name")]
    found = act(evaluate, *free, "eval.prompts=[]", "run.name=another")
    assert found["source"] == str(original)
    expected = loss_of(loaded(original), held_out(said))
    assert found["held_out_loss"] == pytest.approx(expected, rel=1e-6)


def test_a_checkpoint_is_checked_byte_for_byte(tmp_path):
    said = a_run_folder(tmp_path, *TINY)
    step = tmp_path / "runs" / "it" / "checkpoints" / "step-00000005"
    fine = act(check, *said)
    assert fine == act(check, f"checkpoint={step}")
    assert (fine["step"], fine["files"], fine["model"]) == (5, 2, "gpt_tiny")
    file = next(step.glob("*.safetensors"))
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    for action in (check, export, evaluate):
        with pytest.raises(DataError) as caught:
            act(action, *said)
        assert caught.value.code == "E516"
        assert file.name in caught.value.why


def test_what_is_no_checkpoint_is_refused(tmp_path):
    said = a_run_folder(tmp_path, *TINY)
    checkpoints = tmp_path / "runs" / "it" / "checkpoints"
    for path in (tmp_path / "nowhere", checkpoints, checkpoints / "step-00000009"):
        for action in (check, export, evaluate):
            with pytest.raises(DataError) as caught:
                act(action, *said, f"checkpoint={path}")
            assert caught.value.code == "E516"
    (checkpoints / "step-00000005" / "COMPLETE").unlink()
    with pytest.raises(DataError) as caught:
        act(export, *said)
    assert caught.value.code == "E516"
    assert "no complete checkpoint" in caught.value.what
    with pytest.raises(ConfigError) as caught:
        act(export, *said, "run.name=nobody")
    assert caught.value.code == "E608"


def test_a_checkpoint_by_its_path_finds_its_run(it):
    said, document = it
    runs = next(word for word in said if word.startswith("runs_dir="))
    found = act(export, runs, f"checkpoint={document['checkpoint']}")
    assert (found["run"], found["written"]) == ("it", False)
