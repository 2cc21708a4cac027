"""What the official templates give: the text as transformers renders it, encoded in one pass."""

import json
from functools import cache
from typing import Any

from jinja2 import Template, TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tests.assets import template, vocabulary
from tests.families import FAMILIES


def official_ids(
    renderer: str, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None = None
) -> list[int]:
    """Ids of a conversation by the official template, with a generation prompt after a non-reply.

    As transformers does before it renders, keys of messages that are None are left out, and
    reasoning has both of its names.
    """
    family = FAMILIES[renderer]
    assert family.template is not None
    if family.sorts:
        tools = json.loads(json.dumps(tools, sort_keys=True))
    text = _compiled(family.template).render(
        messages=[_named(message) for message in messages],
        tools=tools or None,
        add_generation_prompt=messages[-1]["role"] != "assistant",
        bos_token=family.bos,
        strftime_now=lambda form: family.date,
        **family.options,
    )
    return vocabulary(family.vocabulary).encode(text, add_special_tokens=False).ids


def _named(message: dict[str, Any]) -> dict[str, Any]:
    """A message as transformers gives it to a template."""
    reasoning = message.get("reasoning_content")
    return {k: v for k, v in (message | {"thinking": reasoning}).items() if v is not None}


@cache
def _compiled(name: str) -> Template:
    """The template in the environment that transformers makes for it."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    return environment.from_string(template(name))


def _to_json(value: Any, **options: Any) -> str:
    """Jinja's own filter escapes HTML; transformers replaces it."""
    return json.dumps(value, **({"ensure_ascii": False} | options))


def _raise(message: str) -> None:
    """What templates refuse a conversation with."""
    raise TemplateError(message)
