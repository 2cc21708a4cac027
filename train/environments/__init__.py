"""The environments that ship with mintjax; importing this registers their configurations."""

from mintjax.train.environments.count_down import CountDown, CountDownConfig
from mintjax.train.environments.nim import Nim, NimConfig

__all__ = ["CountDown", "CountDownConfig", "Nim", "NimConfig"]
