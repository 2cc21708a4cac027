"""Random conversations that hold no control token, and hand-picked ones."""

import json
from random import Random
from typing import Any

from tests.families import Family

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


def conversation(random: Random, family: Family) -> Messages:
    """A conversation of what the family can write.

    System prompts in any place, replies in a row, calls alone and in parallel with their results,
    reasoning.
    """
    messages: Messages = []
    if random.random() < 0.5:
        messages.append({"role": "system", "content": text(random)})
    kinds = ["user", "user", "assistant"]
    kinds += ["call"] * bool(family.calls) + ["system"] * family.late_system
    for turn in range(random.randrange(1, 6)):
        kind = ("user", "assistant")[turn % 2] if family.alternate else random.choice(kinds)
        if family.user_first and not turn:
            kind = "user"
        if kind in ("user", "system"):
            messages.append({"role": kind, "content": text(random)})
            continue
        reply: dict[str, Any] = {"role": "assistant", "content": text(random)}
        if family.reasoning and random.random() < 0.5:
            reply["reasoning_content"] = text(random)
        messages.append(reply)
        if kind == "call":
            made = random.randrange(1, 4) if family.parallel else 1
            reply["content"] = random.choice([reply["content"] * family.call_text, ""])
            if reply.get("reasoning_content") and not family.preamble:
                reply["content"] = ""
            reply["tool_calls"] = [_call(random, family, turn, n) for n in range(made)]
            messages += [
                {
                    "role": "tool",
                    "content": text(random),
                    "tool_call_id": call["id"],
                    "name": call["function"]["name"],
                }
                for call in reply["tool_calls"]
            ]
    return messages


def _call(random: Random, family: Family, turn: int, number: int) -> dict[str, Any]:
    """A call in a form that the family's template takes."""
    values = arguments(random)
    written = json.dumps(values, ensure_ascii=random.random() < 0.5)
    forms = {"text": [written], "dict": [values], "both": [written, values]}
    name = random.choice(["search", "läs"])
    function = {"name": name, "arguments": random.choice(forms[family.calls])}
    return {"type": "function", "id": f"functions.{name}:{turn + number}", "function": function}
