"""A whole model in one process: its losses, and the texts it goes on with."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from sailor.data.tokens import TokenStream, load_manifest
from sailor.parallel.boxes import cut
from sailor.training.evaluate import held_out_sequences
from sailor.training.inference import WholeModel, continued, mean_loss
from sailor.training.initial import initial_weights
from tests.helpers.engine import LENGTH, a_gpt, a_llama, a_replica, a_run, some_settings

END = 0


def a_whole_model(spec, *, seed=7):
    weights = initial_weights(spec, seed=seed, folder="")
    return WholeModel(spec, lambda tensor: weights(cut(tensor, pieces=1)[0]).clone())


def go_on(model, prompt, *, num_tokens=12, temperature=1.0, top_k=0, seed=0, end=END):
    return continued(
        model, prompt, num_tokens=num_tokens, temperature=temperature, top_k=top_k,
        end_of_text=end, chance=torch.Generator().manual_seed(seed),
    )  # fmt: skip


@pytest.mark.parametrize("spec", [a_gpt(), a_llama(num_kv_heads=2)], ids=["gpt", "llama"])
def test_the_loss_is_the_one_training_finds(crew, tokens, spec):
    layout = a_run(a_replica(2, microbatches=3), spec=spec)
    settings = some_settings(tokens, layout, eval_samples=5)
    trained = crew.train(layout, settings, steps=range(1, 1), evaluate=True)
    manifest = load_manifest(tokens)
    stream = TokenStream(manifest, manifest.held_out, sequence_length=LENGTH)
    chosen = held_out_sequences(eval_samples=5, blend=stream.blend)
    ours = mean_loss(a_whole_model(spec, seed=settings.seed), stream.read, chosen)
    # The same fp32 numbers, summed over other batches.
    assert ours == pytest.approx(trained.eval_losses[0], rel=1e-6)


def test_the_likeliest_token_is_taken_without_chance():
    model = a_whole_model(a_gpt())
    prompt = [5, 6, 7]
    greedy = go_on(model, prompt, temperature=0.0)
    assert greedy == go_on(model, prompt, temperature=0.0, seed=9)
    assert greedy == go_on(model, prompt, temperature=1.0, top_k=1)
    tokens = list(prompt)
    for token in greedy:
        assert token == int(model.next_logits(tokens).argmax())
        tokens.append(token)


def test_drawing_follows_the_seed_and_the_chances():
    model = a_whole_model(a_gpt())
    assert go_on(model, [5], seed=1) == go_on(model, [5], seed=1)
    assert go_on(model, [5], seed=1) != go_on(model, [5], seed=2)
    likeliest = set(model.next_logits([5]).topk(3).indices.tolist())
    drawn = {go_on(model, [5], num_tokens=1, top_k=3, seed=seed)[0] for seed in range(60)}
    # All of three nearly even chances are met in 60 draws but once in 10^10.
    assert drawn == likeliest


def test_an_end_of_text_ends_it_and_is_no_part_of_it():
    model = a_whole_model(a_gpt())
    greedy = go_on(model, [5], temperature=0.0)
    shorter = go_on(model, [5], temperature=0.0, end=greedy[0])
    assert shorter == []


def test_a_text_may_outgrow_the_positions_of_the_model():
    spec = a_gpt(max_positions=8)
    model = a_whole_model(spec)
    assert len(go_on(model, list(range(1, 7)), num_tokens=6, temperature=0.0, end=-1)) == 6
    long = list(range(1, 20))
    assert torch.equal(model.next_logits(long), model.next_logits(long[-8:]))


def test_an_empty_prompt_begins_after_an_end_of_text():
    model = a_whole_model(a_gpt())
    assert go_on(model, [], temperature=0.0) == go_on(model, [END], temperature=0.0)


def test_idle_rows_of_a_vocabulary_are_never_written():
    spec = a_gpt(vocab_size=256, vocab_padding=200)
    model = a_whole_model(spec)
    drawn = {
        go_on(model, [5], num_tokens=1, temperature=50.0, seed=s, end=-1)[0] for s in range(80)
    }
    assert max(drawn) < 56
    expected = F.cross_entropy(model.next_logits([5])[None, :56], torch.tensor([9])).item()
    assert model.losses(np.array([[5, 9]])).item() == pytest.approx(expected, rel=1e-6)
    assert expected < math.log(56) + 1
