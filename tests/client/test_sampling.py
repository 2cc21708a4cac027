"""The sampling client: what it returns, and that a live cache changes none of it."""

import jax
import numpy as np
import pytest

from mintjax import ServiceClient
from mintjax.types import AdamParams, ModelInput, SamplingParams

ATOL = 1e-5  # of log probabilities, run in pieces or at once
PROMPT = [5, 6, 7, 8, 9]


def ints(ids):
    return ModelInput.from_ints(ids)


def greedy(n=8):
    return SamplingParams(max_tokens=n, temperature=0, stop=[])


@pytest.fixture
def sampler(trainer):
    return trainer.save_weights_and_get_sampling_client()


@pytest.fixture
def base(service):
    return service.create_sampling_client(base_model="tiny")


def naive(policy, ids):
    logits = policy.logits(np.array([ids]))[0]
    return np.asarray(jax.nn.log_softmax(logits))


def test_greedy_tokens_and_prompt_logprobs_are_those_of_whole_passes(base):
    policy = base.result()._served.policy
    response = base.sample(
        ints(PROMPT), 1, greedy(), include_prompt_logprobs=True, topk_prompt_logprobs=3
    ).result()
    (sequence,) = response.sequences
    ids = PROMPT + sequence.tokens
    scores = naive(policy, ids)
    assert sequence.tokens == scores[len(PROMPT) - 1 : -1].argmax(-1).tolist()
    picked = np.take_along_axis(scores[:-1], np.array(ids[1:])[:, None], 1)[:, 0]
    np.testing.assert_allclose(sequence.logprobs, picked[len(PROMPT) - 1 :], atol=ATOL)
    assert response.prompt_logprobs[0] is None and response.topk_prompt_logprobs[0] is None
    np.testing.assert_allclose(response.prompt_logprobs[1:], picked[: len(PROMPT) - 1], atol=ATOL)
    for place, best in enumerate(response.topk_prompt_logprobs[1:]):
        want = np.argsort(-scores[place])[:3]
        assert [token for token, _ in best] == want.tolist()
        np.testing.assert_allclose([lp for _, lp in best], scores[place][want], atol=ATOL)
    assert base.compute_logprobs(ints(PROMPT)).result() == pytest.approx(
        response.prompt_logprobs, abs=ATOL
    )
    assert base.get_base_model() == "tiny"


def test_a_conversation_that_goes_on_prefills_what_is_new(base):
    first = base.sample(ints(PROMPT), 1, greedy()).result().sequences[0].tokens
    longer = [*PROMPT, *first, 11, 12]
    response = base.sample(ints(longer), 1, greedy()).result()
    assert response.prompt_cache_hit_tokens == len(PROMPT) + 8
    stats = base.stats()
    assert (stats.prefilled, stats.reused, stats.sampled) == (len(PROMPT) + 2, len(PROMPT) + 8, 16)
    assert (stats.diverged, stats.evicted, stats.entries) == (0, 0, 1)
    scores = naive(base._served.policy, longer + response.sequences[0].tokens)
    assert response.sequences[0].tokens == scores[len(longer) - 1 : -1].argmax(-1).tolist()


def test_samples_of_one_prompt_prefill_it_once(base):
    params = SamplingParams(max_tokens=6, seed=3, stop=[])
    response = base.sample(ints(PROMPT), 3, params).result()
    again = base.sample(ints(PROMPT), 3, params).result()
    assert [s.tokens for s in response.sequences] == [s.tokens for s in again.sequences]
    assert len({tuple(s.tokens) for s in response.sequences}) == 3
    other = base.sample(ints(PROMPT), 3, SamplingParams(max_tokens=6, seed=4, stop=[])).result()
    assert other.sequences != response.sequences
    stats = base.stats()
    assert (stats.prefilled, stats.reused, stats.sampled) == (5, 10, 54)
    assert stats.entries == 6 and stats.diverged == 0
    # Each of the samples can go on from its own cache.
    for sequence in response.sequences:
        base.sample(ints([*PROMPT, *sequence.tokens, 1]), 1, greedy(2)).result()
    assert base.stats().prefilled == 8


def test_a_prompt_that_leaves_a_sample_rolls_back_and_is_counted(base):
    first = base.sample(ints(PROMPT), 1, greedy()).result().sequences[0].tokens
    changed = [*PROMPT, *first[:3], (first[3] + 1) % 99, 20, 21]
    response = base.sample(ints(changed), 1, greedy()).result()
    stats = base.stats()
    assert (stats.prefilled, stats.reused, stats.diverged) == (5 + 3, 5 + 3, 1)
    scores = naive(base._served.policy, changed + response.sequences[0].tokens)
    assert response.sequences[0].tokens == scores[len(changed) - 1 : -1].argmax(-1).tolist()
    # Other prompts that share their start, and prompts inside of a conversation, are no divergence.
    base.sample(ints([*PROMPT[:3], 50]), 1, greedy(2)).result()
    inside = base.sample(ints([*PROMPT, *first[:2]]), 1, greedy(2)).result()
    assert base.stats().diverged == 1
    assert inside.sequences[0].tokens == first[2:4]
    # The conversation that was left is still there.
    before = base.stats().prefilled
    base.sample(ints([*PROMPT, *first, 30]), 1, greedy(2)).result()
    assert base.stats().prefilled == before + 1


def test_the_least_recently_used_conversation_goes_first(models, tmp_path):
    one = 2 * 1 * 2 * 256 * 8 * 4  # keys and values, layers, heads, slots, width, bytes
    with ServiceClient(home=tmp_path, models=models, cache_bytes=2 * one) as service:
        client = service.create_sampling_client(base_model="tiny")
        for first in (1, 2, 1, 3):
            client.sample(ints([first, 4, 5]), 1, greedy(2)).result()
        stats = client.stats()
        assert (stats.entries, stats.evicted, stats.cache_bytes) == (2, 1, 2 * one)
        assert stats.cache_bytes_limit == 2 * one
        client.sample(ints([1, 4, 5]), 1, greedy(2)).result()
        assert client.stats().prefilled == 9
        client.sample(ints([2, 4, 5]), 1, greedy(2)).result()
        assert client.stats().prefilled == 12


def test_stops(base):
    text = models_text(base)
    free = base.sample(ints(PROMPT), 1, greedy(12)).result().sequences[0]
    assert free.stop_reason == "length"
    token = free.tokens[4]
    cut = free.tokens.index(token) + 1
    by_id = base.sample(
        ints(PROMPT), 1, SamplingParams(max_tokens=12, temperature=0, stop=[token])
    ).result()
    assert by_id.sequences[0].tokens == free.tokens[:cut]
    assert by_id.sequences[0].stop_reason == "stop"
    stop = text(free.tokens[4:6])
    by_text = base.sample(
        ints(PROMPT), 1, SamplingParams(max_tokens=12, temperature=0, stop=stop)
    ).result()
    assert stop in text(by_text.sequences[0].tokens)
    assert stop not in text(by_text.sequences[0].tokens[:-1])


def models_text(client):
    return client.result()._served.model.vocabulary.decode


def test_an_implicit_stop_is_the_vocabularys_own(base):
    ends = base.result()._served.model.vocabulary.ends
    params = SamplingParams(max_tokens=120, temperature=1.5, seed=1)
    sequences = base.sample(ints(PROMPT), 3, params).result().sequences
    assert "stop" in {sequence.stop_reason for sequence in sequences}
    for sequence in sequences:
        assert (sequence.tokens[-1] in ends) == (sequence.stop_reason == "stop")
        assert not set(sequence.tokens[:-1]) & set(ends)


def test_without_max_tokens_the_context_is_filled(base):
    (sequence,) = base.sample(ints([7] * 490), 1, SamplingParams(stop=[])).result().sequences
    assert len(sequence.tokens) == 512 - 490 and sequence.stop_reason == "length"


def test_an_old_snapshot_samples_as_before(trainer, sampler, make_data):
    before = sampler.sample(ints(PROMPT), 1, greedy()).result()
    trainer.forward_backward(make_data(), "ppo")
    trainer.optim_step(AdamParams(learning_rate=0.3))
    new = trainer.save_weights_and_get_sampling_client()
    assert new.compute_logprobs(ints(PROMPT)).result() != pytest.approx(
        sampler.compute_logprobs(ints(PROMPT)).result(), abs=1e-3
    )
    again = sampler.sample(ints(PROMPT), 1, greedy()).result()
    assert again.sequences == before.sequences


def test_a_fresh_adapter_samples_as_the_base(service, base):
    fresh = service.create_lora_training_client("tiny", rank=3)
    sampler = fresh.save_weights_and_get_sampling_client()
    np.testing.assert_allclose(
        base.compute_logprobs(ints(PROMPT)).result()[1:],
        sampler.compute_logprobs(ints(PROMPT)).result()[1:],
        atol=ATOL,
    )
