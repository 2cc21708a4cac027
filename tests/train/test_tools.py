import asyncio
import json
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any, Literal, NotRequired, Optional, TypedDict

import pytest
from transformers.utils import get_json_schema

from mintjax.train.tool_schema import ToolSchemaError, check_schemas
from mintjax.train.tool_types import ToolArgumentError
from mintjax.train.tools import make_tool, make_tools


class Colour(Enum):
    RED = "red"
    BLUE = 2


@dataclass
class Place:
    street: str
    number: int = 1


class Trip(TypedDict):
    start: Place
    legs: NotRequired[list[int]]


def plain(text: str, count: int, share: float, sure: bool, anything: Any, nothing: None) -> str:
    """Takes the plain types.

    Over two lines.

    Args:
        text: A text.
        count: How
            many.
        share: How much.
        sure: Whether.
        anything: Whatever.
        nothing: No more.

    Returns:
        A text.
    """
    return repr((text, count, share, sure, anything, nothing))


def nested(
    words: list[str],
    table: dict[str, list[int]],
    pair: tuple[int, str],
    loose: list,
    open: dict,
) -> str:
    """Takes nested types.

    Args:
        words: Words.
        table: A table.
        pair: A pair.
        loose: Anything.
        open: Anything.
    """
    return repr((words, table, pair, loose, open))


def chosen(
    unit: Literal["m", "km"],
    level: Literal[1, "high"],
    colour: Colour,
    maybe: Optional[int] = None,  # noqa: UP045
    either: int | str = 1,
    list_or_text: list[int] | str | None = None,
) -> str:
    """Takes one of several.

    Args:
        unit: A unit.
        level: A level.
        colour: A colour.
        maybe: A number or none.
        either: A number or a text.
        list_or_text: Numbers or a text.
    """
    return repr((unit, level, colour, maybe, either, list_or_text))


def travel(trip: Trip, via: Place | None = None) -> str:
    """Takes records.

    Args:
        trip: A trip.
        via: A place.
    """
    return repr((trip, via))


def run(function, arguments):
    return asyncio.run(make_tool(function).run(arguments))


@pytest.mark.parametrize("function", [plain, nested, chosen])
def test_descriptions_are_those_of_transformers(function):
    expected = get_json_schema(function)
    expected["function"].pop("return", None)
    # As texts: a chat format writes the keys in their order.
    assert json.dumps(make_tool(function).schema) == json.dumps(expected)


def test_records_are_described_field_by_field():
    place = {
        "type": "object",
        "properties": {"street": {"type": "string"}, "number": {"type": "integer"}},
        "required": ["street"],
    }
    trip = {
        "type": "object",
        "properties": {"start": place, "legs": {"type": "array", "items": {"type": "integer"}}},
        "required": ["start"],
    }
    assert make_tool(travel).schema["function"]["parameters"] == {
        "type": "object",
        "properties": {
            "trip": trip | {"description": "A trip."},
            "via": place | {"nullable": True, "description": "A place."},
        },
        "required": ["trip"],
    }


def test_a_method_is_described_without_its_object():
    class Board:
        def move(self, square: str) -> str:
            """Moves.

            Args:
                square: Where to.
            """
            return square

    expected = get_json_schema(Board().move)
    expected["function"].pop("return")
    assert json.dumps(make_tool(Board().move).schema) == json.dumps(expected)
    assert run(Board().move, {"square": "e4"}) == "e4"


@pytest.mark.parametrize(
    ("function", "arguments", "got"),
    [
        (
            plain,
            '{"text": "x", "count": 3.0, "share": 1, "sure": true, "anything": [1], "nothing": null}',
            "('x', 3, 1.0, True, [1], None)",
        ),
        (
            nested,
            {"words": ["a"], "table": {"t": [1]}, "pair": [1, "b"], "loose": [{}], "open": {"o": 1}},
            "(['a'], {'t': [1]}, (1, 'b'), [{}], {'o': 1})",
        ),
        (
            chosen,
            {"unit": "m", "level": 1, "colour": 2, "either": "e", "list_or_text": [1]},
            "('m', 1, <Colour.BLUE: 2>, None, 'e', [1])",
        ),
        (
            travel,
            {"trip": {"start": {"street": "S"}, "legs": [2.0]}, "via": {"street": "V", "number": 3}},
            "({'start': Place(street='S', number=1), 'legs': [2]}, Place(street='V', number=3))",
        ),
    ],
)  # fmt: skip
def test_arguments_become_what_the_hints_promise(function, arguments, got):
    assert run(function, arguments) == got


PLAIN = {"text": "x", "count": 1, "share": 1, "sure": True, "anything": 1, "nothing": None}
CHOSEN = {"unit": "m", "level": 1, "colour": "red"}


@pytest.mark.parametrize(
    ("function", "arguments", "complaint"),
    [
        (plain, "{", "plain: the arguments are no JSON"),
        (plain, "[" * 100_000, "plain: the arguments are no JSON"),
        (plain, "[]", r"plain: expected an object of arguments, came \[\]"),
        (plain, PLAIN | {"text": 1}, "plain: text: expected string, came 1"),
        (plain, PLAIN | {"count": "1"}, "plain: count: expected integer, came '1'"),
        (plain, PLAIN | {"count": True}, "plain: count: expected integer, came True"),
        (plain, PLAIN | {"count": 1.5}, "plain: count: expected integer, came 1.5"),
        (plain, PLAIN | {"share": float("nan")}, "plain: share: expected number, came nan"),
        (plain, PLAIN | {"sure": 1}, "plain: sure: expected boolean, came 1"),
        (plain, PLAIN | {"nothing": 0}, "plain: nothing: expected null, came 0"),
        (plain, PLAIN | {"more": 0}, "plain: 'more' is unknown; there are: text, count"),
        (plain, {}, "plain: 'text' is missing"),
        (nested, {"words": "a"}, "nested: 'table' is missing"),
        (chosen, CHOSEN | {"level": True}, "chosen: level: expected one of 1, 'high', came True"),
        (chosen, CHOSEN | {"colour": "RED"}, "chosen: colour: expected one of 'red', 2, came"),
        (
            chosen,
            CHOSEN | {"list_or_text": [1, "x"]},
            r"chosen: list_or_text\[1\]: expected integer, came 'x' or chosen: list_or_text: expected string",
        ),
        (travel, {"trip": {"start": {}}}, "travel: trip: start: 'street' is missing"),
        (travel, {"trip": []}, r"travel: trip: expected object, came \[\]"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(function, arguments, complaint):
    with pytest.raises(ToolArgumentError, match=f"^{complaint}"):
        run(function, arguments)


def test_a_tuple_has_its_length():
    values = {"words": [], "table": {}, "pair": [1], "loose": [], "open": {}}
    with pytest.raises(ToolArgumentError, match=r"pair: expected array of 2, came \[1\]"):
        run(nested, values)


def test_results_are_texts():
    def give(what: int) -> Any:
        """Gives.

        Args:
            what: Which.
        """
        return ["ä", None, {"ü": 1.5}, {1}][what]

    assert [run(give, {"what": n}) for n in range(4)] == ["ä", "null", '{"ü": 1.5}', "{1}"]


class Itself(TypedDict):
    inner: "Itself"


def undocumented(x: int): ...


def unhinted(x):
    """Does.

    Args:
        x: A number.
    """


def untold(x: int):
    """Does."""


def variable(*x: int):
    """Does.

    Args:
        x: Numbers.
    """


def named(**x: int):
    """Does.

    Args:
        x: Numbers.
    """


def positional(x: int, /):
    """Does.

    Args:
        x: A number.
    """


def strange(x: list[bytes]):
    """Does.

    Args:
        x: Bytes.
    """


def keyed(x: dict[int, str]):
    """Does.

    Args:
        x: By number.
    """


def endless(x: Itself):
    """Does.

    Args:
        x: Itself.
    """


def unknown(x: "Nowhere"):  # type: ignore # noqa: F821
    """Does.

    Args:
        x: A number.
    """


@pytest.mark.parametrize(
    ("function", "complaint"),
    [
        (undocumented, "tool undocumented: expected a docstring"),
        (unhinted, "tool unhinted: parameter 'x': expected a type hint, came none. Write x: str"),
        (untold, "tool untold: parameter 'x': expected a line about it in the docstring"),
        (variable, r"tool variable: parameter 'x': expected one that is given by name, came \*x"),
        (named, r"tool named: parameter 'x': expected one that is given by name, came \*\*x"),
        (positional, "tool positional: parameter 'x': expected one that is given by name"),
        (strange, "tool strange: parameter 'x': expected a type that JSON has, came <class 'bytes'>"),
        (keyed, r"tool keyed: parameter 'x': expected a type that JSON has, came dict\[int, str\]"),
        (endless, "tool endless: parameter 'x': expected a type that ends"),
        (unknown, "tool unknown: expected type hints whose names can be found, came .*Nowhere"),
        (lambda: 1, "tool <lambda>: expected a docstring"),
        (partial(plain, "x"), "tool: expected a function, came functools.partial"),
        (Place("s"), "tool: expected a function, came Place"),
    ],
)  # fmt: skip
def test_a_function_that_cannot_be_described_is_refused(function, complaint):
    with pytest.raises(ToolSchemaError, match=complaint):
        make_tool(function)


def test_names_are_different():
    with pytest.raises(ToolSchemaError, match="tool plain: expected different names"):
        make_tools([plain, plain])


@pytest.mark.parametrize(
    ("tools", "complaint"),
    [
        ([plain], r"tools\[0\]: expected a description, came the function 'plain'"),
        (["plain"], r"tools\[0\]: expected a dict"),
        ([{"type": "function"}], r"tools\[0\]: expected a dict"),
        ([{"function": "f"}], r"tools\[0\]: expected a dict"),
        ([{"name": "f"}, {"function": {"name": "f"}}], r"tools\[1\] \(f\): an earlier tool"),
        ([{"name": "f", "parameters": []}], r"tools\[0\] \(f\).parameters: expected a JSON schema"),
        ([{"name": "f", "parameters": {"type": "array"}}], "parameters: expected a JSON schema"),
        ([{"name": "f", "parameters": {"properties": [1]}}], "properties: expected a dict"),
        ([{"name": "f", "parameters": {"properties": {"x": 1}}}], r"properties\['x'\]: expected"),
        ([{"name": "f", "parameters": {"required": ["x"]}}], "required: expected names among"),
        ([{"name": "f", "description": {1}}], r"tools\[0\] \(f\): expected JSON"),
    ],
)
def test_a_description_that_no_format_could_write_is_refused(tools, complaint):
    with pytest.raises(ToolSchemaError, match=complaint):
        check_schemas(tools)


def test_descriptions_of_functions_pass():
    check_schemas([make_tool(function).schema for function in (plain, nested, chosen, travel)])
