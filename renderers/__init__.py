"""Chat renderers: messages to token ids and back, one segment a turn, sampled ids kept verbatim.

Nothing here imports jax, torch or transformers.
"""

from mintjax.renderers.errors import RenderError
from mintjax.renderers.pieces import Source
from mintjax.renderers.registry import get_renderer
from mintjax.renderers.rendered import Cursor, Rendered
from mintjax.renderers.renderer import Extendable, Parsed, Renderer
from mintjax.renderers.segments import bucket, to_segment

__all__ = [
    "Cursor",
    "Extendable",
    "Parsed",
    "RenderError",
    "Rendered",
    "Renderer",
    "Source",
    "bucket",
    "get_renderer",
    "to_segment",
]
