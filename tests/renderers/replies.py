"""Messages, replies as ids, and what must hold of every stream that they stand in."""

import json
import re
from typing import Any

import numpy as np

from mintjax.renderers import Rendered, Renderer, Source
from tests.families import FAMILIES

HI = {"role": "user", "content": "hi"}


def said(content, **more):
    return {"role": "assistant", "content": content, **more}


def call(renderer, values, number=0, name="f"):
    """A call in a form that the family's template takes."""
    text = json.dumps(values, ensure_ascii=False)
    arguments = text if FAMILIES[renderer.name].calls == "text" else values
    function = {"name": name, "arguments": arguments}
    return {"type": "function", "id": f"functions.{name}:{number}", "function": function}


def result(content, number=0):
    return {
        "role": "tool",
        "content": content,
        "name": "f",
        "tool_call_id": f"functions.f:{number}",
    }


def encoded(renderer: Renderer, text: str) -> list[int]:
    """Ids of a text in which the format's control tokens stand by name."""
    view, names = renderer.tokenizer, renderer.form.controls
    assert view is not None
    found: list[int] = []
    for part in re.split(f"({'|'.join(map(re.escape, names))})" if names else "$^", text):
        found += [view.control[part]] if part in names else view.encode(part)[0]
    return found


def stop(renderer: Renderer) -> list[int]:
    """What ends a reply that a user's message follows."""
    return encoded(renderer, renderer.form.stops[0])


def reply(renderer: Renderer, content: str) -> list[int]:
    """A whole reply as the family's model would sample it."""
    text = FAMILIES[renderer.name].reply.format(content)
    return [*encoded(renderer, text), *stop(renderer)]


def hold(rendered: Rendered, renderer: Renderer) -> None:
    """Arrays are aligned, and no caller's text is a control token."""
    arrays = (rendered.sampled, rendered.message, rendered.source, rendered.weights)
    assert {len(array) for array in arrays} == {len(rendered)}
    assert renderer.tokenizer is not None
    callers = np.isin(rendered.source, (Source.CONTENT, Source.PREFILL))
    controls = list(renderer.tokenizer.control.values())
    assert not np.isin(rendered.ids[callers & ~rendered.sampled], controls).any()


def follow(
    renderer: Renderer,
    said: list[int],
    news: list[dict[str, Any]],
    first: Any = None,
    **options: Any,
) -> Rendered:
    """What new messages add after a sampled reply; the stream before them is as it was."""
    prompt = renderer.render(first or [HI], **options)
    following = renderer.render(news, extend=prompt.with_sampled(said))
    whole = following.whole()
    assert list(whole) == [*prompt, *said, *following]
    # The mask is the sampled ids, and starts right after the generation prompt.
    assert np.flatnonzero(whole.sampled).tolist() == list(
        range(len(prompt), len(prompt) + len(said))
    )
    hold(whole, renderer)
    return following


def written(rendered: Rendered, renderer: Renderer) -> str:
    """The text of a rendering, control tokens by name."""
    assert renderer.tokenizer is not None
    return renderer.tokenizer.decode(rendered.ids)
