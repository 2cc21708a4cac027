"""The values that every layer of mintjax passes to the next, and those that the clients take and return.

A leaf: standard library and numpy only.
"""

from mintjax.types.checkpoints import (
    Checkpoint,
    CheckpointsListResponse,
    CheckpointType,
    Cursor,
    GetServerCapabilitiesResponse,
    GetSessionResponse,
    ListSessionsResponse,
    ParsedCheckpointTinkerPath,
    SupportedModel,
    TrainingRun,
    TrainingRunsResponse,
    WeightsInfoResponse,
)
from mintjax.types.conversation import Episode, FunctionCall, Message, Segment, ToolCall, Turn
from mintjax.types.datum import Datum
from mintjax.types.model_input import EncodedTextChunk, ModelInput
from mintjax.types.sampling import SampledSequence, SampleResponse, SamplingParams, SamplingStats
from mintjax.types.tensor_data import TensorData
from mintjax.types.training import (
    AdamParams,
    ForwardBackwardOutput,
    GetInfoResponse,
    LoadWeightsResponse,
    LoraConfig,
    ModelData,
    OptimStepResponse,
    SaveWeightsForSamplerResponse,
    SaveWeightsResponse,
)

__all__ = [
    "AdamParams",
    "Checkpoint",
    "CheckpointType",
    "CheckpointsListResponse",
    "Cursor",
    "Datum",
    "EncodedTextChunk",
    "Episode",
    "ForwardBackwardOutput",
    "FunctionCall",
    "GetInfoResponse",
    "GetServerCapabilitiesResponse",
    "GetSessionResponse",
    "ListSessionsResponse",
    "LoadWeightsResponse",
    "LoraConfig",
    "Message",
    "ModelData",
    "ModelInput",
    "OptimStepResponse",
    "ParsedCheckpointTinkerPath",
    "SampleResponse",
    "SampledSequence",
    "SamplingParams",
    "SamplingStats",
    "SaveWeightsForSamplerResponse",
    "SaveWeightsResponse",
    "Segment",
    "SupportedModel",
    "TensorData",
    "ToolCall",
    "TrainingRun",
    "TrainingRunsResponse",
    "Turn",
    "WeightsInfoResponse",
]
