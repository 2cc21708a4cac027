"""Descriptions of tools, in OpenAI's shape, as the policy is shown them."""

import json
from collections.abc import Mapping, Sequence
from typing import Any


class ToolSchemaError(ValueError):
    """A tool that cannot be described to the policy: the text names it, what is wrong, and the cure."""


def check_schemas(tools: Sequence[Any]) -> None:
    """Refuses descriptions that no chat format could write.

    Args:
        tools: dicts ``{"type": "function", "function": {"name": ..., "description": ..., "parameters": ...}}``, or the inner
            dict alone. ``parameters`` is a JSON schema of an object.

    Raises:
        ToolSchemaError: where one is something else, or two have one name.

    Example:
        >>> check_schemas([{"type": "function", "function": {"name": "look"}}])
    """
    names: list[str] = []
    for number, tool in enumerate(tools):
        where = f"tools[{number}]"
        if callable(tool):
            raise ToolSchemaError(
                f"{where}: expected a description, came the function {getattr(tool, '__name__', tool)!r}. "
                "Give functions to mintjax.train.tool_environment.ToolEnvironment, which describes and runs them."
            )
        inner = tool.get("function", tool) if isinstance(tool, Mapping) else None
        if not isinstance(inner, Mapping) or not isinstance(inner.get("name"), str):
            raise ToolSchemaError(
                f"{where}: expected a dict {{'type': 'function', 'function': {{'name': text, ...}}}}, came {tool!r}. "
                "Write it so, or let mintjax.train.tools.make_tool make it from a function."
            )
        where += f" ({inner['name']})"
        if inner["name"] in names:
            raise ToolSchemaError(
                f"{where}: an earlier tool has the same name. Rename one of them."
            )
        names.append(inner["name"])
        _check_parameters(inner.get("parameters", {}), f"{where}.parameters")
        try:
            json.dumps(tool)
        except (TypeError, ValueError) as error:
            raise ToolSchemaError(
                f"{where}: expected JSON, came {error}. Use dicts, lists, texts, numbers, booleans and None."
            ) from None


def _check_parameters(parameters: Any, where: str) -> None:
    """Refuses what is no schema of an object."""
    if not isinstance(parameters, Mapping) or parameters.get("type", "object") != "object":
        raise ToolSchemaError(
            f"{where}: expected a JSON schema of an object, came {parameters!r}. Arguments have names: write "
            "{'type': 'object', 'properties': {name: schema}}."
        )
    properties = parameters.get("properties", {})
    if not isinstance(properties, Mapping):
        raise ToolSchemaError(
            f"{where}.properties: expected a dict of schemas by name, came {properties!r}."
        )
    for name, schema in properties.items():
        if not isinstance(schema, Mapping):
            raise ToolSchemaError(
                f"{where}.properties[{name!r}]: expected a schema as a dict, came {schema!r}. "
                "Write {'type': 'string'}, say."
            )
    required = parameters.get("required", [])
    unknown = [name for name in required if name not in properties]
    if unknown:
        raise ToolSchemaError(
            f"{where}.required: expected names among the properties, came {unknown[0]!r}. Describe it there."
        )
