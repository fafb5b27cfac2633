"""The plain ``transformers`` Llama in one process: forward, backward, AdamW in a fused kernel.

Its modules are also what benchmarks/engine_torch.py cuts.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.engine_rank import Train
from benchmarks.engine_shapes import SEQUENCE, SHAPES, Shape
from sailor.data.tokens import TokenStream, load_manifest


def contender(job: dict[str, Any]) -> Train:
    """A step over the whole batch, microbatch by microbatch."""
    shape = SHAPES[job["shape"]]
    model = llama(shape)
    optimizer = adamw(model)
    batches = Batches(shape, tokens=job["tokens"])
    count = shape.batch // shape.microbatch

    def train() -> float:
        total = 0.0
        for tokens in batches.next().split(shape.microbatch):
            logits = model(input_ids=tokens[:, :-1], use_cache=False).logits
            loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()) / count
            loss.backward()
            total += loss.item()
        optimizer.step()
        optimizer.zero_grad()
        return total

    return train


def llama(shape: Shape) -> LlamaForCausalLM:
    """The shape as transformers builds it, fp32, with torch's own attention kernel."""
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=256, hidden_size=shape.hidden_size, intermediate_size=shape.ffn_hidden_size,
        num_hidden_layers=shape.num_layers, num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_heads, max_position_embeddings=SEQUENCE,
        tie_word_embeddings=False, attn_implementation="sdpa",
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    model.train()
    return model


def adamw(module: torch.nn.Module) -> torch.optim.AdamW:
    """Fused: the fastest torch has on a CPU. It does not take DTensors and others in one group."""
    groups: dict[type, list[torch.nn.Parameter]] = {}
    for parameter in module.parameters():
        groups.setdefault(type(parameter.data), []).append(parameter)
    return torch.optim.AdamW(
        [{"params": group} for group in groups.values()],
        lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True,
    )  # fmt: skip


class Batches:
    """The text in order, a global batch of [B, T + 1] tokens at a time."""

    def __init__(self, shape: Shape, *, tokens: str) -> None:
        manifest = load_manifest(Path(tokens))
        self._stream = TokenStream(manifest, manifest.train, sequence_length=SEQUENCE)
        self._batch = shape.batch
        self._at = 0

    def next(self) -> torch.Tensor:
        """The next one; from the start again after the last."""
        wanted = (self._at + np.arange(self._batch)) % self._stream.num_sequences
        self._at += self._batch
        return torch.from_numpy(self._stream.read(wanted))
