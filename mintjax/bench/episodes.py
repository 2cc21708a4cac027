"""Episodes of a pure environment: inside one jitted program, against the host's loop over jitted turns."""

from dataclasses import dataclass

from mintjax.bench.clock import interleaved
from mintjax.bench.models import SMALL, character_tokenizer, random_policy
from mintjax.bench.rows import Benchmark, Figures, speed_up
from mintjax.models.config import ModelConfig
from mintjax.renderers import get_renderer
from mintjax.train.environments import GuessTheNumberConfig
from mintjax.train.jit_episodes import episodes
from mintjax.train.rollout import Rollout, RolloutSettings, rollout


@dataclass(frozen=True)
class EpisodesSize:
    """A model, and how many groups of how many episodes of guess-the-number, of how many turns and tokens a reply."""

    model: ModelConfig
    groups: int = 4
    group: int = 4
    turns: int = 8
    max_tokens: int = 16


def jitted_vs_hosted(size: EpisodesSize, runs: int) -> Figures:
    """The host's loop, over the same episodes in one program: tokens a second, many times over."""
    policy, tokenizer = random_policy(size.model), character_tokenizer()
    renderer = get_renderer("chatml", tokenizer)
    config = GuessTheNumberConfig(turns=size.turns)
    environment = config.pure(renderer)
    tasks = config.tasks(0, size.groups, 0)
    settings = RolloutSettings(
        group_size=size.group, max_turns=size.turns, max_tokens=size.max_tokens, groups=size.groups,
        capacity=4 * size.turns * (size.max_tokens + 64),
    )  # fmt: skip
    played: dict[str, Rollout] = {}

    def jitted() -> None:
        played["jit"] = episodes(policy, renderer, environment, tasks, settings, seed=0)

    def hosted() -> None:
        played["host"] = rollout(policy, renderer, tokenizer, config.make, tasks, settings, seed=0)

    ours, other = interleaved(jitted, hosted, runs=runs)
    alike = [
        a.tokens.tolist() == b.tokens.tolist()
        for a, b in zip(played["jit"].episodes, played["host"].episodes, strict=True)
    ]
    sampled = {where: one.stats.sampled_tokens for where, one in played.items()}
    return speed_up(
        ours,
        other,
        ours_tokens_a_second=sampled["jit"] / ours.seconds,
        other_tokens_a_second=sampled["host"] / other.seconds,
        equal_episodes=sum(alike) / len(alike),
    )


BENCHMARKS = (
    Benchmark(
        "jitted_vs_hosted_episodes",
        "4 groups of 4 episodes of 8 turns, the host's loop / one jitted program: time",
        jitted_vs_hosted,
        EpisodesSize(SMALL),
    ),
)
