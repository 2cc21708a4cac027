"""The sampling client: samples and scores of one policy that never changes."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mintjax.cache import take_rows
from mintjax.client.base_models import BaseModel
from mintjax.client.errors import RequestFailedError
from mintjax.client.futures import Creation, Future, awaited
from mintjax.client.live_caches import LiveCaches
from mintjax.client.sampling_checks import checked_max_tokens, prompt_ids, stops
from mintjax.client.session import Session
from mintjax.decoding import DecodeParams
from mintjax.generation import generate
from mintjax.policy import Policy
from mintjax.renderers import bucket
from mintjax.types import (
    ModelInput,
    SampledSequence,
    SampleResponse,
    SamplingParams,
    SamplingStats,
)


class Served(NamedTuple):
    """What a sampling client samples from: a policy, and the base model under it by name."""

    policy: Policy
    model: BaseModel
    base_model: str


class SamplingClient(Creation):
    """Samples from a snapshot of a policy; training after it changes nothing here.

    Prompts are held against the conversations whose caches are alive by token ids, so that a prompt that repeats an
    earlier one costs its new tokens only. Made by :class:`ServiceClient` and :class:`TrainingClient`.

    Example:
        >>> client = service_client.create_sampling_client(base_model="smollm2-135m-instruct")
        >>> client.sample(types.ModelInput.from_ints([1, 2]), 1, types.SamplingParams(max_tokens=8)).result()
    """

    def __init__(self, session: Session, make: Callable[[], Served]) -> None:
        """Queue the making of what is served; for the other clients to call."""
        super().__init__()
        self._session = session
        self._served: Served | None = None
        self._caches: LiveCaches | None = None
        session.worker.submit_into(self, lambda: self._start(make))

    def sample(
        self,
        prompt: ModelInput,
        num_samples: int = 1,
        sampling_params: SamplingParams | None = None,
        include_prompt_logprobs: bool = False,
        topk_prompt_logprobs: int = 0,
    ) -> Future[SampleResponse]:
        """Samples a prompt, which is run once however many samples there are.

        Args:
            prompt: token ids, at least one.
            num_samples: how many samples; they are decoded side by side.
            sampling_params: how; None is the defaults of :class:`SamplingParams`.
            include_prompt_logprobs: whether to score the prompt at temperature 1. The whole prompt is run for that.
            topk_prompt_logprobs: how many likeliest tokens to report at each of its places; above 0 also runs it whole.

        Returns:
            The samples. Their log probabilities are of the temperature-scaled distribution: training on a sample of
            another temperature than 1 needs ``"temperature"`` in the loss's configuration.

        Raises:
            TypeError: at once, where the arguments are of other types.
            RequestFailedError: in the future, of category ``User``, for values that cannot be.

        Example:
            >>> client.sample(prompt, 4, SamplingParams(max_tokens=32, seed=1)).result().sequences[0].tokens
        """
        params = SamplingParams() if sampling_params is None else sampling_params
        _require(ModelInput, prompt=prompt)
        _require(SamplingParams, sampling_params=params)
        _require(int, num_samples=num_samples, topk_prompt_logprobs=topk_prompt_logprobs)
        if params.temperature not in (0, 1):
            self._session.sampled_hot = params.temperature
        number = next(self._session.sample_ids)
        return self._session.worker.submit(
            lambda: self._sample(
                prompt, num_samples, params, include_prompt_logprobs, topk_prompt_logprobs, number
            )
        )

    def compute_logprobs(self, prompt: ModelInput) -> Future[list[float | None]]:
        """Scores every token of a prompt given those before it, at temperature 1.

        Args:
            prompt: token ids, at least one.

        Returns:
            Log probabilities; None for the first token, which nothing predicts.

        Raises:
            RequestFailedError: in the future, for ids that are not in the vocabulary or too many.

        Example:
            >>> client.compute_logprobs(types.ModelInput.from_ints([1, 2])).result()
            [None, -7.25]
        """
        _require(ModelInput, prompt=prompt)
        return self._session.worker.submit(lambda: self._compute_logprobs(prompt))

    sample_async = awaited(sample)
    compute_logprobs_async = awaited(compute_logprobs)

    def stats(self) -> SamplingStats:
        """What all requests submitted so far cost; waits for them.

        Example:
            >>> client.stats().prefilled
            57
        """
        return self._session.worker.submit(lambda: self._live()[1].stats).result()

    def get_tokenizer(self) -> Any:
        """The base model's tokenizer; waits until the client is there."""
        return self.result()._live()[0].model.tokenizer

    def get_base_model(self) -> str:
        """The base model's name; waits until the client is there."""
        return self.result()._live()[0].base_model

    async def stats_async(self) -> SamplingStats:
        """The twin of :meth:`stats`."""
        return await self._session.worker.submit(lambda: self._live()[1].stats)

    async def get_tokenizer_async(self) -> Any:
        """The twin of :meth:`get_tokenizer`."""
        return (await self)._live()[0].model.tokenizer

    async def get_base_model_async(self) -> str:
        """The twin of :meth:`get_base_model`."""
        return (await self)._live()[0].base_model

    # ----------------------------------------------------------------------------------------------
    # What follows runs on the worker's thread.

    def _start(self, make: Callable[[], Served]) -> None:
        self._served = make()
        self._caches = LiveCaches(self._served.policy, self._session.cache_bytes)

    def _live(self) -> tuple[Served, LiveCaches]:
        """What is served; if its creation failed, that error."""
        self.ready()
        assert self._served is not None and self._caches is not None
        return self._served, self._caches

    def _sample(
        self,
        prompt: ModelInput,
        count: int,
        params: SamplingParams,
        with_logprobs: bool,
        topk: int,
        number: int,
    ) -> SampleResponse:
        served, caches = self._live()
        ids = prompt_ids(prompt, served.policy.config)
        if count < 1:
            raise RequestFailedError(f"num_samples: expected at least 1, got {count}")
        if not 0 <= topk <= served.policy.config.vocab_size:
            raise RequestFailedError(
                f"topk_prompt_logprobs: expected 0 to the vocabulary's size, {served.policy.config.vocab_size}, "
                f"got {topk}"
            )
        max_tokens = checked_max_tokens(params, len(ids), served.policy.config)
        tokens, texts = stops(params, served.model.vocabulary.ends)
        hits = caches.stats.reused
        scored = None
        if with_logprobs or topk:
            conversation, scored = caches.score(ids, max_tokens, topk)
        else:
            conversation = caches.open(ids, max_tokens)
        rows = np.zeros(count, np.int32)
        generated = generate(
            served.policy,
            conversation.state if count == 1 else take_rows(conversation.state, rows),
            self._keys(params.seed, number, count),
            DecodeParams(
                temperature=np.float32(params.temperature),
                top_k=np.int32(params.top_k),
                top_p=np.float32(params.top_p),
                stop_tokens=tokens,
                max_tokens=np.full(count, max_tokens, np.int32),
            ),
            buffer=bucket(max_tokens),
            stop_strings=texts,
            decode_text=served.model.vocabulary.decode,
            donate=True,
        )
        for row in range(count):
            state = generated.state if count == 1 else take_rows(generated.state, [row])
            caches.keep(conversation.after(state), generated.tokens[row])
        return SampleResponse(
            sequences=[
                SampledSequence(stop, ids.tolist(), logprobs.tolist())
                for stop, ids, logprobs in zip(
                    generated.stops, generated.tokens, generated.logprobs, strict=True
                )
            ],
            prompt_logprobs=_with_none(scored.logprobs) if scored and with_logprobs else None,
            topk_prompt_logprobs=_pairs(*scored.top) if scored and scored.top else None,
            prompt_cache_hit_tokens=caches.stats.reused - hits,
        )

    def _compute_logprobs(self, prompt: ModelInput) -> list[float | None]:
        served, caches = self._live()
        conversation, scored = caches.score(prompt_ids(prompt, served.policy.config), 0, 0)
        caches.keep(conversation, np.zeros(0, np.int32))
        return _with_none(scored.logprobs)

    def _keys(self, seed: int | None, number: int, count: int) -> jax.Array:
        """One key a sample: of the seed that was asked for, or of the session's and the request's number."""
        if seed is None:
            key = jax.random.fold_in(jax.random.key(self._session.seed), number)
        else:
            key = jax.random.key(seed)
        return jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(count))


def _require(kind: type, **values: object) -> None:
    """Refuse arguments of another type at once."""
    for name, value in values.items():
        if not isinstance(value, kind):
            raise TypeError(f"{name}: expected {kind.__name__}, got {type(value).__name__}")


def _with_none(logprobs: Any) -> list[float | None]:
    """Log probabilities with None for the first token."""
    return [None, *logprobs[1:].tolist()]


def _pairs(tokens: Any, logprobs: Any) -> list[list[tuple[int, float]] | None]:
    """The likeliest tokens at each place as pairs, None at the first."""
    pairs = [
        list(zip(*row, strict=True)) for row in zip(tokens.tolist(), logprobs.tolist(), strict=True)
    ]
    return [None, *pairs[1:]]
