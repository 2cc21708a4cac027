"""Tool calls as GLM-4.5 says them: keys and values without quotes, so that schemas say the types."""

from collections.abc import Mapping, Sequence
from typing import Any

from mintjax.renderers.format import Tools
from mintjax.renderers.reading import Part, dump_json, load_json, make_call
from mintjax.types import ToolCall

_PAIR = ["<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"]
_TYPES: dict[type, set[str]] = {
    bool: {"boolean"},
    int: {"integer", "number"},
    float: {"number"},
    type(None): {"null"},
    dict: {"object"},
    list: {"array"},
}


def read_call(inside: Sequence[Part], tools: Tools) -> ToolCall:
    """The call that stands between ``<tool_call>`` and ``</tool_call>``.

    A value is a text where the schema of its argument allows only that, and JSON where it allows no
    text. Where it allows both, or is not known, a value is JSON if it is one of the schema's types and
    spelled as the format writes it, so that it would be written so again; else a text.

    Args:
        inside: a name, then pairs of key and value.
        tools: the schemas that were declared; empty where they are not known.

    Raises:
        ValueError: saying what is wrong with the call, and where its schema allows no text and the
            value is no JSON.

    Example:
        >>> read_call(found, [])["function"]["arguments"]
        '{"city": "Zürich", "days": 2}'
    """
    controls: list[str] = []
    texts = [""]
    for part in inside:
        if part.control is None:
            texts[-1] += part.text
            continue
        controls.append(part.control)
        texts.append("")
    name, keys, values = texts[0].strip(), texts[1::4], texts[3::4]
    if not name:
        raise ValueError("the tool call names no function")
    if controls != _PAIR * len(values) or "".join([*texts[2::4], *texts[4::4]]).strip():
        raise ValueError("the tool call is no name with pairs of arg_key and arg_value")
    if len(set(keys)) < len(keys):
        raise ValueError("the tool call gives an argument twice")
    schemas = _schemas(name, tools)
    pairs = zip(keys, values, strict=True)
    return make_call(name, dump_json({key: _value(key, text, schemas) for key, text in pairs}))


def _schemas(name: str, tools: Tools) -> Mapping[str, Any]:
    """The schemas of a tool's arguments; none for a tool that is not declared."""
    functions = (tool.get("function", tool) for tool in tools)
    function = next((one for one in functions if one.get("name") == name), {})
    return (function.get("parameters") or {}).get("properties") or {}


def _value(key: str, text: str, schemas: Mapping[str, Any]) -> Any:
    """The value of an argument."""
    kinds = _kinds(schemas.get(key))
    if kinds == {"string"}:
        return text
    certain = bool(kinds) and "string" not in kinds
    try:
        value = load_json(text)
        spelled = dump_json(value)
    except ValueError:
        if certain:
            raise ValueError(
                f"the argument {key!r} of the tool call is no {' or '.join(sorted(kinds))}"
            ) from None
        return text
    # A text is written without quotes: what has them is a text that holds quotes.
    if isinstance(value, str):
        return text
    fits = spelled == text and (not kinds or kinds & _TYPES[type(value)])
    return value if certain or fits else text


def _kinds(schema: Any) -> set[str]:
    """The types that a schema allows; empty where it does not say."""
    if not isinstance(schema, Mapping):
        return set()
    kind = schema.get("type", ())
    found = [{kind} if isinstance(kind, str) else set(kind)] if kind else []
    found += [_kinds(one) for one in (*schema.get("anyOf", ()), *schema.get("oneOf", ()))]
    return set().union(*found) if all(found) else set()
