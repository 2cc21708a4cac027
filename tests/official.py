"""What the official templates give: the text as transformers renders it, encoded in one pass."""

import json
from functools import cache
from typing import Any

from jinja2 import Template
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tests.assets import template, vocabulary

# renderer: (vocabulary, template)
OFFICIAL = {
    "qwen3_instruct": ("qwen3", "qwen3-instruct-2507"),
    "smollm2": ("smollm2", "smollm2"),
}


def official_ids(
    renderer: str, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None = None
) -> list[int]:
    """Ids of a conversation by the official template, with a generation prompt after a non-reply."""
    tokenizer_name, template_name = OFFICIAL[renderer]
    text = _compiled(template_name).render(
        messages=messages,
        tools=tools,
        add_generation_prompt=messages[-1]["role"] != "assistant",
    )
    return vocabulary(tokenizer_name).encode(text, add_special_tokens=False).ids


@cache
def _compiled(name: str) -> Template:
    """The template in the environment that transformers makes for it."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )
    # jinja's own filter escapes HTML; transformers replaces it.
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    return environment.from_string(template(name))
