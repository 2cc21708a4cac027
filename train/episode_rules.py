"""When an episode ends that its environment does not end, and what a reply comes to that cannot be read."""

from dataclasses import dataclass
from typing import Literal

from mintjax.train.sampler import Sampling


@dataclass(frozen=True, kw_only=True)
class EpisodeRules(Sampling):
    """How the replies of an episode are sampled, and what it may take.

    A limit that is reached ends the episode with the limit's own name as its stop reason. Those of time go by the clock
    on the wall, so what they end is not the same in another run.

    Attributes:
        max_turns: most turns of an episode.
        step_timeout: seconds that one call of the environment may take; None is no limit.
        episode_timeout: seconds from the call of ``reset`` on; None is no limit.
        parse_errors: what comes of a reply that holds a tool call that cannot be read. ``"pass"``: the environment gets the
            reply, with the error in ``parse_error``. ``"observe"``: the policy is told the error, and the environment
            nothing. ``"end"``: the episode ends, with the stop reason ``"parse_error"``.
        parse_error_reward: reward of such a turn where the environment gets no say in it; None is no reward.
    """

    max_turns: int
    step_timeout: float | None = 600.0
    episode_timeout: float | None = None
    parse_errors: Literal["pass", "observe", "end"] = "pass"
    parse_error_reward: float | None = None
