"""Two other packages beside these renderers, on random conversations, where they are installed.

Wherever they write other ids, a fault of theirs on the list below is the cause: without its trigger, the
same conversation comes out alike. That ours are right there is what the official templates say, see
`test_official_templates.py`. Besides the list, both packages encode a caller's words apart from the
header before them, so that newlines where the two meet give other ids for the same text.

The extra `peers` installs the one; `pip install tinker-cookbook==0.6.1` the other, where all that it needs
is published for the machine.
"""

import json
import re
from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

import pytest

from tests import peers
from tests.assets import has_template
from tests.conversations import conversation, tool
from tests.families import FAMILIES
from tests.official import official_ids
from tests.renderers.conftest import speaker
from tests.renderers.replies import HI, call, result, said

pytestmark = pytest.mark.filterwarnings("ignore:use_system_prompt")
CONVERSATIONS = 60
Messages = list[dict[str, Any]]


def answered(messages: Messages) -> Messages:
    """Every run of tool results is followed by a reply."""
    found: Messages = []
    for message, following in zip(messages, [*messages[1:], None], strict=True):
        found.append(message)
        if message["role"] == "tool" and (
            following is None or following["role"] not in ("tool", "assistant")
        ):
            found.append(said("done"))
    return found


def single(messages: Messages) -> Messages:
    """Replies make one call at most, which one result answers."""
    found: Messages = []
    for message in messages:
        if message["role"] == "tool" and found[-1]["role"] == "tool":
            continue
        if message.get("tool_calls"):
            message = message | {"tool_calls": message["tool_calls"][:1]}
        found.append(message)
    return found


def without_calls(messages: Messages) -> Messages:
    """Nobody calls a tool."""
    kept = [message for message in messages if message["role"] != "tool"]
    return [{k: v for k, v in message.items() if k != "tool_calls"} for message in kept]


def without_reasoning(messages: Messages) -> Messages:
    """Nobody reasons."""
    return [{k: v for k, v in one.items() if k != "reasoning_content"} for one in messages]


def without_replies(messages: Messages) -> Messages:
    """Nobody replies."""
    return [one for one in messages if one["role"] not in ("assistant", "tool")] or [HI]


def without_earlier_replies(messages: Messages) -> Messages:
    """Only the last message may be a reply."""
    return [*without_replies(messages[:-1]), *without_calls(messages[-1:])]


def asked(messages: Messages) -> Messages:
    """Every reply answers a user, or a tool."""
    found: Messages = []
    for message in messages:
        if message["role"] == "assistant" and (
            not found or found[-1]["role"] not in ("user", "tool")
        ):
            found.append(HI)
        found.append(message)
    return found


def system_first(messages: Messages) -> Messages:
    """Only the first message is the system's."""
    return [one for place, one in enumerate(messages) if not place or one["role"] != "system"] or [
        HI
    ]


def without_system(messages: Messages) -> Messages:
    """There is no system message."""
    return [one for one in messages if one["role"] != "system"] or [HI]


def going_on(messages: Messages) -> Messages:
    """The last message is no reply."""
    return [*messages, HI] if messages[-1]["role"] == "assistant" else messages


def called_once(messages: Messages) -> Messages:
    """Only one reply calls tools."""
    first = next((n for n, one in enumerate(messages) if one.get("tool_calls")), len(messages))
    upto = next(
        (n for n, one in enumerate(messages) if n > first and one["role"] != "tool"), len(messages)
    )
    return [*messages[:upto], *without_calls(messages[upto:])]


def worded(*roles: str) -> Callable[[Messages], Messages]:
    """No message of these roles is empty."""
    return lambda messages: [
        one | {"content": one["content"] or "x"} if one["role"] in roles else one
        for one in messages
    ]


def trimmed(messages: Messages) -> Messages:
    """No text begins or ends with blanks."""
    return [message | {"content": message["content"].strip() or "x"} for message in messages]


def heard(messages: Messages) -> Messages:
    """A user follows every reply but the last message."""
    found: Messages = []
    for message in messages:
        if found and found[-1]["role"] == "assistant" and message["role"] != "user":
            found.append(HI)
        found.append(message)
    return found


def plain_calls(messages: Messages) -> Messages:
    """Names of functions are ASCII, and arguments are JSON text as `json.dumps` writes it."""
    found = []
    for message in messages:
        calls = message.get("tool_calls")
        found.append(
            message | {"tool_calls": [_dumped(one) for one in calls]} if calls else message
        )
    return found


def _dumped(made: dict[str, Any]) -> dict[str, Any]:
    """A call in plain text."""
    function = made["function"]
    given = function["arguments"]
    values = json.loads(given) if isinstance(given, str) else given
    name = function["name"].encode("ascii", "ignore").decode()
    return made | {"function": {"name": name, "arguments": json.dumps(values)}}


def ascii_tools(tools: list[Any]) -> list[Any]:
    """Schemas of printed ASCII characters."""
    return json.loads(re.sub(r"[^ -~]", "", json.dumps(tools, ensure_ascii=False)))


def no_tools(tools: list[Any]) -> list[Any]:
    """No schemas."""
    return []


class Fault(NamedTuple):
    """What another package writes otherwise than the official template.

    Attributes:
        name: what it does.
        package: whose it is.
        formats: our names of the formats where it does.
        smallest: a small conversation where it does; given a renderer, for the form of calls.
        avoid: the same conversation without what makes it do so.
        tools: the schemas of the small conversation.
        avoid_tools: the same for schemas.
    """

    name: str
    package: str
    formats: tuple[str, ...]
    smallest: Callable[[Any], Messages]
    avoid: Callable[[Messages], Messages] = list
    tools: tuple[Any, ...] = ()
    avoid_tools: Callable[[list[Any]], list[Any]] = list


QWEN3 = ("qwen3", "qwen3_disable_thinking", "qwen3_instruct")
GPT_OSS = ("gpt_oss_high_reasoning", "gpt_oss_low_reasoning", "gpt_oss_medium_reasoning")
TOOL = {"type": "function", "function": {"name": "f", "description": "D", "parameters": {}}}
UMLAUT = {"type": "function", "function": {"name": "f", "description": "Ä", "parameters": {}}}


def one_call(ours: Any, **more: Any) -> Messages:
    return [HI, said("", tool_calls=[call(ours, {"x": 1})], **more)]


def two_calls(ours: Any) -> Messages:
    return [HI, said("c", tool_calls=[call(ours, {"x": n}, n) for n in (0, 1)])]


FAULTS: tuple[Fault, ...] = (
    Fault(
        "after a tool's result, thinks where the template's prompt is bare, and ends the results "
        "where the template goes on to a user",
        "renderers",
        ("deepseek_r1",),
        lambda ours: [*one_call(ours), result("ok")],
        answered,
    ),
    Fault(
        "leaves out the line break between two calls that follow a text",
        "renderers",
        ("deepseek_r1", "glm4_5"),
        two_calls,
        single,
    ),
    Fault(
        "writes the header and text of every reply with calls, where the template forgets those of later ones",
        "renderers",
        ("deepseek_r1",),
        lambda ours: [*one_call(ours), result("ok"), said("a"), *one_call(ours)],
        called_once,
    ),
    Fault(
        "repeats the prompt's empty think block on earlier replies",
        "renderers",
        ("qwen3_disable_thinking",),
        lambda ours: [HI, said("yo"), HI],
        without_earlier_replies,
    ),
    Fault(
        "writes an empty think block on a reply that no user asked for",
        "renderers",
        ("qwen3_disable_thinking",),
        lambda ours: [said("yo")],
        asked,
    ),
    Fault(
        "leaves out the line break after a last reply",
        "tinker-cookbook",
        QWEN3,
        lambda ours: [HI, said("yo")],
        going_on,
    ),
    Fault(
        "writes letters of schemas as escapes",
        "tinker-cookbook",
        (*QWEN3, "kimi_k2"),
        lambda ours: [HI],
        tools=(UMLAUT,),
        avoid_tools=ascii_tools,
    ),
    Fault(
        "writes letters of calls as escapes",
        "tinker-cookbook",
        QWEN3,
        lambda ours: [HI, said("", tool_calls=[call(ours, {"x": "Ä"})]), result("ok")],
        plain_calls,
    ),
    Fault(
        "opens a turn for each of several results",
        "tinker-cookbook",
        QWEN3,
        lambda ours: [*two_calls(ours), result("1", 0), result("2", 1)],
        single,
    ),
    Fault(
        "writes a header for replies that no user asked for",
        "tinker-cookbook",
        ("deepseekv3", "deepseekv3_thinking"),
        lambda ours: [said("yo"), HI],
        asked,
    ),
    Fault(
        "leaves an empty reply without its stop",
        "tinker-cookbook",
        ("deepseekv3", "deepseekv3_thinking"),
        lambda ours: [HI, said(""), HI],
        worded("assistant"),
    ),
    Fault(
        "keeps the reasoning of a last reply",
        "tinker-cookbook",
        ("deepseekv3_thinking", "kimi_k2"),
        lambda ours: [HI, said("yo", reasoning_content="R")],
        going_on,
    ),
    Fault(
        "keeps the reasoning of replies with calls, inside a second think block",
        "tinker-cookbook",
        ("deepseekv3_thinking",),
        lambda ours: [*one_call(ours, reasoning_content="R"), result("ok")],
        without_reasoning,
    ),
    Fault(
        "forgets the reasoning of replies after the last user",
        "tinker-cookbook",
        ("qwen3",),
        lambda ours: [*one_call(ours, reasoning_content="R"), result("ok")],
        without_reasoning,
    ),
    Fault(
        "takes an empty system message for none",
        "tinker-cookbook",
        (*QWEN3, "kimi_k2"),
        lambda ours: [{"role": "system", "content": ""}, HI],
        worded("system"),
        tools=(TOOL,),
    ),
    Fault(
        "writes an empty system message, which the template leaves out",
        "tinker-cookbook",
        GPT_OSS,
        lambda ours: [{"role": "system", "content": ""}, HI],
        worded("system"),
    ),
    Fault(
        "sets a constraint on arguments, where the template has the plain word",
        "tinker-cookbook",
        GPT_OSS,
        lambda ours: [*one_call(ours), result("ok")],
        without_calls,
    ),
    Fault(
        "keeps the blanks around contents",
        "tinker-cookbook",
        ("llama3",),
        lambda ours: [HI, said(" yo "), HI],
        trimmed,
    ),
    Fault(
        "keeps reasoning that was answered",
        "tinker-cookbook",
        GPT_OSS,
        lambda ours: [HI, said("yo", reasoning_content="R"), HI],
        without_reasoning,
    ),
    Fault(
        "writes a second system message for tools",
        "tinker-cookbook",
        GPT_OSS,
        lambda ours: [HI],
        tools=(UMLAUT,),
        avoid_tools=no_tools,
    ),
    Fault(
        "does not end a reply with the stop that is sampled, unless a user follows",
        "tinker-cookbook",
        ("role_colon",),
        lambda ours: [HI, said("a"), said("b")],
        heard,
    ),
)
PAIRS = [
    *(("renderers", name) for name in peers.OF_RENDERERS),
    *(("tinker-cookbook", name) for name in peers.OF_TINKER),
]


def alike(name: str, write: peers.Write, messages: Messages, tools=None) -> bool:
    """Whether both write the same ids, or at least the same text, cut into tokens at other places."""
    ours = speaker(name)
    one, two = list(ours.render(messages, tools=tools)), list(write(messages, tools))
    assert ours.tokenizer is not None
    return one == two or ours.tokenizer.decode(one) == ours.tokenizer.decode(two)


def writer(package: str, name: str) -> peers.Write:
    """The other package's writing of a format."""
    if package == "renderers":
        return peers.write_with_renderers(name)
    return peers.write_with_tinker(name)


def avoid(package: str, name: str, messages: Messages, tools: Any) -> tuple[Messages, Any]:
    """A conversation without what triggers any fault on the list."""
    for fault in FAULTS:
        if fault.package == package and name in fault.formats:
            messages = fault.avoid(messages)
            tools = fault.avoid_tools(tools) if tools else None
    return messages, tools


def need(package: str) -> None:
    """Passes over a test whose package is not installed: it is no dependency of any kind."""
    if not peers.installed(package):
        pytest.skip(f"{package} {peers.VERSIONS[package]} is not installed")


@pytest.mark.parametrize(("package", "name"), PAIRS)
def test_every_difference_is_a_fault_on_the_list(package, name):
    need(package)
    write, family = writer(package, name), FAMILIES[name]
    for seed in range(CONVERSATIONS):
        random = Random(seed)
        messages = conversation(random, family)
        tools = [tool(random)] if family.tools and random.random() < 0.5 else None
        messages, tools = avoid(package, name, messages, tools)
        assert alike(name, write, messages, tools), messages


@pytest.mark.parametrize(
    ("fault", "name"), [(fault, name) for fault in FAULTS for name in fault.formats]
)
def test_faults_on_the_list_are_theirs(fault, name):
    need(fault.package)
    write = writer(fault.package, name)
    messages, tools = fault.smallest(speaker(name)), list(fault.tools) or None
    assert not alike(name, write, messages, tools)
    assert alike(name, write, *avoid(fault.package, name, messages, tools))
    if has_template(FAMILIES[name].template or ""):
        assert list(speaker(name).render(messages, tools=tools)) == official_ids(
            name, messages, tools
        )
