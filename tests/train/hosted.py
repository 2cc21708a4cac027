"""Hosted episodes whose replies are given as texts, so that no model is needed."""

import asyncio
from typing import Any

import numpy as np
from tokenizers import AddedToken

from mintjax.renderers import get_renderer
from mintjax.renderers.tokenizer import adapt
from mintjax.train.episode_rules import EpisodeRules
from mintjax.train.hosted_episode import HostedEpisode
from mintjax.train.recognition import Maker
from mintjax.train.sampler import Reply
from mintjax.types import Episode
from tests.tiny import tiny_tokenizer

STOP = "<|im_end|>"
RULES = EpisodeRules(max_tokens=1000, max_turns=8)


def calling_tokenizer():
    """The tiny vocabulary with the control tokens of tool calls."""
    tokenizer = tiny_tokenizer()
    names = ["<tool_call>", "</tool_call>"]
    tokenizer.add_special_tokens(
        [AddedToken(name, special=True, normalized=False) for name in names]
    )
    return tokenizer


def tool_call(name: str, arguments: str) -> str:
    """A call as Qwen2.5 writes it."""
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def reply(text: str) -> Reply:
    """A sample of a text; one without the stop at its end was cut."""
    ids = np.array(calling_tokenizer().encode(text, add_special_tokens=False).ids, np.int32)
    return Reply(
        ids, np.full(len(ids), -1, np.float32), "stop" if text.endswith(STOP) else "length"
    )


def play(make: Any, replies: list[str], task: Any = None, rules: EpisodeRules = RULES) -> Episode:
    """One episode in which the policy says the replies, as far as it is asked."""
    tokenizer = calling_tokenizer()
    renderer = get_renderer("qwen2_5", adapt(tokenizer))

    async def run() -> Episode:
        (session,) = (make if isinstance(make, Maker) else Maker(make)).sessions()
        episode = HostedEpisode(session, task, 0, 0, rules)
        await episode.open(seed=0)
        for text in replies:
            news = episode.render(renderer)
            if news is None:
                break
            await episode.answer(news, reply(text), renderer, 1.0)
        episode.render(renderer)
        await episode.close()
        return episode.record(version=0)

    return asyncio.run(run())


def heard(episode: Episode) -> list[list[dict[str, Any]]]:
    """What each turn put before the policy."""
    return [list(turn.messages[:-1]) for turn in episode.turns]  # type: ignore
