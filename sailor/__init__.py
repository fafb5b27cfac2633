"""Sailor: train large language models on preemptible GPUs without losing work when they vanish."""

__version__ = "0.1.0"
