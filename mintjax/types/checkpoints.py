"""Runs and checkpoints, and the paths that name them."""

import re
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

CheckpointType = Literal["training", "sampler"]

_FOLDERS: dict[str, CheckpointType] = {"weights": "training", "sampler_weights": "sampler"}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class ParsedCheckpointTinkerPath:
    """A checkpoint's path, ``tinker://<run>/weights/<name>`` or ``tinker://<run>/sampler_weights/<name>``.

    Attributes:
        tinker_path: the path.
        training_run_id: the run; it may contain colons.
        checkpoint_type: ``"training"`` or ``"sampler"``.
        checkpoint_id: the part behind the run, as ``"weights/<name>"``.

    Example:
        >>> ParsedCheckpointTinkerPath.from_tinker_path("tinker://a:train:0/weights/best").checkpoint_id
        'weights/best'
    """

    tinker_path: str
    training_run_id: str
    checkpoint_type: CheckpointType
    checkpoint_id: str

    @classmethod
    def from_tinker_path(cls, tinker_path: str) -> "ParsedCheckpointTinkerPath":
        """Reads a path.

        Raises:
            ValueError: where it is none.
        """
        parts = tinker_path.removeprefix("tinker://").split("/")
        if (
            not tinker_path.startswith("tinker://")
            or len(parts) != 3
            or parts[1] not in _FOLDERS
            or not _is_name(parts[0].replace(":", "-"))
            or not _is_name(parts[2])
        ):
            raise ValueError(
                f"path: expected tinker://<run>/weights/<name> or tinker://<run>/sampler_weights/<name>, with names of "
                f"letters, digits, '.', '_' and '-', got {tinker_path!r}; save_state and save_weights_for_sampler "
                f"return such paths"
            )
        return cls(tinker_path, parts[0], _FOLDERS[parts[1]], f"{parts[1]}/{parts[2]}")

    @classmethod
    def of(cls, run_id: str, kind: CheckpointType, name: str) -> "ParsedCheckpointTinkerPath":
        """The path of a run's checkpoint.

        Raises:
            ValueError: where the name cannot be part of a path.
        """
        folder = next(folder for folder, of in _FOLDERS.items() if of == kind)
        return cls.from_tinker_path(f"tinker://{run_id}/{folder}/{name}")


def _is_name(text: str) -> bool:
    """Whether a text may be part of a path; a folder that is being written ends in .partial."""
    return bool(_NAME.fullmatch(text)) and not text.endswith(".partial")


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint on the disk.

    Attributes:
        checkpoint_id: ``"weights/<name>"`` or ``"sampler_weights/<name>"``.
        checkpoint_type: ``"training"`` (with the optimizer's state) or ``"sampler"`` (the adapter alone).
        time: when it was saved, with its zone.
        tinker_path: its whole path.
        size_bytes: of its files.
        public: always false here.
        user_metadata: what was saved with it.
        expires_at: when it is deleted; None is never.
    """

    checkpoint_id: str
    checkpoint_type: CheckpointType
    time: datetime
    tinker_path: str
    size_bytes: int
    public: bool = False
    user_metadata: dict[str, str] | None = None
    expires_at: datetime | None = None


@dataclass(frozen=True)
class TrainingRun:
    """A training client that saved something.

    Attributes:
        training_run_id: the client's model id.
        base_model: the model that its adapter stands beside.
        model_owner: ``"local"``.
        is_lora: always true.
        lora_rank: the adapter's rank.
        last_request_time: when it last saved.
        last_checkpoint: the newest training checkpoint.
        last_sampler_checkpoint: the newest checkpoint for sampling.
        user_metadata: what the client was created with.
        corrupted: always false: a damaged checkpoint is refused when it is loaded.
    """

    training_run_id: str
    base_model: str
    model_owner: str
    is_lora: bool
    lora_rank: int
    last_request_time: datetime
    last_checkpoint: Checkpoint | None = None
    last_sampler_checkpoint: Checkpoint | None = None
    user_metadata: dict[str, str] | None = None
    corrupted: bool = False


@dataclass(frozen=True)
class Cursor:
    """Which part of a listing this is."""

    offset: int
    limit: int
    total_count: int


@dataclass(frozen=True)
class TrainingRunsResponse:
    """Runs, the newest first."""

    training_runs: list[TrainingRun]
    cursor: Cursor


@dataclass(frozen=True)
class CheckpointsListResponse:
    """Checkpoints, the newest first; the cursor is None where all are there."""

    checkpoints: list[Checkpoint]
    cursor: Cursor | None = None


@dataclass(frozen=True)
class WeightsInfoResponse:
    """What a checkpoint's adapter stands beside, and its form."""

    base_model: str
    is_lora: bool
    lora_rank: int
    train_unembed: bool
    train_mlp: bool
    train_attn: bool


@dataclass(frozen=True)
class GetSessionResponse:
    """The runs that one service client saved."""

    training_run_ids: list[str]


@dataclass(frozen=True)
class ListSessionsResponse:
    """Sessions that saved something."""

    sessions: list[str]


@dataclass(frozen=True)
class SupportedModel:
    """A model that clients can be created for; its context where it is known without loading it."""

    model_name: str
    max_context_length: int | None = None
    trainable: bool = True
    sampleable: bool = True


@dataclass(frozen=True)
class GetServerCapabilitiesResponse:
    """The models that have a name here."""

    supported_models: list[SupportedModel]
