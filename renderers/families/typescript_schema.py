"""Tool schemas as TypeScript declarations, the form in which gpt-oss reads them.

Source: the macros ``render_tool_namespace`` and ``render_typescript_type`` in the ``chat_template`` of
openai/gpt-oss-20b. Its spelling is kept where it is odd: a nested property stands on a line of its own
behind 16 spaces.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from mintjax.renderers.errors import RenderError
from mintjax.renderers.messages import to_json
from mintjax.renderers.pieces import Own, Piece, Said

_PLAIN = {"string": "string", "number": "number", "integer": "number", "boolean": "boolean"}
_LONGEST_ITEM = 50  # letters of an array's item type; a longer one is written as any


def namespace(name: str, tools: Sequence[Mapping[str, Any]]) -> list[Piece]:
    r"""The declarations of all tools, in a namespace.

    Args:
        name: the namespace's name, the format's own word.
        tools: JSON schemas, in the OpenAI shape or bare. A description that is left out is not
            written; the template fails there.

    Raises:
        RenderError: a tool without a name; a description that is no text; ``required`` that is no
            list.

    Example:
        >>> "".join(piece.text for piece in namespace("functions", [{"name": "f"}]))
        '## functions\n\nnamespace functions {\n\ntype f = () => any;\n\n} // namespace functions'
    """
    pieces: list[Piece] = [Own(f"## {name}\n\nnamespace {name} {{\n\n")]
    for number, tool in enumerate(tools):
        pieces += _declaration(_schema(tool.get("function", tool)), f"tools[{number}]")
    return [*pieces, Own(f"}} // namespace {name}")]


def _declaration(function: Mapping[str, Any], where: str) -> list[Piece]:
    """A tool as a function's type, its description in a comment before it."""
    if not function.get("name"):
        raise RenderError(f"{where}: the tool has no name; give one")
    pieces: list[Piece] = []
    if function.get("description") is not None:
        pieces += [Own("// "), _text(function, "description", where), Own("\n")]
    pieces += [Own("type "), _text(function, "name", where), Own(" = ")]
    parameters = _schema(function.get("parameters"))
    properties = _schema(parameters.get("properties"))
    if not properties:
        return [*pieces, Own("() => any;\n\n")]
    pieces.append(Own("(_: {\n"))
    for name, given in properties.items():
        schema, place = _schema(given), f"{where}.{name}"
        if schema.get("description"):
            pieces += [Own("// "), _text(schema, "description", place), Own("\n")]
        pieces += [*_key(name, parameters, where), Own(": "), *_type(schema, place)]
        if "default" in schema:
            raw = bool(schema.get("enum") or schema.get("oneOf"))
            comma = "" if schema.get("oneOf") and not schema.get("enum") else ", "
            pieces += [Own(f"{comma}// default: "), _default(schema["default"], place, raw=raw)]
        pieces.append(Own(",\n"))
    return [*pieces, Own("}) => any;\n\n")]


def _type(schema: Mapping[str, Any], where: str) -> list[Piece]:
    """A JSON schema as a TypeScript type; what has no such form is any."""
    kind = schema.get("type")
    null: list[Piece] = [Own(" | null")] if schema.get("nullable") else []
    if kind == "array":
        return [*_item(_schema(schema.get("items")), where), Own("[]"), *null]
    if isinstance(kind, list | tuple) and kind:
        return _joined([[Said(str(one))] for one in kind], " | ")
    if schema.get("oneOf"):
        return _union([_schema(variant) for variant in schema["oneOf"]], where)
    if kind == "string" and schema.get("enum"):
        return [Own('"'), *_joined([[Said(str(one))] for one in schema["enum"]], '" | "'), Own('"')]
    if kind == "string":
        return [Own("string"), *null]
    if kind == "object":
        return _object(schema, where)
    return [Own(_PLAIN.get(kind, "any") if isinstance(kind, str) else "any")]


def _item(schema: Mapping[str, Any], where: str) -> list[Piece]:
    """The type of an array's items."""
    if schema.get("type") in ("string", "number", "integer", "boolean"):
        return [Own(_PLAIN[schema["type"]])]
    pieces = _type(schema, where)
    text = "".join(piece.text for piece in pieces)
    return [Own("any")] if text == "object | object" or len(text) > _LONGEST_ITEM else pieces


def _union(variants: Sequence[Mapping[str, Any]], where: str) -> list[Piece]:
    """The types of ``oneOf``, each with its comments behind it."""
    written: list[list[Piece]] = []
    for variant in variants:
        pieces = _type(variant, where)
        if variant.get("description"):
            pieces += [Own("// "), _text(variant, "description", where)]
        if "default" in variant:
            default = _default(variant["default"], where, raw=False)
            pieces += [Own(" " * 20 + "// default: "), default]
        written.append(pieces)
    return _joined(written, " | \n")


def _object(schema: Mapping[str, Any], where: str) -> list[Piece]:
    """An object's properties, or just that it is one."""
    properties = _schema(schema.get("properties"))
    if not properties:
        return [Own("object")]
    written: list[list[Piece]] = [
        [*_key(name, schema, where), Own(": \n" + " " * 16), *_type(_schema(one), where)]
        for name, one in properties.items()
    ]
    return [Own("{\n"), *_joined(written, ", "), Own("}")]


def _key(name: Any, owner: Mapping[str, Any], where: str) -> list[Piece]:
    """A property's name, with a question mark where it is not required."""
    required = owner.get("required") or []
    if not isinstance(required, list | tuple):
        raise RenderError(f"{where}: required must be a list of names, got {required!r}")
    return [Said(str(name)), Own("" if name in required else "?")]


def _default(value: Any, where: str, *, raw: bool) -> Said:
    """A default as JSON; a text without its quotes where ``raw``."""
    return Said(value if raw and isinstance(value, str) else to_json(value, where))


def _text(schema: Mapping[str, Any], key: str, where: str) -> Said:
    """A text of a schema."""
    value = schema[key]
    if not isinstance(value, str):
        raise RenderError(f"{where}: {key} must be a text, got {type(value).__name__}")
    return Said(value)


def _schema(value: Any) -> Mapping[str, Any]:
    """A schema, or an empty one for what says nothing, such as True."""
    return value if isinstance(value, Mapping) else {}


def _joined(groups: Sequence[Sequence[Piece]], glue: str) -> list[Piece]:
    """Groups of pieces with the format's own words between them."""
    found: list[Piece] = []
    for number, group in enumerate(groups):
        found += [Own(glue), *group] if number else group
    return found
