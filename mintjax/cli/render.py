"""``mintjax render``: show what a chat format makes of a conversation, token by token."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mintjax.renderers import Rendered, Renderer

# The model whose tokenizer is taken where none is named.
_MODELS = {
    "deepseek_r1": "deepseek-ai/DeepSeek-R1",
    "deepseek_v3_0324": "deepseek-ai/DeepSeek-V3-0324",
    "deepseekv3": "deepseek-ai/DeepSeek-V3.1",
    "deepseekv3_thinking": "deepseek-ai/DeepSeek-V3.1",
    "gemma3": "google/gemma-3-1b-it",
    "glm4_5": "zai-org/GLM-4.5-Air",
    "glm4_5_disable_thinking": "zai-org/GLM-4.5-Air",
    "gpt_oss_high_reasoning": "openai/gpt-oss-20b",
    "gpt_oss_low_reasoning": "openai/gpt-oss-20b",
    "gpt_oss_medium_reasoning": "openai/gpt-oss-20b",
    "llama3": "meta-llama/Meta-Llama-3-8B-Instruct",
    "llama3_1": "meta-llama/Llama-3.1-8B-Instruct",
    "llama3_2": "meta-llama/Llama-3.2-1B-Instruct",
    "qwen2_5": "Qwen/Qwen2.5-0.5B-Instruct",
    "qwen3": "Qwen/Qwen3-0.6B",
    "qwen3_disable_thinking": "Qwen/Qwen3-0.6B",
    "qwen3_instruct": "Qwen/Qwen3-4B-Instruct-2507",
    "qwen3_thinking": "Qwen/Qwen3-4B-Thinking-2507",
    "smollm2": "smollm2-135m-instruct",
}
_SHAPE = 'a list of messages, or {"messages": [...], "tools": [...]}'


def render(arguments: Sequence[str]) -> int:
    """Run ``mintjax render``.

    Args:
        arguments: the command line after ``render``.

    Returns:
        The exit status.

    Raises:
        ValueError: where the file holds no conversation, or no tokenizer is known.
        RenderError: where the format cannot write it.

    Example:
        >>> render(["conversation.json", "--renderer", "smollm2", "--html", "page.html"])
    """
    options = _parser().parse_args(arguments)
    messages, tools = read_conversation(options.conversation)
    renderer = _renderer(options)
    if options.train_on is None:
        shown = [renderer.render(messages, tools=tools, prefill=options.prefill)]
    elif options.prefill is not None:
        raise ValueError("--prefill: nothing is sampled with --train-on; leave one of them out")
    else:
        shown = renderer.supervised(messages, tools=tools, train_on=options.train_on)
    _show(renderer, shown, [message["role"] for message in messages], options)
    return 0


def read_conversation(path: Path) -> tuple[list[Any], list[Any] | None]:
    """The messages of a file, and the tools that they are given.

    Args:
        path: JSON, a list of messages or an object with ``messages`` and, perhaps, ``tools``.

    Raises:
        ValueError: saying what is wrong with the file, and what it should hold.

    Example:
        >>> read_conversation(Path("conversation.json"))
        ([{'role': 'user', 'content': 'hi'}], None)
    """
    try:
        given = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(
            f"{path}: {error.strerror}; name a JSON file that holds {_SHAPE}"
        ) from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: no JSON ({error}); write {_SHAPE} there") from None
    fields = given if isinstance(given, dict) else {"messages": given}
    unknown = sorted(fields.keys() - {"messages", "tools"})
    if unknown:
        raise ValueError(f"{path}: unknown key {unknown[0]!r}; expected {_SHAPE}")
    for name in ("messages", "tools"):
        if not isinstance(fields.get(name, []), list):
            kind = type(fields[name]).__name__
            raise ValueError(f"{path}: {name}: expected a list, got {kind}; write {_SHAPE} there")
    return fields.get("messages", []), fields.get("tools")


def _renderer(options: argparse.Namespace) -> "Renderer":
    """The renderer that the options name, bound to its tokenizer."""
    from mintjax.renderers import get_renderer

    unbound = get_renderer(options.renderer, history=options.history, date=options.date)
    source = options.tokenizer or _MODELS.get(options.renderer)
    if source is None:
        raise ValueError(
            f"--tokenizer: no model is known whose vocabulary {unbound.name!r} is written for; name a "
            "directory with tokenizer.json, or a hub id"
        )
    from mintjax import load_tokenizer

    return get_renderer(
        options.renderer, load_tokenizer(source), history=options.history, date=options.date
    )


def _show(
    renderer: "Renderer",
    shown: "list[Rendered]",
    speakers: list[str],
    options: argparse.Namespace,
) -> None:
    """Print the tokens, and write the page where one is asked for."""
    from rich.console import Console

    from mintjax.cli.token_page import to_page
    from mintjax.cli.token_text import legend, to_text
    from mintjax.cli.token_view import tokens_of

    assert renderer.tokenizer is not None  # _renderer bound it
    views = [tokens_of(one, renderer.tokenizer.decode) for one in shown]
    console = Console(highlight=False, soft_wrap=True)
    console.print(legend())
    for tokens in views:
        console.print()
        console.print(to_text(tokens, speakers), end="")
    if options.html is not None:
        title = f"{options.conversation.name}, {renderer.name}"
        options.html.write_text(to_page(views, speakers, title=title), encoding="utf-8")


def _parser() -> argparse.ArgumentParser:
    """Return the parser of the command's arguments."""
    from mintjax.renderers import TrainOnWhat

    parser = argparse.ArgumentParser(
        prog="mintjax render",
        description="Show every token of a conversation, in colour by who wrote it.",
        allow_abbrev=False,
    )
    parser.add_argument("conversation", type=Path, help=f"a JSON file: {_SHAPE}")
    parser.add_argument("--renderer", required=True, help="the chat format's name")
    parser.add_argument(
        "--tokenizer", help="a directory with tokenizer.json, or a hub id; by default the model's"
    )
    parser.add_argument("--html", type=Path, help="write a page there too, with each token's id")
    parser.add_argument("--history", default="template", help="template (default) or keep")
    parser.add_argument("--date", help="the day that the format writes into its prompt")
    parser.add_argument("--prefill", help="the first words of the reply")
    parser.add_argument(
        "--train-on",
        choices=[choice.value for choice in TrainOnWhat],
        help="render it to train on, and show the loss weights",
    )
    return parser
