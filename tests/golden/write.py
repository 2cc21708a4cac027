"""Writes the golden ids: what the official templates give for hand-picked conversations.

`python -m tests.golden.write`, from the repository root; needs the templates and vocabularies.
"""

import json
from pathlib import Path
from typing import Any

from tests.families import FAMILIES
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


def cases(renderer: str) -> list[dict[str, Any]]:
    found = [(name, messages, None) for name, messages in PLAIN.items()]
    family = FAMILIES[renderer]
    if family.calls:
        found += [(name, messages, None) for name, messages in CALLS.items()]
    if family.tools:
        found += [
            ("tool schemas", [HI], [TOOL, TOOL]),
            ("tool schemas and system", [said("system", "S"), HI], [TOOL]),
            ("tool schemas and empty system", [said("system", ""), HI], [TOOL]),
            ("tool schemas and a cycle", CALLS["two calls"], [TOOL]),
        ]
    return [
        {
            "name": name,
            "messages": messages,
            "tools": tools,
            "ids": official_ids(renderer, messages, tools),
        }
        for name, messages, tools in found
    ]


if __name__ == "__main__":
    for renderer, family in FAMILIES.items():
        if family.template is None:
            continue
        rows = ",\n".join(json.dumps(case, ensure_ascii=False) for case in cases(renderer))
        path = Path(__file__).parent / f"{renderer}.json"
        path.write_text(f"[\n{rows}\n]\n")
