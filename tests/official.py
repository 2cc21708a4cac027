"""What the official templates give: the text as transformers renders it, encoded in one pass.

A few templates are in no public package. What the tests ask of those is kept in `golden/asked.json`, which
`python -m tests.golden.write_asked` writes where the templates are, and which answers where they are not.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Template, TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tests.assets import PUBLIC_TEMPLATES, has_template, template, vocabulary
from tests.families import FAMILIES

ASKED = Path(__file__).parent / "golden" / "asked.json"
asked: dict[str, Any] | None = None  # questions and answers, while they are being gathered


def official_ids(
    renderer: str, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None = None
) -> list[int]:
    """Ids of a conversation by the official template, with a generation prompt after a non-reply.

    As transformers does before it renders, keys of messages that are None are left out, and
    reasoning has both of its names.

    Raises:
        TemplateError: where the template refuses the conversation.
        TypeError: where it fails on it.
    """
    family = FAMILIES[renderer]
    assert family.template is not None
    if family.template in PUBLIC_TEMPLATES:
        return rendered_ids(renderer, messages, tools)
    if asked is not None:
        asked[asked_key(renderer, messages, tools)] = _answer(renderer, messages, tools)
    if has_template(family.template):
        return rendered_ids(renderer, messages, tools)
    answer = json.loads(ASKED.read_text())[asked_key(renderer, messages, tools)]
    if isinstance(answer, str):
        raise {"TypeError": TypeError, "TemplateError": TemplateError}[answer]
    return answer


def asked_key(renderer: str, messages: Any, tools: Any) -> str:
    """What a question is found by."""
    return json.dumps([renderer, messages, tools], ensure_ascii=False, sort_keys=True)


def _answer(renderer: str, messages: Any, tools: Any) -> list[int] | str:
    """The ids, or the name of the error."""
    try:
        return rendered_ids(renderer, messages, tools)
    except (TypeError, TemplateError) as error:
        return type(error).__name__


def rendered_ids(
    renderer: str, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None
) -> list[int]:
    """The same where the template is on this machine."""
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
