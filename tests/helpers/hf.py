"""Small models of transformers itself, made from configurations and never downloaded.

They are the oracle: nobody here wrote them. What is made is saved as people get it, a folder.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"
transformers = pytest.importorskip(
    "transformers", reason="transformers is not installed: pip install -e '.[hf]'"
)

import torch  # noqa: E402

_SMALL = {
    "vocab_size": 256, "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4,
    "bos_token_id": 0, "eos_token_id": 0,
}  # fmt: skip
_ROTARY = {
    **_SMALL, "intermediate_size": 48, "max_position_embeddings": 64, "num_key_value_heads": 4,
}  # fmt: skip
_LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 32,
}  # fmt: skip

# Name -> (configuration class, its values). Every feature a family brings is in one of them.
FAMILIES = {
    # An odd vocabulary, which is padded here; new GELU; biases everywhere; tied.
    "gpt2": ("GPT2Config", {
        "vocab_size": 257, "n_positions": 64, "n_embd": 32, "n_layer": 4, "n_head": 4,
        "bos_token_id": 0, "eos_token_id": 0,
    }),
    "gpt2 untied": ("GPT2Config", {
        "vocab_size": 256, "n_positions": 64, "n_embd": 32, "n_layer": 4, "n_head": 4,
        "n_inner": 48, "activation_function": "gelu", "tie_word_embeddings": False,
        "bos_token_id": 0, "eos_token_id": 0,
    }),
    "opt": ("OPTConfig", {
        **_SMALL, "ffn_dim": 48, "max_position_embeddings": 64, "pad_token_id": 1,
    }),
    "llama": ("LlamaConfig", _ROTARY),
    # Grouped heads, stretched frequencies, heads of another width than hidden / heads.
    "llama 3": ("LlamaConfig", {
        **_ROTARY, "num_key_value_heads": 2, "rope_parameters": _LLAMA3, "head_dim": 16,
        "tie_word_embeddings": True,
    }),
    "llama biased": ("LlamaConfig", {**_ROTARY, "attention_bias": True, "mlp_bias": True}),
    # Grouped heads, biases on query, key and value alone, tied, another base.
    "qwen2": ("Qwen2Config", {
        **_ROTARY, "num_key_value_heads": 2, "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
    }),
    # Grouped heads; a window that the 16 tokens of a test do not fit in.
    "mistral": ("MistralConfig", {**_ROTARY, "num_key_value_heads": 2, "sliding_window": 6}),
    "mistral open": ("MistralConfig", {**_ROTARY, "sliding_window": None}),
}  # fmt: skip


def a_model(family: str, **changes):
    """One of FAMILIES with random weights, none of them at a value that hides a mistake."""
    kind, values = FAMILIES[family]
    config = getattr(transformers, kind)(**{**values, **changes})
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(1.0 if _is_scale(name, parameter) else 0.0, 0.2)
    return model


def _is_scale(name: str, parameter) -> bool:
    """The weights of norms, which are around one."""
    return parameter.dim() == 1 and name.endswith("weight")


def a_folder(path: Path, family: str, *, shard: str = "1GB", dtype=None, **changes) -> Path:
    """A folder as save_pretrained leaves it."""
    model = a_model(family, **changes)
    (model if dtype is None else model.to(dtype)).save_pretrained(path, max_shard_size=shard)
    return path


def loaded(path: Path):
    """The model in a folder, as anybody would load it, in fp32."""
    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    return model.eval()
