"""A whole model in one process, to look at: losses of known text, and text of its own.

Not for training and not for serving: no parallelism, and every new token works through all tokens
before it once more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch

from sailor.models.spec import LogicalTensor, ModelSpec
from sailor.models.stage import StageModule
from sailor.parallel.tensor import TensorGroup

ReadTensor = Callable[[LogicalTensor], torch.Tensor]


class WholeModel:
    """Every block, on the CPU, in fp32."""

    def __init__(self, spec: ModelSpec, read: ReadTensor) -> None:
        """``read`` gives each tensor once; its memory becomes the model's."""
        self.spec = spec
        self._module = StageModule(
            spec, blocks=range(spec.num_layers), first=True, last=True, recompute=False,
            group=TensorGroup(rank=0, size=1),
        )  # fmt: skip
        weights = {tensor.name: read(tensor) for tensor in spec.tensors}
        for name, owner, attribute in self._module.leaves():
            parameter = torch.nn.Parameter(weights[name], requires_grad=False)
            setattr(owner, attribute, parameter)

    @torch.no_grad()
    def losses(self, tokens: npt.NDArray[np.int64]) -> torch.Tensor:
        """Cross-entropy of each token but the first, in nats: [B, T] of [B, T + 1] tokens."""
        both = torch.from_numpy(tokens)
        x_BTD = self._module(both[:, :-1])
        return self._module.losses(x_BTD, both[:, 1:]).view(len(tokens), -1)

    @torch.no_grad()
    def next_logits(self, tokens: Sequence[int]) -> torch.Tensor:
        """Scores of every token to come next, [V]. Sees the last ``max_positions`` tokens."""
        seen = torch.tensor([list(tokens[-self.spec.max_positions :])])
        head = self._module.head
        assert head is not None
        logits_V: torch.Tensor = head(self._module(seen)[:, -1:])[0, -1]
        return logits_V


def mean_loss(
    model: WholeModel, read: Callable[[npt.NDArray[np.int64]], npt.NDArray[np.int64]],
    sequences: npt.NDArray[np.int64],
) -> float:  # fmt: skip
    """Nats per token over some sequences, a few at a time."""
    sums: list[float] = []
    count = 0
    for part in np.array_split(sequences, math.ceil(len(sequences) / 4)):
        losses = model.losses(read(part))
        sums += losses.sum(dim=1, dtype=torch.float64).tolist()
        count += losses.numel()
    return math.fsum(sums) / count


def continued(
    model: WholeModel, prompt: Sequence[int], *, num_tokens: int, temperature: float, top_k: int,
    end_of_text: int, chance: torch.Generator,
) -> list[int]:  # fmt: skip
    """At most ``num_tokens`` tokens that go on from the prompt, without the end of the text.

    Temperature 0 takes the likeliest; otherwise they are drawn, from the ``top_k`` likeliest if
    that is not 0. An empty prompt begins after an end of text.
    """
    tokens = list(prompt) or [end_of_text]
    start = len(tokens)
    while len(tokens) - start < num_tokens:
        token = _pick(
            model.next_logits(tokens), temperature=temperature, top_k=top_k, chance=chance
        )
        if token == end_of_text:
            break
        tokens.append(token)
    return tokens[start:]


def _pick(
    logits_V: torch.Tensor, *, temperature: float, top_k: int, chance: torch.Generator
) -> int:  # fmt: skip
    if temperature == 0.0:
        return int(logits_V.argmax())
    if 0 < top_k < len(logits_V):
        least = logits_V.topk(top_k).values[-1]
        logits_V = logits_V.masked_fill(logits_V < least, -math.inf)
    chances_V = torch.softmax(logits_V.double() / temperature, dim=-1)
    return int(torch.multinomial(chances_V, 1, generator=chance))
