"""Tools: plain typed functions that the policy may call, described by their hints and docstrings."""

import inspect
import json
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mintjax.train.daemon_threads import call
from mintjax.train.docstrings import parse_docstring
from mintjax.train.tool_schema import ToolSchemaError
from mintjax.train.tool_types import Kind, ToolArgumentError, kind_of, read_named

_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


@dataclass(frozen=True)
class Tool:
    """A function, and what the policy is told of it. Make one with :func:`make_tool`.

    Attributes:
        name: the function's.
        function: what is called; ``async`` or not.
        schema: its description in OpenAI's shape.
        parameters: what each parameter takes.
        required: those without a default.
    """

    name: str
    function: Callable[..., Any]
    schema: Mapping[str, Any]
    parameters: Mapping[str, Kind]
    required: Sequence[str]

    async def run(self, arguments: str | dict[str, Any]) -> str:
        """Calls the function as the policy asks for it.

        Args:
            arguments: a JSON object, as text or read.

        Returns:
            What the function returns: a text as it is, what JSON has a form for as JSON, anything else as ``str`` writes it.

        Raises:
            ToolArgumentError: where the arguments are not those it takes. It is not called then.
            Exception: what the function raises.

        Example:
            >>> await make_tool(add).run('{"x": 1, "y": 2}')
            '3'
        """
        return as_text(await call(self.function, **self._read(arguments)))

    def _read(self, arguments: str | dict[str, Any]) -> dict[str, Any]:
        """The arguments as the hints promise them."""
        values: Any = arguments
        if isinstance(arguments, str):
            try:
                values = json.loads(arguments)
            except (ValueError, RecursionError) as error:
                raise ToolArgumentError(
                    f"{self.name}: the arguments are no JSON: {error}"
                ) from None
        if not isinstance(values, dict):
            raise ToolArgumentError(
                f"{self.name}: expected an object of arguments, came {values!r}"
            )
        return read_named(values, dict(self.parameters), self.required, self.name)


def make_tool(function: Callable[..., Any]) -> Tool:
    """A tool from a function or bound method.

    Every parameter needs a type hint that JSON has a form for and a line in the docstring, which may be written in Google's,
    numpy's or reStructuredText's way. One with a default is optional.

    Args:
        function: ``async`` or not. One that is not runs in a thread.

    Raises:
        ToolSchemaError: naming the function, the parameter and what it lacks.

    Example:
        >>> def add(x: int, y: int = 1) -> int:
        ...     '''Adds two numbers.
        ...
        ...     Args:
        ...         x: The first.
        ...         y: The second.
        ...     '''
        ...     return x + y
        >>> make_tool(add).schema["function"]["parameters"]["required"]
        ['x']
    """
    name = getattr(function, "__name__", None)
    if not (inspect.isfunction(function) or inspect.ismethod(function)) or name is None:
        raise ToolSchemaError(
            f"tool: expected a function, came {function!r}. Define one with def, so that it has a name, type hints and a "
            "docstring."
        )
    documentation = parse_docstring(inspect.getdoc(function) or "")
    if not documentation.description:
        raise ToolSchemaError(
            f"tool {name}: expected a docstring, came none. Say in it what the function does; the policy is shown that."
        )
    hints = _hints(function, name)
    parameters: dict[str, Kind] = {}
    properties: dict[str, Any] = {}
    required = []
    for parameter in inspect.signature(function).parameters.values():
        where = f"tool {name}: parameter {parameter.name!r}"
        if parameter.kind not in _BY_NAME:
            raise ToolSchemaError(
                f"{where}: expected one that is given by name, came {parameter}. Name every argument, and take none by "
                "*, ** or before a /."
            )
        if parameter.name not in hints:
            raise ToolSchemaError(
                f"{where}: expected a type hint, came none. Write {parameter.name}: str, say."
            )
        if not documentation.parameters.get(parameter.name):
            raise ToolSchemaError(
                f"{where}: expected a line about it in the docstring, came none. Add it under Args:, as "
                f"'{parameter.name}: What it is.'"
            )
        try:
            kind = kind_of(hints[parameter.name], where)
        except RecursionError:
            raise ToolSchemaError(
                f"{where}: expected a type that ends, came {hints[parameter.name]!r}, which holds itself. Take a dict."
            ) from None
        parameters[parameter.name] = kind
        properties[parameter.name] = kind.schema | {
            "description": documentation.parameters[parameter.name]
        }
        if parameter.default is inspect.Parameter.empty:
            required.append(parameter.name)
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    if required:
        schema["required"] = required
    described = {
        "name": name,
        "description": documentation.description,
        "parameters": schema,
    }
    return Tool(name, function, {"type": "function", "function": described}, parameters, required)


def make_tools(functions: Sequence[Callable[..., Any]]) -> dict[str, Tool]:
    """Tools by name.

    Raises:
        ToolSchemaError: as :func:`make_tool`; and where two have one name.

    Example:
        >>> list(make_tools([add]))
        ['add']
    """
    tools: dict[str, Tool] = {}
    for function in functions:
        tool = make_tool(function)
        if tool.name in tools:
            raise ToolSchemaError(
                f"tool {tool.name}: expected different names, came this one twice. Rename a function."
            )
        tools[tool.name] = tool
    return tools


def as_text(result: Any) -> str:
    """What a tool returned, as the policy reads it.

    Example:
        >>> as_text([1, "ä"])
        '[1, "ä"]'
    """
    if isinstance(result, str):
        return result
    try:
        return json.dumps(result, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        return str(result)


def _hints(function: Callable[..., Any], name: str) -> dict[str, Any]:
    """The type hints, resolved."""
    try:
        return typing.get_type_hints(function)
    except NameError as error:
        raise ToolSchemaError(
            f"tool {name}: expected type hints whose names can be found, came {error}. Import them where the module is "
            "loaded, not under TYPE_CHECKING or in a function."
        ) from None
