"""Renderers by name."""

import difflib
from typing import Any, Literal

from mintjax.renderers.errors import RenderError
from mintjax.renderers.families.chatml import ChatML
from mintjax.renderers.families.qwen3_instruct import Qwen3Instruct
from mintjax.renderers.families.role_colon import RoleColon
from mintjax.renderers.families.smollm2 import SmolLM2
from mintjax.renderers.format import Format
from mintjax.renderers.renderer import Renderer
from mintjax.renderers.tokenizer import adapt

_FORMATS: dict[str, Format] = {
    form.name: form for form in (ChatML(), Qwen3Instruct(), RoleColon(), SmolLM2())
}


def get_renderer(
    name: str,
    tokenizer: Any = None,
    *,
    history: Literal["template", "keep"] = "template",
    date: str | None = None,
) -> Renderer:
    """The renderer of a chat format.

    Args:
        name: ``"qwen3_instruct"`` (Qwen3 2507-Instruct), ``"chatml"``, ``"smollm2"`` or
            ``"role_colon"``.
        tokenizer: a fast tokenizer of ``transformers`` or a ``tokenizers.Tokenizer``; with one,
            calls need name none.
        history: how a whole conversation is rendered. ``"template"``: id for id as the model's
            official chat template. ``"keep"``: as turn-by-turn extension leaves it, so that the
            rendering of its first turns is a prefix.
        date: the day that the format writes into its prompt; only for formats that write one, and
            none of these does.

    Raises:
        RenderError: unknown name or history, a date that would not be written, or a vocabulary
            without the format's control tokens.

    Example:
        >>> renderer = get_renderer("smollm2", tokenizer)
        >>> list(renderer.render([{"role": "user", "content": "hi"}]))[-4:]
        [1, 520, 9531, 198]
    """
    if name not in _FORMATS:
        near = difflib.get_close_matches(name, _FORMATS, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise RenderError(
            f"renderer {name!r} is unknown; {hint}There are {', '.join(sorted(_FORMATS))}"
        )
    if history not in ("template", "keep"):
        raise RenderError(f"history: expected 'template' or 'keep', got {history!r}")
    form = _FORMATS[name]
    if date is not None:
        raise RenderError(
            f"date: {name!r} writes no date into its prompt, got {date!r}; leave it out"
        )
    view = None if tokenizer is None else adapt(tokenizer)
    if view is not None:
        view.require(form.controls, name)
    return Renderer(form, history, view)
