"""How a batch of episodes is sampled, and what that returns."""

from dataclasses import dataclass
from typing import NamedTuple

from mintjax.cache import State
from mintjax.train.config_rollout import prefixes_of
from mintjax.train.episode_rules import EpisodeRules
from mintjax.train.rollout_stats import RolloutStats
from mintjax.types import Episode


@dataclass(frozen=True, kw_only=True)
class RolloutSettings(EpisodeRules):
    """How episodes are sampled.

    Attributes:
        group_size: episodes started from each task; in a game, for each seat.
        groups: how many tasks there are at most. Fewer are filled up with rows that do nothing, so that they need no
            program of their own; 0 is as many as there are.
        rows: 0 samples all episodes side by side. Otherwise so many, and a row whose episode ends takes the next one.
        slots: caches of finished episodes that are kept outside of the rows until their group is complete, where something
            is done with a group's caches; 0 is as many as there are rows.
    """

    group_size: int
    groups: int = 0
    rows: int = 0
    slots: int = 0

    @property
    def kept_slots(self) -> int:
        """Slots that there are."""
        return self.slots or self.rows

    @property
    def prefixes(self) -> int:
        """Prompts whose caches are held."""
        return prefixes_of(self.rows, self.group_size)


class Rollout(NamedTuple):
    """What a batch of conversations was, cost and left.

    Attributes:
        episodes: by group, seat and member.
        stats: what they cost.
        state: the cache, a row an episode, of exactly its tokens, and empty rows after them where there were fewer tasks
            than ``settings.groups``; None where nothing was fed, and where rows were used again. What a group's episodes
            begin with is in its prefix.
    """

    episodes: list[Episode]
    stats: RolloutStats
    state: State | None
