"""How the clients sample, and what they return."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class SamplingParams:
    """How to sample.

    Attributes:
        max_tokens: most tokens to sample; None is what the model's context has room for.
        seed: equal seeds give equal samples of equal prompts; None takes the client's own next one.
        stop: one text, texts, or token ids that end a sample once they are in it. None is the tokens that end a text
            in this vocabulary; an empty list is nothing.
        temperature: logits are divided by it; 0 takes the likeliest token.
        top_k: sample among that many likeliest tokens; -1 is off.
        top_p: sample among the likeliest tokens that hold this probability; 1 is off.
    """

    max_tokens: int | None = None
    seed: int | None = None
    stop: str | Sequence[str] | Sequence[int] | None = None
    temperature: float = 1.0
    top_k: int = -1
    top_p: float = 1.0


@dataclass(frozen=True)
class SampledSequence:
    """One sample.

    Attributes:
        stop_reason: ``"stop"`` where a stop ended it, ``"length"`` where ``max_tokens`` did.
        tokens: the ids, the stop included.
        logprobs: of each id, under the temperature-scaled distribution before any cut by top-k or top-p.
    """

    stop_reason: Literal["stop", "length"]
    tokens: list[int]
    logprobs: list[float] | None = None


@dataclass(frozen=True)
class SampleResponse:
    """All samples of one prompt.

    Attributes:
        sequences: one a sample.
        prompt_logprobs: of each prompt token at temperature 1, None for the first; None where not asked for.
        topk_prompt_logprobs: the likeliest (id, log probability) pairs at each prompt token, likeliest first.
        prompt_cache_hit_tokens: prompt tokens that were in a live cache already.
    """

    sequences: list[SampledSequence]
    prompt_logprobs: list[float | None] | None = None
    topk_prompt_logprobs: list[list[tuple[int, float]] | None] | None = None
    prompt_cache_hit_tokens: int = 0


@dataclass(frozen=True)
class SamplingStats:
    """What a sampling client has done so far, in tokens where nothing else is said.

    Attributes:
        prefilled: prompt tokens that were run.
        reused: prompt tokens that a live cache held already.
        sampled: tokens that were sampled.
        diverged: prompts that follow a cached conversation into a sample and then leave it: decoding the sample and
            encoding it again did not give its ids back.
        evicted: conversations dropped for want of room.
        entries: conversations held now.
        cache_bytes: what they take.
        cache_bytes_limit: what they may take.
    """

    prefilled: int
    reused: int
    sampled: int
    diverged: int
    evicted: int
    entries: int
    cache_bytes: int
    cache_bytes_limit: int
