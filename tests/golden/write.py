"""Writes the golden ids: what the official templates give for hand-picked conversations.

`python -m tests.golden.write [RENDERER ...]`, from the repository root; needs the templates and
vocabularies.
"""

import json
import sys
from pathlib import Path
from typing import Any

from jinja2 import TemplateError

from tests.families import FAMILIES, Family
from tests.official import official_ids


def said(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}


def called(content: str, *arguments: str | dict[str, Any]) -> dict[str, Any]:
    calls = [{"type": "function", "function": {"name": "f", "arguments": a}} for a in arguments]
    return said("assistant", content) | {"tool_calls": calls}


HI = said("user", "hi")
TOOL = {
    "type": "function",
    "function": {
        "name": "f",
        "description": "Dé",
        "parameters": {"type": "object", "b": 1, "a": 2},
    },
}
RICH = {
    "type": "function",
    "function": {
        "name": "suche",
        "description": "Zwei\nZeilen",
        "parameters": {
            "type": "object",
            "properties": {
                "wo": {"type": "string", "description": "Ört", "enum": ["a", "b"], "default": "a"},
                "n": {"type": "integer", "default": 3},
                "mehr": {"type": "array", "items": {"type": "string"}, "nullable": True},
                "in": {
                    "type": "object",
                    "properties": {"x": {"type": "number"}, "y": {"type": "boolean"}},
                    "required": ["x"],
                },
                "eins": {"oneOf": [{"type": "string"}, {"type": "null", "description": "n"}]},
                "alt": {"type": ["string", "null"]},
            },
            "required": ["wo", "n"],
        },
    },
}
PLAIN = {
    "user": [HI],
    "system and user": [said("system", "S"), HI],
    "empty system": [said("system", ""), HI],
    "empty user": [said("user", "")],
    "four turns": [HI, said("assistant", "b"), said("user", "c"), said("assistant", "d")],
    "leading newline": [said("user", "\nx")],
    "trailing newline": [said("user", "x\n")],
    "reply with leading newline": [HI, said("assistant", "\nyo"), HI],
    "reply with spaces": [HI, said("assistant", " yo "), HI],
    "ellipsis": [said("user", "…")],
    "two users": [said("user", "a"), said("user", "b")],
    "two replies": [HI, said("assistant", "b"), said("assistant", "c")],
    "reply first": [said("assistant", "x"), said("user", "y")],
    "late system": [HI, said("system", "S"), HI],
    "empty reply": [HI, said("assistant", ""), HI],
    "emoji": [said("user", "👩‍👩‍👧‍👦"), said("assistant", "🇨🇭"), said("user", "日本語")],
    "decomposed letters": [said("user", "e\u0301a\u0300\u0316")],
    "carriage return": [said("user", "a\r\nb"), said("assistant", "\r\n"), HI],
    "only a system": [said("system", "S")],
}
CALLS = {
    "call": [
        HI,
        called("", {"x": "é", "b": 1, "a": 2}),
        said("tool", "ok"),
        said("assistant", "z"),
        HI,
    ],
    "call as text": [HI, called("", '{"x":1.0}'), said("tool", "ok")],
    "call after text": [HI, called("Let me see.", {"x": 1}), said("tool", "\nok\n")],
    "call after a newline": [HI, called("\n", {"x": 1}), said("tool", "")],
    "two calls": [HI, called("", {"x": 1}, {"x": 2}), said("tool", "1"), said("tool", "2")],
    "two cycles": [HI, called("", {}), said("tool", "1"), called("", {}), said("tool", "2")],
    "tool first": [said("tool", "x")],
    "user after tool": [HI, called("", {}), said("tool", "1"), HI],
    "ends with a call": [HI, called("c", {})],
}


def thought(reasoning: str, content: str, *arguments: dict[str, Any]) -> dict[str, Any]:
    reply = called(content, *arguments) if arguments else said("assistant", content)
    return reply | {"reasoning_content": reasoning}


REASONING = {
    "reasoning": [HI, thought("R", "A")],
    "reasoning in history": [HI, thought("R", "A"), HI],
    "reasoning with newlines": [HI, thought("\n\nR \n", "\n A\n")],
    "empty reasoning": [HI, thought("", "A")],
    "two replies with reasoning": [HI, thought("R", "A"), thought("S", "B")],
    "reasoning without a user": [said("system", "S"), thought("R", "A")],
}
REASONING_CALLS = {
    "reasoning and a call": [HI, thought("R", "", {"x": 1}), said("tool", "1")],
    "reasoning, a newline and a call": [HI, thought("R", "\n", {"x": 1}), said("tool", "1")],
    "reasoning in a cycle": [HI, thought("R", "", {}), said("tool", "1"), thought("S", "A")],
    "no reasoning in a cycle": [HI, called("", {}), said("tool", "1"), thought("S", "A")],
    "user after a cycle": [HI, thought("R", "", {}), said("tool", "1"), thought("S", "A"), HI],
}


def cases(renderer: str) -> list[dict[str, Any]]:
    family = FAMILIES[renderer]
    found = [(name, messages, None) for name, messages in PLAIN.items()]
    if family.calls:
        found += [(name, messages, None) for name, messages in CALLS.items()]
    if family.reasoning:
        found += [(name, messages, None) for name, messages in REASONING.items()]
    if family.reasoning and family.calls:
        found += [(name, messages, None) for name, messages in REASONING_CALLS.items()]
    if family.tools:
        found += [
            ("tool schemas", [HI], [TOOL, TOOL]),
            ("tool schemas and system", [said("system", "S"), HI], [TOOL]),
            ("tool schemas and empty system", [said("system", ""), HI], [TOOL]),
            ("tool schemas and a cycle", CALLS["two calls"], [TOOL]),
            ("tool schemas and one call", CALLS["call"], [TOOL]),
            ("tool schemas of many types", [HI], [RICH]),
        ]
    rows: list[dict[str, Any]] = []
    for name, messages, tools in found:
        messages = fitted(family, messages)
        if not writes(family, messages):
            continue
        try:
            ids = official_ids(renderer, messages, tools)
        except TemplateError:  # the template refuses the conversation
            continue
        rows.append({"name": name, "messages": messages, "tools": tools, "ids": ids})
    return rows


def fitted(family: Family, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A conversation with arguments as text and with ids of calls, where the template needs them."""
    found: list[dict[str, Any]] = []
    made: list[str] = []
    answered = 0
    for message in messages:
        calls = []
        for call in message.get("tool_calls", []):
            function = call["function"]
            if family.calls == "text" and isinstance(function["arguments"], dict):
                text = json.dumps(function["arguments"], ensure_ascii=False)
                call = call | {"function": function | {"arguments": text}}
            if family.ids:
                made.append(f"functions.{function['name']}:{len(made)}")
                call = call | {"id": made[-1]}
            calls.append(call)
        if message["role"] == "tool" and family.ids:
            message = message | {"tool_call_id": [*made, "functions.f:0"][answered]}
            answered += 1
        found.append(message | {"tool_calls": calls} if calls else message)
    return found


def writes(family: Family, messages: list[dict[str, Any]]) -> bool:
    """Whether the family's template writes a conversation as it was said."""
    roles = [message["role"] for message in messages]
    if family.alternate:
        turns = roles[roles[0] == "system" :]
        if turns != [("user", "assistant")[n % 2] for n in range(len(turns))] or not turns:
            return False
    if "system" in roles[1:] and not family.late_system:
        return False
    for message in messages:
        calls = message.get("tool_calls", [])
        if len(calls) > 1 and not family.parallel:
            return False
        if calls and message["content"] and not family.call_text:
            return False
        if calls and message["content"] and "reasoning_content" in message and not family.preamble:
            return False
        form = {str: "text", dict: "dict"}
        forms = {form[type(call["function"]["arguments"])] for call in calls}
        if family.calls != "both" and not forms <= {family.calls}:
            return False
    return True


if __name__ == "__main__":
    for renderer in sys.argv[1:] or FAMILIES:
        if FAMILIES[renderer].template is None:
            continue
        rows = ",\n".join(json.dumps(case, ensure_ascii=False) for case in cases(renderer))
        path = Path(__file__).parent / f"{renderer}.json"
        path.write_text(f"[\n{rows}\n]\n")
