"""Rendering: one more turn after a short and a long conversation, and a whole conversation, beside two other packages.

The other packages' rows are printed where they are installed, see `tests/peers.py`.
"""

from random import Random

from mintjax.bench.clock import interleaved
from mintjax.bench.rows import speed_up, time_ratio
from mintjax.renderers import Rendered, Renderer, get_renderer
from tests import peers
from tests.assets import vocabulary

NEWS = [{"role": "user", "content": "And what of the other one? Give the number alone."}]
SHORT, LONG = 1_000, 100_000
REPLY = 500
REPEATS = 20
WORDS = [
    "the",
    "of",
    "a",
    "to",
    "and",
    "in",
    "is",
    "it",
    "you",
    "that",
    "he",
    "was",
    "for",
    "on",
    "are",
    "with",
    "as",
    "I",
    "his",
    "they",
    "be",
    "at",
]


def grown(renderer: Renderer, tokens: int) -> Rendered:
    """A conversation of at least so many tokens, whose last reply has been sampled."""
    random, stop = Random(tokens), renderer.stop_tokens()[0]
    talk = None
    while talk is None or talk.start + len(talk) < tokens:
        reply = [*(random.randrange(1_000, 50_000) for _ in range(REPLY)), stop]
        talk = renderer.render(NEWS, extend=talk).with_sampled(reply)
    return talk


def conversation(turns: int) -> list[dict[str, str]]:
    """A conversation of short messages that awaits a reply."""
    random = Random(turns)
    said = [" ".join(random.choices(WORDS, k=60)) for _ in range(2 * turns + 1)]
    return [
        {"role": ("user", "assistant")[number % 2], "content": text}
        for number, text in enumerate(said)
    ]


def repeated(function, *arguments, **options):
    """A function that calls another a few times, and gives nothing back."""

    def run() -> None:
        for _ in range(REPEATS):
            function(*arguments, **options)

    return run


def turn_after_a_long_conversation(renderer: Renderer, talks: dict[int, Rendered]) -> None:
    """One more turn: long over short."""
    long, short = (
        repeated(renderer.render, NEWS, extend=talks[tokens]) for tokens in (LONG, SHORT)
    )
    times = interleaved(long, short, runs=15)
    figures = time_ratio(*times, prior_tokens=[LONG, SHORT], repeats=REPEATS)
    print(figures.row("renderers_turn").as_json())


def turn_beside_a_bridge(renderer: Renderer, talk: Rendered) -> None:
    """One more turn after a long conversation: the bridge of `renderers` over ours."""
    assert talk.before is not None
    prompt, reply = list(talk.before.whole()), list(talk)
    package = peers.peer_renderers()
    config = package.Qwen3RendererConfig(thinking_retention="all")
    bridge = package.create_renderer(peers.tokenizer("qwen3"), config).bridge_to_next_turn
    theirs = bridge(prompt, reply, NEWS).token_ids
    assert list(theirs) == [*prompt, *reply, *renderer.render(NEWS, extend=talk)]
    times = interleaved(
        repeated(renderer.render, NEWS, extend=talk),
        repeated(bridge, prompt, reply, NEWS),
        runs=15,
    )
    figures = speed_up(*times, peer="renderers 0.1.12", prior_tokens=LONG, repeats=REPEATS)
    print(figures.row("renderers_bridge").as_json())


def whole_conversation(renderer: Renderer, peer: str, write) -> None:
    """A whole conversation: a peer over ours."""
    messages = conversation(turns=20)
    assert list(write(messages)) == list(renderer.render(messages))
    times = interleaved(repeated(renderer.render, messages), repeated(write, messages), runs=9)
    tokens = len(renderer.render(messages))
    figures = speed_up(*times, peer=peer, tokens=tokens, repeats=REPEATS)
    print(figures.row("renderers_whole").as_json())


def main() -> None:
    """Measures Qwen3's formats."""
    instruct = get_renderer("qwen3_instruct", vocabulary("qwen3"))
    thinking = get_renderer("qwen3", vocabulary("qwen3"))
    turn_after_a_long_conversation(
        instruct, {tokens: grown(instruct, tokens) for tokens in (SHORT, LONG)}
    )
    if peers.installed("renderers"):
        turn_beside_a_bridge(thinking, grown(thinking, LONG))
        whole_conversation(thinking, "renderers 0.1.12", peers.write_with_renderers("qwen3"))
    if peers.installed("tinker-cookbook"):
        write = peers.write_with_tinker("qwen3_instruct")
        whole_conversation(instruct, "tinker-cookbook 0.6.1", write)


if __name__ == "__main__":
    main()
