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
        tools: whether schemas can be declared.
        calls: the form in which the template takes arguments of calls; "" where it writes no calls.
        parallel: whether a reply can make several calls.
        reasoning: whether replies can have reasoning.
        late_system: whether the template writes a system message that is not the first as itself.
        alternate: whether users and replies must alternate, the user first.
    """

    vocabulary: str
    template: str | None = None
    options: Mapping[str, Any] = MappingProxyType({})
    bos: str = ""
    date: str | None = None
    tools: bool = False
    calls: Literal["", "text", "dict", "both"] = ""
    parallel: bool = True
    reasoning: bool = False
    late_system: bool = True
    alternate: bool = False


FAMILIES: dict[str, Family] = {
    "chatml": Family("qwen3"),
    "qwen3_instruct": Family("qwen3", "qwen3-instruct-2507", tools=True, calls="both"),
    "role_colon": Family("smollm2"),
    "smollm2": Family("smollm2", "smollm2"),
}
