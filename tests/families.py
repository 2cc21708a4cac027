"""What the tests of renderers have to know of each family: one row a renderer."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal, NamedTuple


class Family(NamedTuple):
    """A renderer's vocabulary and official template, and what the template can write.

    Attributes:
        vocabulary: name of the vocabulary, see `tests.assets`.
        template: name of the official template; None where there is none.
        options: what the template is given besides messages and tools.
        bos: value of the template's `bos_token`.
        date: the day that the renderer is made with, where it writes one.
        tools: whether the template writes schemas.
        sorts: whether the model's own tokenizer sorts the keys of schemas before the template.
        calls: the form in which the template takes arguments of calls; "" where it writes no calls.
        parallel: whether a reply can make several calls.
        ids: whether the template writes the ids of calls.
        call_text: whether a reply can have text beside its calls.
        reasoning: whether replies can have reasoning.
        preamble: whether a reply with reasoning can have text beside its calls.
        late_system: whether the template writes a system message that is not the first as itself.
        alternate: whether users and replies must alternate, the user first.
        user_first: whether a user must come first, as tools stand in that message.
        reply: how a reply without reasoning stands after the generation prompt, up to its stop; {} is
            its content.
    """

    vocabulary: str
    template: str | None = None
    options: Mapping[str, Any] = MappingProxyType({})
    bos: str = ""
    date: str | None = None
    tools: bool = False
    sorts: bool = False
    calls: Literal["", "text", "dict", "both"] = ""
    parallel: bool = True
    ids: bool = False
    call_text: bool = True
    reasoning: bool = False
    preamble: bool = True
    late_system: bool = True
    alternate: bool = False
    user_first: bool = False
    reply: str = "{}"


def _gpt_oss(effort: str) -> Family:
    """gpt-oss, told how much to reason."""
    return Family(
        "gpt-oss",
        "gpt-oss",
        {"reasoning_effort": effort},
        date="2025-08-05",
        tools=True,
        calls="dict",
        parallel=False,
        reasoning=True,
        preamble=False,
        late_system=False,
        reply="<|channel|>final<|message|>{}",
    )


def _deepseek(vocabulary: str, template: str, **more: Any) -> Family:
    """A DeepSeek model. Its templates write no schemas, and move late system messages to the front."""
    bos = "<｜begin▁of▁sentence｜>"
    return Family(vocabulary, template, bos=bos, calls="text", late_system=False, **more)


def _llama(template: str) -> Family:
    """Llama 3.1 or 3.2, told a day."""
    return Family(
        "llama3.1",
        template,
        {"date_string": "5 Aug 2025"},
        bos="<|begin_of_text|>",
        date="5 Aug 2025",
        tools=True,
        calls="dict",
        parallel=False,
        call_text=False,
        user_first=True,
    )


FAMILIES: dict[str, Family] = {
    "chatml": Family("qwen3"),
    "deepseek_r1": _deepseek(
        "deepseek-r1", "deepseek-r1", reasoning=True, reply="\n</think>\n\n{}"
    ),
    "deepseek_v3_0324": _deepseek("deepseek-v3", "deepseek-v3-0324"),
    "deepseekv3": _deepseek("deepseek-v3.1", "deepseek-v3.1"),
    "deepseekv3_thinking": _deepseek(
        "deepseek-v3.1",
        "deepseek-v3.1",
        options={"thinking": True},
        reasoning=True,
        reply="</think>{}",
    ),
    "gemma3": Family("gemma3", "gemma3", bos="<bos>", late_system=False, alternate=True),
    "glm4_5": Family(
        "glm-4.5",
        "glm-4.5",
        tools=True,
        calls="dict",
        reasoning=True,
        reply="\n<think></think>\n{}",
    ),
    "glm4_5_disable_thinking": Family(
        "glm-4.5", "glm-4.5", {"enable_thinking": False}, tools=True, calls="dict", reply="\n{}"
    ),
    "gpt_oss_high_reasoning": _gpt_oss("high"),
    "gpt_oss_low_reasoning": _gpt_oss("low"),
    "gpt_oss_medium_reasoning": _gpt_oss("medium"),
    "kimi_k2": Family(
        "kimi-k2",
        "kimi-k2-thinking",
        tools=True,
        sorts=True,
        calls="both",
        ids=True,
        reasoning=True,
        reply="<think></think>{}",
    ),
    "kimi_k2_instruct": Family(
        "kimi-k2", "kimi-k2-instruct", tools=True, sorts=True, calls="both", ids=True
    ),
    "llama3": Family("llama3", "llama3", bos="<|begin_of_text|>"),
    "llama3_1": _llama("llama3.1"),
    "llama3_2": _llama("llama3.2"),
    "qwen2_5": Family("qwen2.5", "qwen2.5", tools=True, calls="dict"),
    "qwen3": Family(
        "qwen3",
        "qwen3",
        tools=True,
        calls="both",
        reasoning=True,
        reply="<think>\n\n</think>\n\n{}",
    ),
    "qwen3_disable_thinking": Family(
        "qwen3", "qwen3", {"enable_thinking": False}, tools=True, calls="both"
    ),
    "qwen3_instruct": Family("qwen3", "qwen3-instruct-2507", tools=True, calls="both"),
    "qwen3_thinking": Family(
        "qwen3",
        "qwen3-thinking-2507",
        tools=True,
        calls="both",
        reasoning=True,
        reply="\n</think>\n\n{}",
    ),
    "role_colon": Family("smollm2", reply=" {}"),
    "smollm2": Family("smollm2", "smollm2"),
}
