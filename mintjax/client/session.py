"""What the clients of one service share."""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from mintjax.client.base_models import BaseModel, base_model
from mintjax.client.checkpoint_store import CheckpointStore
from mintjax.client.worker import Worker
from mintjax.train.plan import Plan


@dataclass(eq=False)
class Session:
    """One service client's settings, its worker, and what it counts.

    Attributes:
        id: its name, the first part of its runs' names.
        worker: carries out all requests.
        store: checkpoints on the disk.
        models: base models that were given, by name.
        cache_bytes: bound of each sampling client's live caches.
        rows: most data in a micro-batch.
        plan: how gradients are computed.
        seed: of samples that name none.
        user_metadata: of the service client.
        sampled_hot: a temperature other than 1 that a sampling client was asked for; None where there was none.
        warned: whether a missing temperature was warned of.
    """

    id: str
    worker: Worker
    store: CheckpointStore
    models: Mapping[str, BaseModel]
    cache_bytes: int
    rows: int
    plan: Plan
    seed: int
    user_metadata: dict[str, str] | None
    sampled_hot: float | None = None
    warned: bool = False
    training_ids: Iterator[int] = field(default_factory=itertools.count)
    sample_ids: Iterator[int] = field(default_factory=itertools.count)

    def base_model(self, name: str) -> BaseModel:
        """A base model by name; the first time it is loaded."""
        return base_model(name, self.models)

    def next_run_id(self) -> str:
        """The name of a new training client."""
        return f"{self.id}:train:{next(self.training_ids)}"
