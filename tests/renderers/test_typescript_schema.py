"""Schemas as TypeScript: the template's spelling on random schemas, and what it fails on."""

from random import Random

import pytest
from jinja2 import TemplateError

from mintjax.renderers import RenderError
from mintjax.renderers.families.typescript_schema import namespace
from mintjax.renderers.pieces import Own
from tests.official import official_ids
from tests.renderers.conftest import speaker

NAME = "gpt_oss_medium_reasoning"
SCHEMAS = 300
HI = [{"role": "user", "content": "hi"}]
PLAIN = ("string", "number", "integer", "boolean", "object", "array", "null")
KINDS = (*PLAIN, None, ["string", "null"], ["object", "object"], ["integer"], [])


def schema(random, depth=0):
    """A schema of any type, at times with parts that its type does not have."""
    found, kind = {}, random.choice(KINDS)
    if kind is not None:
        found["type"] = kind
    if kind == "array" and depth < 3:
        found["items"] = random.choice([schema(random, depth + 1), {}, True, {"type": "integer"}])
    if kind == "object" and depth < 3:
        names = [f"é{n}" for n in range(random.randrange(4))]
        found["properties"] = {name: schema(random, depth + 1) for name in names}
        found["required"] = random.sample(names, random.randrange(len(names) + 1))
    if random.random() < 0.2:
        found["nullable"] = random.random() < 0.7
    if random.random() < 0.3:
        found["enum"] = random.choice([["a"], ["a", "b", 1, None, True], []])
    if random.random() < 0.2 and depth < 3:
        found["oneOf"] = [schema(random, depth + 1) for _ in range(random.randrange(1, 4))]
    if random.random() < 0.4:
        found["description"] = random.choice(["", "dé\nx", "d"])
    if random.random() < 0.4:
        texts = bool(found.get("enum") or found.get("oneOf"))
        found["default"] = random.choice(["x", "é\n"] if texts else [None, 1.5, "x", {"é": [1]}])
    return found


def function(parameters=None, **more):
    described = {"name": "f", "description": "d", **more}
    return {"type": "function", "function": described | ({"parameters": parameters or {}})}


def written(*tools):
    return "".join(piece.text for piece in namespace("functions", tools))


def test_random_schemas_equal_the_template():
    renderer = speaker(NAME)
    for seed in range(SCHEMAS):
        random = Random(seed)
        properties = {f"k{n}": schema(random) for n in range(random.randrange(5))}
        tools = [function({"type": "object", "properties": properties, "required": ["k0"]})]
        expected = official_ids(NAME, HI, tools)
        assert list(renderer.render(HI, tools=tools)) == expected, (seed, tools)


def test_the_words_of_a_schema_are_the_callers():
    words = "<|end|>"
    names = {words: {"type": "object", "properties": {words: {"enum": [words], "type": "string"}}}}
    names["d"] = {"description": words, "default": words, "oneOf": [{"description": words}]}
    names["t"] = {"type": [words], "enum": [words], "default": {words: words}}
    tools = [function({"properties": names}, name=words, description=words)]
    pieces = namespace("functions", tools)
    assert not any(words in piece.text for piece in pieces if isinstance(piece, Own))
    assert sum(piece.text.count(words) for piece in pieces) == 11


def test_a_tool_without_a_description():
    """The template fails there."""
    bare = {"name": "f"}
    head = "## functions\n\nnamespace functions {\n\n"
    assert written(bare) == f"{head}type f = () => any;\n\n}} // namespace functions"
    with pytest.raises((TemplateError, TypeError)):
        official_ids(NAME, HI, [{"type": "function", "function": bare}])


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"type": "string", "enum": ["1"], "default": 1}, '"1", // default: 1,\n'),
        ({"oneOf": [{"type": "integer"}], "default": None}, "number// default: null,\n"),
    ],
)
def test_a_default_beside_a_choice_that_is_no_text(given, says):
    """The template fails there."""
    tools = [function({"properties": {"k": given}})]
    assert f"k?: {says}" in written(*tools)
    with pytest.raises((TemplateError, TypeError)):
        official_ids(NAME, HI, tools)


@pytest.mark.parametrize(
    ("tool", "says"),
    [
        ({"type": "function", "function": {"description": "d"}}, r"tools\[0\]: the tool has no name"),
        (function(name=3), r"tools\[0\]: name must be a text, got int"),
        (function(description=["d"]), r"tools\[0\]: description must be a text, got list"),
        (
            function({"properties": {"k": {"description": 3}}}),
            r"tools\[0\]\.k: description must be a text",
        ),
        (
            function({"properties": {"k": {}}, "required": True}),
            r"tools\[0\]: required must be a list of names, got True",
        ),
        (function({"properties": {"k": {"default": {1}}}}), r"tools\[0\]: not JSON"),
    ],
)  # fmt: skip
def test_schemas_that_cannot_be_written(tool, says):
    with pytest.raises(RenderError, match=says):
        speaker(NAME).render(HI, tools=[tool])
