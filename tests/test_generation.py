"""Sampling from a state: what was sampled is scored as training scores it, and is what the state holds."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mintjax.cache import ContextOverflowError, init_state, truncate
from mintjax.decoding import DecodeParams, _decode, _decode_donated, decode
from mintjax.extension import extend
from mintjax.generation import Draft, draw, generate
from mintjax.types import Segment
from tests.naive import naive_logits, naive_logprobs
from tests.tiny import CONFIG, tiny_policy

TOLERANCE = 1e-5
PROMPT = np.array([12, 5, 9])
BUFFER = 24


@pytest.fixture(scope="module")
def policy():
    return tiny_policy()


@pytest.fixture(scope="module")
def prompts():
    return np.random.default_rng(2).integers(0, CONFIG.vocab_size, (3, 16)).astype(np.int32)


@pytest.fixture(scope="module")
def state(policy, prompts):
    return extend(policy, Segment(prompts, PROMPT.astype(np.int32)), init_state(policy, 3, 128))


@pytest.fixture(scope="module")
def keys():
    return jax.random.split(jax.random.key(3), 3)


def params(*, temperature=0.9, stop=(-1,), max_tokens=(BUFFER, 7, 0)):
    return DecodeParams(
        np.float32(temperature),
        np.int32(0),
        np.float32(1),
        np.array(stop, np.int32),
        np.array(max_tokens, np.int32),
    )


def spell(ids):
    return "".join(chr(ord("A") + i) for i in ids)


@pytest.fixture(scope="module")
def plain(policy, state, keys):
    return generate(policy, state, keys, params(), buffer=BUFFER)


def test_sampled_logprobs_are_those_of_one_pass(policy, prompts, plain):
    assert [len(row) for row in plain.tokens] == [BUFFER, 7, 0]
    assert plain.stops == ["length"] * 3
    for prompt, n, tokens, logprobs in zip(
        prompts, PROMPT, plain.tokens, plain.logprobs, strict=True
    ):
        want = naive_logprobs(policy, np.concatenate([prompt[:n], tokens]), 0.9)[n - 1 :]
        np.testing.assert_allclose(logprobs, want, rtol=0, atol=TOLERANCE)


def test_state_holds_what_was_sampled_the_last_token_included(policy, prompts, plain):
    for row, (prompt, n) in enumerate(zip(prompts, PROMPT, strict=True)):
        stream = np.concatenate([prompt[:n], plain.tokens[row]])
        assert int(plain.state.length[row]) == len(stream)
        head = (
            plain.state.hidden[row] @ policy.base["unembed"].T
        )  # the adapter's share is in the naive logits too
        pair = policy.adapter["unembed"]
        head = head + policy.lora.scale * (plain.state.hidden[row] @ pair["a"].T) @ pair["b"].T
        np.testing.assert_allclose(
            head, naive_logits(policy, stream)[-1], rtol=0, atol=10 * TOLERANCE
        )


def test_a_stop_token_is_kept_scored_and_fed(policy, state, keys, plain):
    stop = int(plain.tokens[0][5])
    first = int(np.flatnonzero(plain.tokens[0] == stop)[0])
    got = generate(policy, state, keys, params(stop=(stop, -1)), buffer=BUFFER)
    assert got.tokens[0].tolist() == plain.tokens[0][: first + 1].tolist()
    assert got.stops[0] == "stop"
    assert int(got.state.length[0]) == PROMPT[0] + first + 1


def test_pieces_that_end_with_the_first_row_are_one_sample(policy, state, keys, plain):
    drafts = [Draft(left) for left in (BUFFER, 7, 0)]
    steps, after = draw(policy, state, keys, params(), drafts, buffer=BUFFER, least=2)
    assert (steps, [draft.left for draft in drafts]) == (7, [BUFFER - 7, 0, 0])
    more, after = draw(policy, after, keys, params(), drafts, buffer=BUFFER)
    assert (more, plain.steps) == (BUFFER - 7, BUFFER)
    assert [draft.tokens for draft in drafts] == [tokens.tolist() for tokens in plain.tokens]
    for draft, logprobs in zip(drafts, plain.logprobs, strict=True):
        np.testing.assert_allclose(draft.logprobs, logprobs, rtol=0, atol=TOLERANCE)
    np.testing.assert_array_equal(after.length, plain.state.length)


def test_greedy_takes_the_likeliest(policy, prompts, state, keys):
    got = generate(policy, state, keys, params(temperature=0, max_tokens=(3, 0, 0)), buffer=BUFFER)
    stream = prompts[0, : PROMPT[0]]
    for token in got.tokens[0]:
        assert token == int(naive_logits(policy, stream)[-1].argmax())
        stream = np.append(stream, token)


def test_changing_what_is_traced_compiles_nothing(policy, state, keys, plain):
    compiled = _decode._cache_size()
    generate(policy, state, keys, params(temperature=0.3, max_tokens=(2, 9, 4)), buffer=BUFFER)
    decode(
        policy,
        state,
        keys,
        params()._replace(top_k=np.int32(3), top_p=np.float32(0.5)),
        buffer=BUFFER,
    )
    assert _decode._cache_size() == compiled


def test_sampling_copies_no_cache(policy, keys):
    def temporary(capacity):
        state = init_state(policy, len(keys), capacity)
        lowered = _decode_donated.lower(policy, state, keys, params(), np.int32(1), buffer=BUFFER)
        return lowered.compile().memory_analysis().temp_size_in_bytes

    assert temporary(16384) == temporary(8192) > 0, "in blocks, nothing grows"
    # All at once, scores alone grow: two arrays of them, and less than a layer's keys.
    more = temporary(1024) - temporary(512)
    keys_of_a_layer = init_state(policy, len(keys), 512).buffers[0][0].nbytes
    assert 0 < more < keys_of_a_layer


def test_string_stop_ends_at_the_token_that_completes_it(policy, state, keys, plain):
    text = spell(plain.tokens[0])
    wanted = text[18:20]  # in the second chunk of tokens
    end = text.index(wanted) + 2
    got = generate(
        policy, state, keys, params(), buffer=BUFFER, stop_strings=["??", wanted], decode_text=spell
    )
    assert spell(got.tokens[0]) == text[:end]
    assert got.tokens[1].tolist() == plain.tokens[1].tolist(), "another row is not touched"
    assert got.stops == ["stop", "length", "length"]
    np.testing.assert_array_equal(got.logprobs[0], plain.logprobs[0][:end])
    assert got.state.length.tolist() == [PROMPT[0] + end, PROMPT[1] + 7, PROMPT[2]]
    # What comes after is what would have come had the rest never been sampled.
    again = params(max_tokens=(4, 0, 0))
    on = generate(policy, got.state, keys, again, buffer=BUFFER)
    whole = generate(policy, state, keys, params(max_tokens=(end + 4, 7, 0)), buffer=BUFFER)
    assert on.tokens[0].tolist() == whole.tokens[0][end:].tolist()


def test_errors_name_the_cure(policy, state, keys):
    with pytest.raises(ValueError, match=r"buffer: expected at least max_tokens \(24\), got 8"):
        decode(policy, state, keys, params(), buffer=8)
    with pytest.raises(ValueError, match="decode_text: needed with stop_strings"):
        generate(policy, state, keys, params(), buffer=BUFFER, stop_strings=["x"])
    with pytest.raises(
        ValueError, match=r"rows \[0\] have no hidden state .* rewind instead of truncate"
    ):
        generate(policy, truncate(state, jnp.array([3, 5, 9])), keys, params(), buffer=BUFFER)
    with pytest.raises(
        ContextOverflowError, match="tiny has a context of 512 tokens; 612 are needed"
    ):
        generate(policy, state, keys, params(max_tokens=(600, 0, 0)), buffer=600)


def test_running_out_of_room_is_flagged(policy, prompts, keys):
    tokens = np.resize(prompts, (3, 62))
    full = extend(
        policy, Segment(tokens, np.array([62, 10, 10], np.int32)), init_state(policy, 3, 64)
    )
    sample, after = decode(policy, full, keys, params(max_tokens=(9, 9, 0)), buffer=BUFFER)
    assert np.asarray(sample.length).tolist() == [2, 9, 0]
    assert after.overflow.tolist() == [True, False, False]
