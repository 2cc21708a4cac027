"""The one error that renderers raise."""


class RenderError(ValueError):
    """What a chat format cannot speak: messages, ids or a vocabulary; says which, and the cure.

    Example:
        >>> renderer.render([{"role": "bot", "content": "hi"}])
        Traceback (most recent call last):
        mintjax.renderers.errors.RenderError: message 0: role 'bot' is unknown; use system, ...
    """
