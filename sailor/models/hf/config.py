"""A Hugging Face config.json as a ModelSpec, and back. No torch, no weights.

Keys that are missing have the defaults of transformers' own configuration classes, because
``save_pretrained`` leaves out what equals them. What a config asks for and our modules do not
compute is refused by name: a model that is almost the same one is of no use.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from sailor.errors import DataError
from sailor.models.spec import Activation, Family, ModelSpec, Norm, Positions

CONFIG = "config.json"
_LARGEST_DEGREE = 8  # GPUs of a machine: the tensor-parallel degrees a vocabulary should allow
_PADDED_TO = 64

_ACTIVATIONS = {
    "gelu": Activation.gelu, "gelu_new": Activation.gelu_tanh,
    "gelu_pytorch_tanh": Activation.gelu_tanh, "relu": Activation.relu,
}  # fmt: skip
_ACTIVATION_NAMES = {
    Activation.gelu: "gelu", Activation.gelu_tanh: "gelu_new", Activation.relu: "relu",
}  # fmt: skip


def read_config(folder: Path) -> dict[str, Any]:
    """config.json of a model's folder. Raises DataError E511 when there is none to be read."""
    path = folder / CONFIG
    try:
        config = json.loads(path.read_text())
        if not isinstance(config, dict):
            raise ValueError("not a mapping")
    except (OSError, ValueError) as error:
        there = folder.is_dir()
        raise DataError(
            f"{folder} is no Hugging Face model", code="E511", where=str(path),
            why=str(error) if there else "there is no such folder",
            fix="name a folder with config.json and model.safetensors, as save_pretrained writes "
            "it or a download leaves it",
        ) from error  # fmt: skip
    return config


def spec_of(config: Mapping[str, Any], *, name: str, where: str = CONFIG) -> ModelSpec:
    """The model a config.json describes.

    A vocabulary that 8 does not divide gets idle rows up to a multiple of 64, so that tensor
    parallelism may cut it (GPT-2: 50,257 tokens, 50,304 rows). Raises DataError E512 for an
    architecture or a feature our modules do not have.
    """
    kind = config.get("model_type")
    if kind not in _READERS:
        raise DataError(
            f"{name} is a model of type {kind!r}", code="E512", where=where,
            why="the architectures that can be read are " + ", ".join(sorted(_READERS)),
            fix="start from a model of one of these",
        )  # fmt: skip
    try:
        fields = _READERS[kind](_Said(config, name=name, where=where))
        num_tokens = fields["vocab_size"]
        padding = -num_tokens % _PADDED_TO if num_tokens % _LARGEST_DEGREE else 0
        return ModelSpec(
            **{**fields, "name": name, "vocab_size": num_tokens + padding, "vocab_padding": padding}
        )
    except (TypeError, ValueError, AttributeError) as error:
        raise DataError(
            f"{name} has an impossible shape", code="E512", where=where, why=str(error),
            fix="compare config.json with that of the model's makers",
        ) from error  # fmt: skip


def config_of(spec: ModelSpec) -> dict[str, Any]:
    """The config.json under which transformers computes the same. Raises DataError E514."""
    kind = model_type_of(spec)
    return {"model_type": kind, **_WRITERS[kind](spec)}


def model_type_of(spec: ModelSpec) -> str:
    """The architecture of transformers that has this shape. Raises DataError E514."""
    lacks = {kind: _lacks(spec, kind) for kind in _WRITERS}
    for kind, reasons in lacks.items():
        if not reasons:
            return kind
    raise DataError(
        f"no architecture of transformers has the shape of {spec.name}", code="E514",
        why="what it would need\n"
        + "\n".join(f"{kind}: {'; '.join(reasons)}" for kind, reasons in lacks.items()),
        where="model", fix="export.format=dcp   writes the weights under their own names",
    )  # fmt: skip


class _Said:
    """What a config says, the architecture's defaults filled in, with a way to insist."""

    def __init__(self, config: Mapping[str, Any], *, name: str, where: str) -> None:
        self._config = {**_DEFAULTS[config["model_type"]], **config}
        self._name = name
        self._where = where

    def get(self, key: str, instead: Any = None) -> Any:
        """The value, or ``instead`` of null."""
        value = self._config.get(key)
        return instead if value is None else value

    def activation(self, key: str) -> Activation:
        """What an activation is called here. Raises DataError E512 for one that is unknown."""
        value = self.get(key)
        if value not in _ACTIVATIONS:
            self.refuse(f"{key} {value!r}", "known are " + ", ".join(map(repr, _ACTIVATIONS)))
        return _ACTIVATIONS[value]

    def insist(self, **expected: Any) -> None:
        """Raise DataError E512 unless the keys are absent, null or as expected."""
        for key, value in expected.items():
            if self.get(key, value) != value:
                self.refuse(f"{key} {self.get(key)!r}", f"only {value!r} is computed here")

    def refuse(self, what: str, why: str) -> NoReturn:
        """Raise DataError E512."""
        raise DataError(
            f"{self._name} has {what}", code="E512", where=self._where, why=why,
            fix="start from a model without it",
        )  # fmt: skip


# Reading

_DEFAULTS: dict[str, dict[str, Any]] = {
    "gpt2": {
        "vocab_size": 50257, "n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12,
        "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5, "tie_word_embeddings": True,
    },
    "opt": {
        "vocab_size": 50272, "hidden_size": 768, "num_hidden_layers": 12, "ffn_dim": 3072,
        "max_position_embeddings": 2048, "num_attention_heads": 12, "activation_function": "relu",
        "enable_bias": True, "tie_word_embeddings": True,
    },
    "llama": {
        "vocab_size": 32000, "intermediate_size": 11008, "max_position_embeddings": 2048,
    },
    "qwen2": {
        "vocab_size": 151936, "intermediate_size": 22016, "max_position_embeddings": 32768,
        "num_key_value_heads": 32, "sliding_window": 4096, "max_window_layers": 28,
    },
    "mistral": {
        "vocab_size": 32000, "intermediate_size": 14336, "max_position_embeddings": 131072,
        "num_key_value_heads": 8, "sliding_window": 4096,
    },
}  # fmt: skip
for _kind in ("llama", "qwen2", "mistral"):
    _DEFAULTS[_kind] |= {
        "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
        "rms_norm_eps": 1e-6, "tie_word_embeddings": False,
    }  # fmt: skip


def _gpt2(said: _Said) -> dict[str, Any]:
    said.insist(
        scale_attn_weights=True, scale_attn_by_inverse_layer_idx=False, add_cross_attention=False
    )
    return _learned(
        hidden=said.get("n_embd"), heads=said.get("n_head"), num_layers=said.get("n_layer"),
        ffn_hidden_size=said.get("n_inner", 4 * said.get("n_embd")),
        vocab_size=said.get("vocab_size"), max_positions=said.get("n_positions"),
        tied_embeddings=said.get("tie_word_embeddings"),
        activation=said.activation("activation_function"),
        norm_epsilon=said.get("layer_norm_epsilon"),
    )  # fmt: skip


def _opt(said: _Said) -> dict[str, Any]:
    hidden, bias = said.get("hidden_size"), said.get("enable_bias")
    said.insist(
        do_layer_norm_before=True, _remove_final_layer_norm=False, word_embed_proj_dim=hidden,
        layer_norm_elementwise_affine=True,
    )  # fmt: skip
    return _learned(
        hidden=hidden, heads=said.get("num_attention_heads"),
        num_layers=said.get("num_hidden_layers"), ffn_hidden_size=said.get("ffn_dim"),
        vocab_size=said.get("vocab_size"), max_positions=said.get("max_position_embeddings"),
        position_offset=_OPT_OFFSET, tied_embeddings=said.get("tie_word_embeddings"),
        activation=said.activation("activation_function"), norm_epsilon=_OPT_EPSILON,
        attention_bias=bias, attention_output_bias=bias, ffn_bias=bias,
    )  # fmt: skip


_OPT_OFFSET, _OPT_EPSILON = 2, 1e-5  # constants of its modules, of which the config says nothing


def _learned(*, hidden: int, heads: int, **fields: Any) -> dict[str, Any]:
    return {
        "family": Family.gpt, "hidden_size": hidden, "num_heads": heads, "num_kv_heads": heads,
        "head_size": hidden // max(heads, 1), "norm": Norm.layernorm,
        "positions": Positions.learned, **fields,
    }  # fmt: skip


def _llama(said: _Said) -> dict[str, Any]:
    bias = said.get("attention_bias", False)
    return _rotary(
        said, attention_bias=bias, attention_output_bias=bias, ffn_bias=said.get("mlp_bias", False)
    )


def _qwen2(said: _Said) -> dict[str, Any]:
    layers = said.get("num_hidden_layers")
    window = said.get("sliding_window", 0) if said.get("use_sliding_window", False) else 0
    full = min(said.get("max_window_layers"), layers) if window else layers
    default = ["full_attention"] * full + ["sliding_attention"] * (layers - full)
    kinds = set(said.get("layer_types", default))
    if len(kinds) > 1:
        said.refuse("a sliding window in some layers only", "all layers see alike here")
    return _rotary(
        said, attention_bias=True, attention_output_bias=False, ffn_bias=False,
        sliding_window=window if kinds == {"sliding_attention"} else 0,
    )  # fmt: skip


def _mistral(said: _Said) -> dict[str, Any]:
    return _rotary(
        said, attention_bias=False, attention_output_bias=False, ffn_bias=False,
        sliding_window=said.get("sliding_window", 0),
    )  # fmt: skip


def _rotary(said: _Said, **fields: Any) -> dict[str, Any]:
    said.insist(hidden_act="silu")
    hidden, heads = said.get("hidden_size"), said.get("num_attention_heads")
    return {
        "family": Family.llama, "hidden_size": hidden, "num_heads": heads,
        "num_kv_heads": said.get("num_key_value_heads", heads),
        "head_size": said.get("head_dim", hidden // max(heads, 1)),
        "num_layers": said.get("num_hidden_layers"),
        "ffn_hidden_size": said.get("intermediate_size"), "vocab_size": said.get("vocab_size"),
        "max_positions": said.get("max_position_embeddings"),
        "tied_embeddings": said.get("tie_word_embeddings"), "activation": Activation.swiglu,
        "norm": Norm.rmsnorm, "norm_epsilon": said.get("rms_norm_eps"),
        "positions": Positions.rotary, **_rope(said), **fields,
    }  # fmt: skip


def _rope(said: _Said) -> dict[str, Any]:
    """Older configs have rope_theta and rope_scaling, newer ones rope_parameters."""
    rope = said.get("rope_scaling") or said.get("rope_parameters") or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    share = rope.get("partial_rotary_factor", said.get("partial_rotary_factor", 1.0))
    if kind not in ("default", "llama3"):
        said.refuse(f"rotary scaling of type {kind!r}", "known are 'default' and 'llama3'")
    if share != 1.0:
        said.refuse(f"partial_rotary_factor {share}", "whole heads are turned here")
    fields = {"rope_theta": float(rope.get("rope_theta") or said.get("rope_theta", 10_000.0))}
    if kind == "llama3":
        missing = [key for key in _LLAMA3[:3] if key not in rope]
        if missing:
            said.refuse(f"no {missing[0]} in its rotary scaling", "llama3 scaling needs it")
        factor, low, high, positions = _LLAMA3
        fields |= {
            "rope_scaling_factor": float(rope[factor]), "rope_low_freq_factor": float(rope[low]),
            "rope_high_freq_factor": float(rope[high]),
            "rope_original_positions": rope.get(positions, said.get("max_position_embeddings")),
        }  # fmt: skip
    return fields


_LLAMA3 = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")

_READERS: dict[Any, Callable[[_Said], dict[str, Any]]] = {
    "gpt2": _gpt2, "opt": _opt, "llama": _llama, "qwen2": _qwen2, "mistral": _mistral,
}  # fmt: skip


# Writing


def _write_gpt2(spec: ModelSpec) -> dict[str, Any]:
    return {
        "architectures": ["GPT2LMHeadModel"], "vocab_size": spec.num_tokens,
        "n_positions": spec.max_positions, "n_embd": spec.hidden_size, "n_layer": spec.num_layers,
        "n_head": spec.num_heads, "n_inner": spec.ffn_hidden_size,
        "activation_function": _ACTIVATION_NAMES[spec.activation],
        "layer_norm_epsilon": spec.norm_epsilon, "tie_word_embeddings": spec.tied_embeddings,
        "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0,
    }  # fmt: skip


def _write_opt(spec: ModelSpec) -> dict[str, Any]:
    return {
        "architectures": ["OPTForCausalLM"], "vocab_size": spec.num_tokens,
        "hidden_size": spec.hidden_size, "word_embed_proj_dim": spec.hidden_size,
        "num_hidden_layers": spec.num_layers, "ffn_dim": spec.ffn_hidden_size,
        "max_position_embeddings": spec.max_positions, "num_attention_heads": spec.num_heads,
        "activation_function": _ACTIVATION_NAMES[spec.activation],
        "enable_bias": spec.attention_bias, "do_layer_norm_before": True,
        "tie_word_embeddings": spec.tied_embeddings, "dropout": 0.0, "attention_dropout": 0.0,
    }  # fmt: skip


def _write_llama(spec: ModelSpec) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"], "attention_bias": spec.attention_bias,
        "mlp_bias": spec.ffn_bias, **_write_rotary(spec),
    }  # fmt: skip


def _write_qwen2(spec: ModelSpec) -> dict[str, Any]:
    window = (
        {"sliding_window": spec.sliding_window, "max_window_layers": 0}
        if spec.sliding_window
        else {"sliding_window": None}
    )
    return {
        "architectures": ["Qwen2ForCausalLM"], "use_sliding_window": spec.sliding_window > 0,
        **window, **_write_rotary(spec),
    }  # fmt: skip


def _write_mistral(spec: ModelSpec) -> dict[str, Any]:
    return {
        "architectures": ["MistralForCausalLM"], "sliding_window": spec.sliding_window,
        **_write_rotary(spec),
    }  # fmt: skip


def _write_rotary(spec: ModelSpec) -> dict[str, Any]:
    scaling = None
    if spec.rope_scaling_factor != 1.0:
        values = (
            spec.rope_scaling_factor, spec.rope_low_freq_factor, spec.rope_high_freq_factor,
            spec.rope_original_positions,
        )  # fmt: skip
        scaling = {"rope_type": "llama3", **dict(zip(_LLAMA3, values, strict=True))}
    return {
        "vocab_size": spec.num_tokens, "hidden_size": spec.hidden_size,
        "intermediate_size": spec.ffn_hidden_size, "num_hidden_layers": spec.num_layers,
        "num_attention_heads": spec.num_heads, "num_key_value_heads": spec.num_kv_heads,
        "head_dim": spec.head_size, "hidden_act": "silu",
        "max_position_embeddings": spec.max_positions, "rms_norm_eps": spec.norm_epsilon,
        "tie_word_embeddings": spec.tied_embeddings,
        # In the older form, which every version of transformers reads.
        "rope_theta": spec.rope_theta, "rope_scaling": scaling, "attention_dropout": 0.0,
    }  # fmt: skip


_WRITERS: dict[str, Callable[[ModelSpec], dict[str, Any]]] = {
    "gpt2": _write_gpt2, "opt": _write_opt, "llama": _write_llama, "qwen2": _write_qwen2,
    "mistral": _write_mistral,
}  # fmt: skip


def _lacks(spec: ModelSpec, kind: str) -> list[str]:
    """What a model would have to be, and is not, to be of this architecture."""
    q, out, ffn = spec.attention_bias, spec.attention_output_bias, spec.ffn_bias
    learned = {
        "family is gpt": spec.family is Family.gpt,
        "num_kv_heads is num_heads": spec.num_kv_heads == spec.num_heads,
        "hidden_size is num_heads x head_size": (
            spec.hidden_size == spec.num_heads * spec.head_size
        ),
        "sliding_window is 0": spec.sliding_window == 0,
    }
    rotary = {
        "family is llama": spec.family is Family.llama,
        "activation is swiglu": spec.activation is Activation.swiglu,
        "hidden_size is a multiple of num_heads": spec.hidden_size % spec.num_heads == 0,
    }
    wanted: dict[str, bool]
    match kind:
        case "gpt2":
            wanted = learned | {
                "position_offset is 0": spec.position_offset == 0,
                "biases everywhere": q and out and ffn,
            }
        case "opt":
            wanted = learned | {
                f"position_offset is {_OPT_OFFSET}": spec.position_offset == _OPT_OFFSET,
                f"norm_epsilon is {_OPT_EPSILON}": spec.norm_epsilon == _OPT_EPSILON,
                "biases everywhere or nowhere": q == out == ffn,
            }
        case "llama":
            wanted = rotary | {
                "sliding_window is 0": spec.sliding_window == 0,
                "attention_output_bias is attention_bias": q == out,
            }
        case "qwen2":
            wanted = rotary | {
                "attention_bias": q,
                "no attention_output_bias": not out,
                "no ffn_bias": not ffn,
                "head_size is hidden_size / num_heads": (
                    spec.hidden_size == spec.num_heads * spec.head_size
                ),
            }
        case _:
            wanted = rotary | {"no biases": not (q or out or ffn)}
    return [what for what, holds in wanted.items() if not holds]
