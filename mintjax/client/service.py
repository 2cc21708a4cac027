"""The service client: where training and sampling clients come from."""

import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from mintjax import adapters
from mintjax.client.base_models import BaseModel
from mintjax.client.checkpoint_store import CheckpointStore, Owner
from mintjax.client.errors import RequestFailedError
from mintjax.client.futures import created
from mintjax.client.rest import RestClient
from mintjax.client.sampling import SamplingClient, Served
from mintjax.client.session import Session
from mintjax.client.training import Trainee, TrainingClient, load_into, served_checkpoint
from mintjax.client.worker import Worker
from mintjax.train.compiles import keep_compiled
from mintjax.train.optimizer import init_adjustable
from mintjax.train.plan import Plan
from mintjax.types import LoraConfig, ParsedCheckpointTinkerPath

_ALPHA = 32.0
_CACHE_BYTES = 2**30


class ServiceClient:
    """Tinker's service, in this process.

    All requests of all clients of one service are carried out one after the other, in the order of their calls, on one
    thread of its own. Base weights are loaded once in a process. Creation returns at once: what it returns is a client
    and the future of its creation.

    Example:
        >>> service_client = mintjax.ServiceClient()
        >>> training_client = service_client.create_lora_training_client("smollm2-135m-instruct", rank=16)
        >>> sampling_client = training_client.save_weights_and_get_sampling_client()
    """

    def __init__(
        self,
        user_metadata: dict[str, str] | None = None,
        project_id: str | None = None,
        *,
        home: str | Path | None = None,
        models: Mapping[str, BaseModel] | None = None,
        cache_bytes: int = _CACHE_BYTES,
        rows: int = 8,
        plan: Plan = Plan(),
        seed: int = 0,
    ) -> None:
        """Set a service up; nothing is loaded or written yet. Compiled programs are kept from process to process.

        Args:
            user_metadata: kept with the runs of clients that have none of their own.
            project_id: not used; scripts give one.
            home: where checkpoints lie. By default ``$MINTJAX_HOME``, and ``~/.mintjax`` where that is not set.
            models: base models by name, beside those that ``mintjax.load_policy`` knows.
            cache_bytes: bound of the live caches of each sampling client.
            rows: most data that a gradient is taken of at a time.
            plan: how gradients are computed.
            seed: of samples that name none: the n-th request of a service is always of the same randomness.

        Raises:
            ValueError: where a number is too small, or the plan needs a rollout's cache.
        """
        del project_id
        if rows < 1 or rows & (rows - 1):
            raise ValueError(f"rows: expected a power of two, got {rows}")
        if plan.kind == "reverse_only":
            raise ValueError(
                "plan: 'reverse_only' walks the cache of a rollout, and data come without one; take 'packed' or "
                "'segments'"
            )
        if cache_bytes < 0:
            raise ValueError(f"cache_bytes: expected 0 (keep none) or more, got {cache_bytes}")
        keep_compiled()
        folder = home or os.environ.get("MINTJAX_HOME") or Path.home() / ".mintjax"
        self._session = Session(
            id=uuid.uuid4().hex,
            worker=Worker(),
            store=CheckpointStore(Path(folder)),
            models=dict(models or {}),
            cache_bytes=cache_bytes,
            rows=rows,
            plan=plan,
            seed=seed,
            user_metadata=user_metadata,
        )

    def create_lora_training_client(
        self,
        base_model: str,
        rank: int = 32,
        seed: int | None = None,
        train_mlp: bool = True,
        train_attn: bool = True,
        train_unembed: bool = True,
        user_metadata: dict[str, str] | None = None,
    ) -> TrainingClient:
        """A client that trains a fresh adapter, one that changes nothing yet.

        Args:
            base_model: a name in ``models``, or what ``mintjax.load_policy`` takes.
            rank: of the adapter; its scale is 32 / rank.
            seed: of its initial factors; None is 0.
            train_mlp: whether the MLP's linears have an adapter.
            train_attn: whether the attention's linears have one.
            train_unembed: whether the unembedding has one.
            user_metadata: texts to keep with the run.

        Returns:
            The client, and the future of its creation: for an unknown model, that fails.
        """
        lora = LoraConfig(rank, seed, train_unembed, train_mlp, train_attn)
        run_id = self._session.next_run_id()
        metadata = user_metadata or self._session.user_metadata

        def make() -> Trainee:
            model = self._session.base_model(base_model)
            form = adapters.LoraConfig(rank, _ALPHA, train_attn, train_mlp, train_unembed)
            owner = Owner(run_id, base_model, form, metadata)
            policy = model.with_adapter(form, lora.seed or 0)
            return Trainee(model, owner, init_adjustable(policy))

        return TrainingClient(self._session, make)

    def create_training_client_from_state(
        self,
        path: str,
        base_model: str | None = None,
        user_metadata: dict[str, str] | None = None,
    ) -> TrainingClient:
        """A client that goes on from a checkpoint's adapter, with a new optimizer.

        Args:
            path: what a save returned.
            base_model: what it must be an adapter of; None takes what it is of.
            user_metadata: texts to keep with the new run.
        """
        return self._from_state(path, base_model, user_metadata, optimizer=False)

    def create_training_client_from_state_with_optimizer(
        self,
        path: str,
        base_model: str | None = None,
        user_metadata: dict[str, str] | None = None,
    ) -> TrainingClient:
        """A client that goes on from a checkpoint's adapter and optimizer.

        Args:
            path: what ``save_state`` returned.
            base_model: what it must be an adapter of; None takes what it is of.
            user_metadata: texts to keep with the new run.
        """
        return self._from_state(path, base_model, user_metadata, optimizer=True)

    def create_sampling_client(
        self, model_path: str | None = None, base_model: str | None = None
    ) -> SamplingClient:
        """A client that samples from a checkpoint, or from a base model as it is.

        Args:
            model_path: what a save returned.
            base_model: a model's name.

        Raises:
            ValueError: unless exactly one of the two is given.
        """
        if (model_path is None) == (base_model is None):
            raise ValueError(
                f"model_path, base_model: expected one of them, got {model_path!r} and {base_model!r}"
            )
        session = self._session

        def make() -> Served:
            if model_path is not None:
                return served_checkpoint(session, model_path)
            assert base_model is not None
            model = session.base_model(base_model)
            return Served(model.base_only(), model, base_model)

        return SamplingClient(session, make)

    def create_rest_client(self) -> RestClient:
        """A client for what was saved."""
        return RestClient(self._session)

    def close(self) -> None:
        """Waits for all requests, and takes no more."""
        self._session.worker.close()

    def __enter__(self) -> Self:
        """Use the service for a block; it is closed at the end."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    def _from_state(
        self,
        path: str,
        base_model: str | None,
        user_metadata: dict[str, str] | None,
        *,
        optimizer: bool,
    ) -> TrainingClient:
        session = self._session
        run_id = session.next_run_id()

        def make() -> Trainee:
            parsed = ParsedCheckpointTinkerPath.from_tinker_path(path)
            saved = session.store.record(parsed).owner
            if base_model not in (None, saved.base_model):
                raise RequestFailedError(
                    f"base_model: {path} is an adapter of {saved.base_model!r}, not of {base_model!r}; leave "
                    f"base_model out"
                )
            model = session.base_model(saved.base_model)
            owner = Owner(
                run_id, saved.base_model, saved.lora, user_metadata or session.user_metadata
            )
            live = Trainee(model, owner, init_adjustable(model.with_adapter(saved.lora, 0)))
            load_into(session, live, path, optimizer=optimizer)
            return live

        return TrainingClient(session, make)

    create_lora_training_client_async = created(create_lora_training_client)
    create_training_client_from_state_async = created(create_training_client_from_state)
    create_training_client_from_state_with_optimizer_async = created(
        create_training_client_from_state_with_optimizer
    )
    create_sampling_client_async = created(create_sampling_client)
