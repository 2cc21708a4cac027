"""The environments that ship with mintjax; importing this registers their configurations."""

from mintjax.train.environments.count_down import CountDown, CountDownConfig

__all__ = ["CountDown", "CountDownConfig"]
