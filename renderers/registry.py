"""Renderers by name, and the name of the renderer that a model speaks."""

import difflib
import importlib
import re
from dataclasses import replace
from typing import Any, Literal, overload

from mintjax.renderers.errors import RenderError
from mintjax.renderers.format import Format
from mintjax.renderers.hf_template import TemplateRenderer
from mintjax.renderers.renderer import Renderer
from mintjax.renderers.tokenizer import adapt

AnyRenderer = Renderer | TemplateRenderer

# Name: file in families/ and class in it. A family is imported when it is asked for.
_FAMILIES = {
    "chatml": ("chatml", "ChatML"),
    "deepseek_r1": ("deepseek_r1", "DeepSeekR1"),
    "deepseek_v3_0324": ("deepseek_v3", "DeepSeekV30324"),
    "deepseekv3": ("deepseek_v31", "DeepSeekV31"),
    "deepseekv3_thinking": ("deepseek_v31", "DeepSeekV31Thinking"),
    "gemma3": ("gemma3", "Gemma3"),
    "glm4_5": ("glm4_5", "GLM45"),
    "glm4_5_disable_thinking": ("glm4_5", "GLM45DisableThinking"),
    "gpt_oss_high_reasoning": ("gpt_oss", "GPTOSSHigh"),
    "gpt_oss_low_reasoning": ("gpt_oss", "GPTOSSLow"),
    "gpt_oss_medium_reasoning": ("gpt_oss", "GPTOSSMedium"),
    "kimi_k2": ("kimi_k2", "KimiK2"),
    "kimi_k2_instruct": ("kimi_k2", "KimiK2Instruct"),
    "llama3": ("llama3", "Llama3"),
    "llama3_1": ("llama3_1", "Llama31"),
    "llama3_2": ("llama3_1", "Llama32"),
    "qwen2_5": ("qwen2_5", "Qwen25"),
    "qwen3": ("qwen3", "Qwen3"),
    "qwen3_disable_thinking": ("qwen3", "Qwen3DisableThinking"),
    "qwen3_instruct": ("qwen3_instruct", "Qwen3Instruct"),
    "qwen3_thinking": ("qwen3", "Qwen3Thinking"),
    "role_colon": ("role_colon", "RoleColon"),
    "smollm2": ("smollm2", "SmolLM2"),
}
_registered: dict[str, Format] = {}

# The first pattern that is found in a model's name, case aside, decides.
_MODELS = (
    (r"smollm2", "smollm2"),
    (r"qwen3-.*instruct-2507|qwen3-coder", "qwen3_instruct"),
    (r"qwen3-.*thinking-2507", "qwen3_thinking"),
    (r"qwen3-\d", "qwen3"),
    (r"qwen2\.5", "qwen2_5"),
    (r"kimi-k2-thinking", "kimi_k2"),
    (r"kimi-k2-instruct", "kimi_k2_instruct"),
    (r"deepseek-r1(?!-distill)", "deepseek_r1"),
    (r"deepseek-v3\.1", "deepseekv3"),
    (r"deepseek-v3-0324", "deepseek_v3_0324"),
    (r"llama-3\.2", "llama3_2"),
    (r"llama-3\.[13]", "llama3_1"),
    (r"llama-3-", "llama3"),
    (r"gpt-oss", "gpt_oss_medium_reasoning"),
    (r"glm-4\.5", "glm4_5"),
    (r"gemma-3-", "gemma3"),
)


def renderer_names() -> tuple[str, ...]:
    """All names that ``get_renderer`` takes, in alphabetical order."""
    return tuple(sorted({*_FAMILIES, *_registered, TemplateRenderer.name}))


def register_renderer(name: str, form: Format) -> None:
    """Makes a chat format of your own available by name.

    Args:
        name: a new name, the format's own ``name``.
        form: an instance of your subclass of ``Format``.

    Raises:
        RenderError: where the name is taken, or is not the format's.

    Example:
        >>> register_renderer("mine", Mine())
        >>> renderer = get_renderer("mine", tokenizer)
    """
    if name in renderer_names():
        raise RenderError(f"renderer {name!r} is registered already; choose another name")
    if form.name != name:
        raise RenderError(
            f"renderer {name!r}: its format calls itself {form.name!r}; make them one"
        )
    _registered[name] = form


def recommended_renderer(model_name: str) -> str:
    """The name of the renderer that a model was trained on.

    Args:
        model_name: a registered name or a hub id.

    Raises:
        RenderError: where no model of that kind is known.

    Example:
        >>> recommended_renderer("Qwen/Qwen3-4B-Instruct-2507")
        'qwen3_instruct'
    """
    found = (name for pattern, name in _MODELS if re.search(pattern, model_name, re.IGNORECASE))
    name = next(found, None)
    if name is None:
        raise RenderError(
            f"model {model_name!r}: no renderer is known for it; choose one of "
            f"{', '.join(renderer_names())}, or 'hf_template' for the tokenizer's own chat template"
        )
    return name


@overload
def get_renderer(name: Literal["hf_template"], tokenizer: Any) -> TemplateRenderer: ...
@overload
def get_renderer(
    name: str,
    tokenizer: Any = None,
    *,
    history: Literal["template", "keep"] = "template",
    date: str | None = None,
) -> Renderer: ...
def get_renderer(
    name: str,
    tokenizer: Any = None,
    *,
    history: Literal["template", "keep"] = "template",
    date: str | None = None,
) -> AnyRenderer:
    """The renderer of a chat format.

    Args:
        name: one of ``renderer_names()``; ``recommended_renderer(model)`` chooses. ``"hf_template"``
            renders with the chat template of a tokenizer of ``transformers``, and has neither of
            the options.
        tokenizer: a fast tokenizer of ``transformers``, a ``tokenizers.Tokenizer`` or a ``tiktoken``
            encoding; with one, calls need name none.
        history: how a whole conversation is rendered. ``"template"``: id for id as the model's
            official chat template. ``"keep"``: as turn-by-turn extension leaves it, so that the
            rendering of its first turns is a prefix.
        date: the day that the format writes into its prompt; only for formats that write one.

    Raises:
        RenderError: unknown name or history, a date that would not be written, or a vocabulary
            without the format's control tokens.

    Example:
        >>> renderer = get_renderer("smollm2", tokenizer)
        >>> list(renderer.render([{"role": "user", "content": "hi"}]))[-4:]
        [1, 520, 9531, 198]
    """
    names = renderer_names()
    if name not in names:
        near = difflib.get_close_matches(name, names, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise RenderError(f"renderer {name!r} is unknown; {hint}There are {', '.join(names)}")
    if history not in ("template", "keep"):
        raise RenderError(f"history: expected 'template' or 'keep', got {history!r}")
    if name == TemplateRenderer.name:
        if history != "template" or date is not None:
            raise RenderError(
                "history, date: 'hf_template' renders as the tokenizer's chat template does; leave "
                "them out"
            )
        return TemplateRenderer(tokenizer)
    form = _registered.get(name) or _built_in(name)
    if date is not None:
        undated, form = form, form.dated(date)
        if form is None:
            raise RenderError(
                f"date: {undated.name!r} writes no date into its prompt, got {date!r}; leave it out"
            )
    view = None if tokenizer is None else adapt(tokenizer)
    if view is not None:
        view.require(form.controls, name)
    return Renderer(form, history, view)


def _built_in(name: str) -> Format:
    """The format of one of this package's own families."""
    file, family = _FAMILIES[name]
    return getattr(importlib.import_module(f"mintjax.renderers.families.{file}"), family)()


def with_tokenizer(renderer: AnyRenderer, tokenizer: Any) -> AnyRenderer:
    """A renderer bound to a tokenizer.

    Args:
        renderer: of any kind; ``"hf_template"`` has the tokenizer whose template it renders with, and stays as it is.
        tokenizer: as for `get_renderer`.

    Raises:
        RenderError: where ``"hf_template"`` has another tokenizer.

    Example:
        >>> with_tokenizer(get_renderer("smollm2"), tokenizer).stop_tokens()
        (2,)
    """
    view = adapt(tokenizer)
    if isinstance(renderer, Renderer):
        return replace(renderer, tokenizer=view)
    if renderer.tokenizer.fingerprint != view.fingerprint:
        raise RenderError(
            "tokenizer: expected the one that 'hf_template' was made with, got another; pass the same to both"
        )
    return renderer
