"""Recipes for tests: files of a user's own, and a pipeline that needs a second."""

from __future__ import annotations

from pathlib import Path

from tests.helpers.compose import ROOT

TWELVE = (
    "gpt_125m_laptop", "gpt_1b_aws_spot", "gpt_1b_gcp_spot", "gpt_2_7b_sailor_paper",
    "gpt_350m_one_gpu", "llama3_1b_continue", "llama3_8b_h100_single_node", "llama3_8b_two_zones",
    "opt_350m_two_zones_mixed", "qwen2_0_5b_continue", "slurm_two_partitions", "spot_chaos_demo",
)  # fmt: skip
FOLDER = ROOT / "recipes"


def a_recipe(folder: Path, text: str, *, name: str = "mine") -> Path:
    """A file of a user's own."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.yaml"
    path.write_text(text)
    return path
