"""A tiny policy that speaks in short words: its next character depends on the last one, and on little else.

Replies of a random policy are noise, which no environment pays for. This one says "up", "down", "left", "right" and counts
of small numbers, and often something else.
"""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np

from mintjax.policy import Policy
from tests.tiny import CONFIG, tiny_policy, tiny_tokenizer

END = "<|im_end|>"
FOLLOWS = {
    "Ċ": "udlr123", "u": "p", "p": [END], "d": "o", "o": "w", "w": "n", "n": [END],
    "l": "e", "e": "f", "f": "t", "t": [END], "r": "i", "i": "g", "g": "h", "h": "t",
    "1": [END, "<|endoftext|>"], "2": [",", END], "3": [",", END], ",": "Ġ", "Ġ": "12", END: [],
    "<|endoftext|>": [],
}  # fmt: skip
WIDTH = 32
SHARE = 9.0  # how much louder the last character is than the layers
CERTAINTY = 1.2


def chain_parts() -> tuple[Policy, object]:
    """A policy of one layer that speaks so, and its tokenizer."""
    tokenizer = tiny_tokenizer()
    config = replace(CONFIG, vocab_size=tokenizer.get_vocab_size(), num_layers=1, hidden_size=WIDTH)
    policy = tiny_policy(config=config)
    places = {tokenizer.token_to_id(name): place for place, name in enumerate(FOLLOWS)}
    embed, head = (np.array(policy.base[name]) for name in ("embed", "unembed"))
    embed[:, : len(places)] = 0
    head *= 0.2
    for token, place in places.items():
        embed[token] = SHARE * (np.arange(WIDTH) == place)
    for name, following in FOLLOWS.items():
        for other in following:
            head[tokenizer.token_to_id(other), list(FOLLOWS).index(name)] += CERTAINTY
    base = policy.base | {"embed": jnp.asarray(embed), "unembed": jnp.asarray(head)}
    return policy.replace(base=base), tokenizer
