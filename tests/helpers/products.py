"""Whose matrix products a test engine takes, whatever the processor and however small they are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from sailor.parallel import products

HAS_ONE_DNN = hasattr(torch.ops.mkldnn, "_linear_pointwise")
needs_one_dnn = pytest.mark.skipif(not HAS_ONE_DNN, reason="this torch was built without oneDNN")


@contextmanager
def products_of(*, one_dnn: bool) -> Iterator[None]:
    """In this process: all products by oneDNN where this torch has it, or none."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(products, "one_dnn", one_dnn and HAS_ONE_DNN)
        patch.setattr(products, "FEWEST", 1)
        yield
