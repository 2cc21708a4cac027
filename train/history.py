"""Recognising a conversation that is said again, as it was or changed."""

from collections.abc import Sequence
from typing import Any

from mintjax.types import Message


def repeated(
    messages: Sequence[Message],
    given: Sequence[Any],
    said: Sequence[Message],
    said_as: Sequence[Any],
    opening: int,
) -> str:
    """Why messages that should be new are the conversation so far; empty where they are not.

    They are it where they hold an assistant message, since only the policy speaks as the assistant; where they begin with
    all that opened the conversation; and where there are more of them than the environment has said in all, in the same
    roles, and some of those stand in their places, as equal messages or as the very objects that were given before. One
    message on its own may always say again what was said.

    Args:
        messages: what a step returns.
        given: the same, as the environment gave it: the objects themselves.
        said: what the environment has said before.
        said_as: the same, as the environment gave it.
        opening: how many of those opened the conversation.

    Returns:
        What gives it away, and the first message that is not as it was.

    Example:
        >>> repeated([say("B"), say("b"), say("c")], [{}, {}, {}], [say("a"), say("b")], [{}, {}], 2)
        "it goes through all messages again, with message 0 changed from 'a' to 'B'"
    """
    if any(message["role"] == "assistant" for message in messages):
        return "it has an assistant message"
    before = len(said)
    if 0 < opening < len(messages) and list(messages[:opening]) == list(said[:opening]):
        return "it starts with the opening messages"
    if len(messages) <= before:
        return ""
    places = range(before)
    if any(messages[i]["role"] != said[i]["role"] for i in places):
        return ""
    if not any(messages[i] == said[i] or given[i] is said_as[i] for i in places):
        return ""
    changed = [i for i in places if messages[i] != said[i]]
    if not changed:
        return "it goes through all messages again"
    old, new = (side[changed[0]].get("content") for side in (said, messages))
    return f"it goes through all messages again, with message {changed[0]} changed from {old!r} to {new!r}"
