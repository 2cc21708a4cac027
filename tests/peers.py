"""Two other renderers' packages, where they are installed: `renderers` 0.1.12 and `tinker-cookbook` 0.6.1."""

import importlib
import importlib.metadata
import importlib.util
import json
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from transformers import PreTrainedTokenizerFast

from tests.assets import vocabulary
from tests.families import FAMILIES

VERSIONS = {"renderers": "0.1.12", "skyrl": "0.3.0", "tinker-cookbook": "0.6.1"}
Write = Callable[[list[dict[str, Any]], list[dict[str, Any]] | None], list[int]]

# Our names, and the configuration that makes `renderers` write the same format. Its gpt-oss fetches a
# vocabulary from a host of its own, and stays out.
OF_RENDERERS: dict[str, dict[str, Any]] = {
    "deepseek_r1": {"name": "deepseek-r1"},
    "glm4_5": {"name": "glm-4.5"},
    "kimi_k2_instruct": {"name": "kimi-k2"},
    "llama3_2": {"name": "llama-3"},
    "qwen3": {"name": "qwen3"},
    "qwen3_disable_thinking": {"name": "qwen3", "enable_thinking": False},
}
# Our names that are tinker-cookbook's too.
OF_TINKER = (
    "deepseekv3",
    "deepseekv3_thinking",
    "gpt_oss_high_reasoning",
    "gpt_oss_low_reasoning",
    "gpt_oss_medium_reasoning",
    "kimi_k2",
    "llama3",
    "qwen3",
    "qwen3_disable_thinking",
    "qwen3_instruct",
    "role_colon",
)


def installed(package: str) -> bool:
    """Whether a package is here in the version that is compared with."""
    try:
        return importlib.metadata.version(package) == VERSIONS[package]
    except importlib.metadata.PackageNotFoundError:
        return False


def peer_renderers() -> ModuleType:
    """The package `renderers`; the name alone would find this repository's folder."""
    distribution = importlib.metadata.distribution("renderers")
    path = Path(str(distribution.locate_file("renderers/__init__.py")))
    loaded = sys.modules.get("renderers")
    if loaded is not None and loaded.__file__ == str(path):
        return loaded
    spec = importlib.util.spec_from_file_location(
        "renderers", path, submodule_search_locations=[str(path.parent)]
    )
    assert spec is not None and spec.loader is not None
    module = sys.modules["renderers"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def tokenizer(name: str) -> PreTrainedTokenizerFast:
    """A family's vocabulary as transformers wraps it."""
    family = FAMILIES[name]
    return PreTrainedTokenizerFast(
        tokenizer_object=vocabulary(family.vocabulary), bos_token=family.bos or None
    )


@cache
def made_by_renderers(name: str) -> Any:
    """The renderer of `renderers` for one of our names."""
    package = peer_renderers()
    configs = importlib.import_module("renderers.configs")
    options = dict(OF_RENDERERS[name])
    kinds = [
        kind
        for kind in vars(configs).values()
        if isinstance(kind, type)
        and getattr(kind, "model_fields", {}).get("name") is not None
        and kind.model_fields["name"].default == options["name"]
    ]
    family = FAMILIES[name]
    if family.date is not None:
        options["date_string"] = family.date
    return package.create_renderer(tokenizer(name), kinds[0](**options))


def write_with_renderers(name: str) -> Write:
    """A function that writes a conversation as `renderers` does."""
    peer = made_by_renderers(name)

    def write(messages, tools=None):
        return peer.render_ids(
            messages,
            tools=tools or None,
            add_generation_prompt=messages[-1]["role"] != "assistant",
        )

    return write


@cache
def made_by_tinker(name: str) -> Any:
    """The renderer of tinker-cookbook that has one of our names."""
    made = importlib.import_module("tinker_cookbook.renderers").get_renderer(name, tokenizer(name))
    if hasattr(made, "current_date"):
        made.current_date = FAMILIES[name].date  # its own is today's
    return made


def write_with_tinker(name: str) -> Write:
    """A function that writes a conversation as tinker-cookbook does."""
    peer = made_by_tinker(name)
    base = importlib.import_module("tinker_cookbook.renderers.base")

    def message(given):
        made = {k: v for k, v in given.items() if k not in ("tool_calls", "reasoning_content")}
        if given.get("reasoning_content"):
            made["content"] = [
                {"type": "thinking", "thinking": given["reasoning_content"]},
                {"type": "text", "text": given["content"]},
            ]
        calls = given.get("tool_calls")
        if calls:
            made["tool_calls"] = [base.ToolCall.model_validate(_with_text(call)) for call in calls]
        return made

    def write(messages, tools=None):
        messages = [message(one) for one in messages]
        if tools:
            given = messages[0]["content"] if messages[0]["role"] == "system" else ""
            functions = [tool["function"] for tool in tools]
            declared = peer.create_conversation_prefix_with_tools(functions, given)
            messages = [*declared, *messages[messages[0]["role"] == "system" :]]
        if messages[-1]["role"] != "assistant":
            return peer.build_generation_prompt(messages).to_ints()
        # It has no rendering that ends with a reply but the supervised one.
        return peer.build_supervised_example(messages)[0].to_ints()

    return write


def _with_text(call: dict[str, Any]) -> dict[str, Any]:
    """A call whose arguments are a text, as tinker-cookbook wants them."""
    function = call["function"]
    if isinstance(function["arguments"], str):
        return call
    arguments = json.dumps(function["arguments"], ensure_ascii=False)
    return call | {"function": function | {"arguments": arguments}}
