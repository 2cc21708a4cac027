"""The environments that ship with mintjax; importing this registers their configurations."""

from mintjax.train.environments.count_down import CountDown, CountDownConfig
from mintjax.train.environments.grid_walk import GridWalk, GridWalkConfig
from mintjax.train.environments.guess_the_number import GuessTheNumber, GuessTheNumberConfig
from mintjax.train.environments.nim import Nim, NimConfig

__all__ = [
    "CountDown",
    "CountDownConfig",
    "GridWalk",
    "GridWalkConfig",
    "GuessTheNumber",
    "GuessTheNumberConfig",
    "Nim",
    "NimConfig",
]
