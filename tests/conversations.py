"""Random conversations that hold no control token, and hand-picked ones."""

import json
from random import Random
from typing import Any

Messages = list[dict[str, Any]]

# Half control tokens, merges over newlines, decomposed letters, long scripts, bytes at the edges.
FRAGMENTS = (
    "", " ", "  ", "\n", "\n\n", "\r\n", "\t", "…", "hi", " the answer", "Zürich", "e\u0301", "ﬁ",
    "👩‍👩‍👧‍👦", "🇨🇭", "日本語の文", "שלום", "a\u0300\u0316", "\u200b", "\x00", "\x7f", "12345678", "3.14",
    "<|im_", "|im_end|>", "<|", "|>", "<tool", "call>", "</", "<thin", ">", '{"a": 1}', "\\n", '"',
    "```py\nx = 1\n```", "https://a.b/c?d=e&f", "user", "\nassistant\n", "system:", "\n ", " \n", ".\n\n",
    "don't", "    return x", "½", "\u2028", "A" * 50, "!?!?", "-" * 20,
)  # fmt: skip


def text(random: Random) -> str:
    """A few fragments in a row; at times none."""
    return "".join(random.choices(FRAGMENTS, k=random.randrange(6)))


def arguments(random: Random) -> dict[str, Any]:
    """Arguments of a tool call, keys in no order."""
    return {
        "query": text(random),
        "limit": random.randrange(100),
        "exact": random.random() < 0.5,
        "below": [1.5, None, {"é": text(random)}],
    }


def tool(random: Random) -> dict[str, Any]:
    """The schema of a tool."""
    return {
        "type": "function",
        "function": {
            "name": random.choice(["search", "läs", "f"]),
            "description": text(random),
            "parameters": {"type": "object", "properties": {"query": {"type": "string"}}},
        },
    }


def conversation(random: Random, *, calls: bool) -> Messages:
    """System prompts in any place, replies in a row, tool results alone and in runs (with `calls`)."""
    messages: Messages = []
    if random.random() < 0.5:
        messages.append({"role": "system", "content": text(random)})
    for _ in range(random.randrange(1, 6)):
        kind = random.choice(["user", "user", "assistant", "system", "call" if calls else "user"])
        if kind != "call":
            messages.append({"role": kind, "content": text(random)})
            continue
        made = random.randrange(1, 4)
        written = [arguments(random) for _ in range(made)]
        messages.append(
            {
                "role": "assistant",
                "content": random.choice([text(random), ""]),
                "tool_calls": [
                    {
                        "type": "function",
                        "function": {
                            "name": "search",
                            "arguments": random.choice([json.dumps(values), values]),
                        },
                    }
                    for values in written
                ],
            }
        )
        messages += [{"role": "tool", "content": text(random)} for _ in range(made)]
    return messages
