"""Episodes made by hand, for the tests of what comes after sampling."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from mintjax.types import Episode, Turn


@pytest.fixture
def make_episode() -> Callable[..., Episode]:
    """An episode of given rewards; turn k has ``prompts[k]`` tokens put in and ``samples[k]`` sampled ones."""

    def make(
        rewards: Sequence[float | None],
        *,
        group: int = 0,
        member: int = 0,
        prompts: Sequence[int] | None = None,
        samples: Sequence[int] | None = None,
        decode_stops: Sequence[str] | None = None,
        stop_reason: str = "finished",
        temperature: float = 1.0,
        metrics: dict[str, float] | None = None,
        anchors: Sequence[str | None] | None = None,
    ) -> Episode:
        random = np.random.default_rng([group, member])
        turns = []
        for k, reward in enumerate(rewards):
            prompt = prompts[k] if prompts else 2
            sample = samples[k] if samples else 3
            turns.append(
                Turn(
                    tokens=random.integers(1, 100, prompt + sample, np.int32),
                    sampled=np.arange(prompt + sample) >= prompt,
                    logprobs=np.concatenate(
                        [np.full(prompt, np.nan), random.uniform(-5, 0, sample)]
                    ).astype(np.float32),
                    temperature=temperature,
                    messages=(),
                    reward=reward,
                    decode_stop=decode_stops[k] if decode_stops else "stop",  # type: ignore
                    metrics=metrics or {},
                    anchor=anchors[k] if anchors else None,
                )
            )
        error = "ValueError: broken" if stop_reason == "error" else None
        return Episode(tuple(turns), group, member, stop_reason, error, 0)

    return make
