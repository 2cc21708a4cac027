"""Chat renderers: messages to token ids and back, one segment a turn, sampled ids kept verbatim.

Nothing here imports jax, torch or transformers.
"""

from mintjax.renderers.errors import RenderError
from mintjax.renderers.facade import ParseTermination
from mintjax.renderers.format import Format
from mintjax.renderers.parsed import Parsed
from mintjax.renderers.pieces import Source
from mintjax.renderers.reading import Attempt
from mintjax.renderers.registry import (
    AnyRenderer,
    get_renderer,
    recommended_renderer,
    register_renderer,
    renderer_names,
)
from mintjax.renderers.rendered import Cursor, Rendered
from mintjax.renderers.renderer import Extendable, Renderer
from mintjax.renderers.segments import Segments, bucket, segment_count, to_segment, to_segments
from mintjax.renderers.streaming import Delta, Stream
from mintjax.renderers.supervised import TrainOnWhat

__all__ = [
    "AnyRenderer",
    "Attempt",
    "Cursor",
    "Delta",
    "Extendable",
    "Format",
    "ParseTermination",
    "Parsed",
    "RenderError",
    "Rendered",
    "Renderer",
    "Segments",
    "Source",
    "Stream",
    "TrainOnWhat",
    "bucket",
    "get_renderer",
    "recommended_renderer",
    "register_renderer",
    "renderer_names",
    "segment_count",
    "to_segment",
    "to_segments",
]
