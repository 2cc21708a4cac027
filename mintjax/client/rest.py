"""The REST client: runs and checkpoints on the disk."""

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from mintjax.client.checkpoint_store import CheckpointStore, Record
from mintjax.client.errors import RequestFailedError
from mintjax.client.futures import Future, awaited
from mintjax.client.session import Session
from mintjax.types import (
    Checkpoint,
    CheckpointsListResponse,
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
from mintjax.weights.registry import MODELS

# What needs a server with accounts, links or other people.
_NOT_LOCAL = (
    "assign_session_project",
    "copy_weights",
    "export_session_trace",
    "get_external_weights_urls",
    "get_sampler",
    "publish_checkpoint_from_tinker_path",
    "search_sessions",
    "unpublish_checkpoint_from_tinker_path",
    "whoami",
)


class RestClient:
    """Lists, describes and deletes what training clients saved, in this process or an earlier one.

    A run is listed from its first save on. Requests stand in one line with those of the service's other clients.

    Example:
        >>> service_client.create_rest_client().list_training_runs().result().training_runs
        []
    """

    def __init__(self, session: Session) -> None:
        """For :class:`ServiceClient` to call."""
        self._session = session

    def list_training_runs(self, limit: int = 20, offset: int = 0) -> Future[TrainingRunsResponse]:
        """Runs, the one that saved last first; ``limit`` of them after the first ``offset``."""

        def runs(store: CheckpointStore) -> TrainingRunsResponse:
            found = _runs(store.records())
            part = _page(found, limit, offset)
            return TrainingRunsResponse(part, Cursor(offset, limit, len(found)))

        return self._submit(runs)

    def get_training_run(self, training_run_id: str) -> Future[TrainingRun]:
        """One run.

        Raises:
            RequestFailedError: in the future, where no run of that name saved anything.
        """
        return self._submit(lambda store: _run(store, training_run_id))

    def get_training_run_by_tinker_path(self, tinker_path: str) -> Future[TrainingRun]:
        """The run of a checkpoint."""

        def run(store: CheckpointStore) -> TrainingRun:
            return _run(store, store.record(_parsed(tinker_path)).owner.run_id)

        return self._submit(run)

    def get_weights_info_by_tinker_path(self, tinker_path: str) -> Future[WeightsInfoResponse]:
        """What a checkpoint's adapter stands beside, and its form."""

        def info(store: CheckpointStore) -> WeightsInfoResponse:
            owner = store.record(_parsed(tinker_path)).owner
            return WeightsInfoResponse(
                base_model=owner.base_model,
                is_lora=True,
                lora_rank=owner.lora.rank,
                train_unembed=owner.lora.train_unembed,
                train_mlp=owner.lora.train_mlp,
                train_attn=owner.lora.train_attn,
            )

        return self._submit(info)

    def list_checkpoints(self, training_run_id: str) -> Future[CheckpointsListResponse]:
        """All checkpoints of a run, the newest first."""

        def checkpoints(store: CheckpointStore) -> CheckpointsListResponse:
            _run(store, training_run_id)
            return CheckpointsListResponse(
                [r.checkpoint for r in store.records() if r.owner.run_id == training_run_id]
            )

        return self._submit(checkpoints)

    def list_user_checkpoints(
        self, limit: int = 100, offset: int = 0
    ) -> Future[CheckpointsListResponse]:
        """Checkpoints of all runs, the newest first; ``limit`` of them after the first ``offset``."""

        def checkpoints(store: CheckpointStore) -> CheckpointsListResponse:
            found = [record.checkpoint for record in store.records()]
            part = _page(found, limit, offset)
            return CheckpointsListResponse(part, Cursor(offset, limit, len(found)))

        return self._submit(checkpoints)

    def delete_checkpoint(self, training_run_id: str, checkpoint_id: str) -> Future[None]:
        """Deletes a checkpoint, named as ``"weights/<name>"``, for good."""
        path = f"tinker://{training_run_id}/{checkpoint_id}"
        return self.delete_checkpoint_from_tinker_path(path)

    def delete_checkpoint_from_tinker_path(self, tinker_path: str) -> Future[None]:
        """Deletes a checkpoint for good."""
        return self._submit(lambda store: store.delete(_parsed(tinker_path)))

    def set_checkpoint_ttl_from_tinker_path(
        self, tinker_path: str, ttl_seconds: int | None
    ) -> Future[None]:
        """Sets after how long from now a checkpoint is deleted; None is never.

        It goes when it is next looked for or listed after that.
        """
        return self._submit(lambda store: store.set_ttl(_parsed(tinker_path), ttl_seconds))

    def get_session(self, session_id: str) -> Future[GetSessionResponse]:
        """The runs that a service client saved."""

        def session(store: CheckpointStore) -> GetSessionResponse:
            found = [
                run.training_run_id
                for run in _runs(store.records())
                if _session_of(run.training_run_id) == session_id
            ]
            if not found:
                raise RequestFailedError(
                    f"session_id: no run of {session_id!r} is in {store.home}; list_sessions names those that are"
                )
            return GetSessionResponse(found)

        return self._submit(session)

    def list_sessions(self, limit: int = 20, offset: int = 0) -> Future[ListSessionsResponse]:
        """Service clients that saved something, the last one first."""

        def sessions(store: CheckpointStore) -> ListSessionsResponse:
            found = [_session_of(run.training_run_id) for run in _runs(store.records())]
            return ListSessionsResponse(_page(list(dict.fromkeys(found)), limit, offset))

        return self._submit(sessions)

    def get_server_capabilities(self) -> Future[GetServerCapabilitiesResponse]:
        """The models that have a name here; paths and hub ids serve as well."""
        given = self._session.models
        models = [SupportedModel(n, m.policy.config.context) for n, m in given.items()]
        models += [SupportedModel(name) for name in MODELS if name not in given]
        return self._submit(lambda store: GetServerCapabilitiesResponse(models))

    list_training_runs_async = awaited(list_training_runs)
    get_training_run_async = awaited(get_training_run)
    get_training_run_by_tinker_path_async = awaited(get_training_run_by_tinker_path)
    get_weights_info_by_tinker_path_async = awaited(get_weights_info_by_tinker_path)
    list_checkpoints_async = awaited(list_checkpoints)
    list_user_checkpoints_async = awaited(list_user_checkpoints)
    delete_checkpoint_async = awaited(delete_checkpoint)
    delete_checkpoint_from_tinker_path_async = awaited(delete_checkpoint_from_tinker_path)
    set_checkpoint_ttl_from_tinker_path_async = awaited(set_checkpoint_ttl_from_tinker_path)
    get_session_async = awaited(get_session)
    list_sessions_async = awaited(list_sessions)
    get_server_capabilities_async = awaited(get_server_capabilities)

    def __getattr__(self, name: str) -> Any:
        """Methods of a remote service, which say on a call that there is none."""
        if name.removesuffix("_async") not in _NOT_LOCAL:
            raise AttributeError(f"RestClient has no method {name!r}")

        def refuse(*_: Any, **__: Any) -> NoReturn:
            raise RequestFailedError(f"{name}: not supported locally; it needs a remote service")

        return refuse

    def _submit(self, call: Callable[[CheckpointStore], Any]) -> Future[Any]:
        return self._session.worker.submit(lambda: call(self._session.store))


def _parsed(path: str) -> ParsedCheckpointTinkerPath:
    return ParsedCheckpointTinkerPath.from_tinker_path(path)


def _page(found: Sequence[Any], limit: int, offset: int) -> list[Any]:
    """Part of a listing."""
    if limit < 1 or offset < 0:
        raise RequestFailedError(
            f"limit, offset: expected a limit of at least 1 and an offset of at least 0, got {limit} and {offset}"
        )
    return list(found[offset : offset + limit])


def _runs(records: Sequence[Record]) -> list[TrainingRun]:
    """Runs in the order of their newest checkpoint."""
    by_run: dict[str, list[Record]] = {}
    for record in records:
        by_run.setdefault(record.owner.run_id, []).append(record)
    return [_described(own) for own in by_run.values()]


def _described(records: Sequence[Record]) -> TrainingRun:
    """A run by its checkpoints, the newest first."""
    owner = records[0].owner

    def newest(kind: str) -> Checkpoint | None:
        return next((r.checkpoint for r in records if r.checkpoint.checkpoint_type == kind), None)

    return TrainingRun(
        training_run_id=owner.run_id,
        base_model=owner.base_model,
        model_owner="local",
        is_lora=True,
        lora_rank=owner.lora.rank,
        last_request_time=records[0].checkpoint.time,
        last_checkpoint=newest("training"),
        last_sampler_checkpoint=newest("sampler"),
        user_metadata=owner.user_metadata,
    )


def _run(store: CheckpointStore, run_id: str) -> TrainingRun:
    own = [record for record in store.records() if record.owner.run_id == run_id]
    if not own:
        raise RequestFailedError(
            f"training_run_id: {run_id!r} saved nothing in {store.home}; list_training_runs names those that did"
        )
    return _described(own)


def _session_of(run_id: str) -> str:
    """The service client's part of a run's name."""
    return run_id.rsplit(":train:", 1)[0]
