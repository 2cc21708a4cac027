"""The training client: gradients of one adapter, steps, and its checkpoints."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mintjax.adapters import Adapter
from mintjax.client.base_models import BaseModel
from mintjax.client.checkpoint_store import Owner
from mintjax.client.datums import (
    LossCall,
    as_tensors,
    lay_out,
    loss_call,
    outputs,
    uses_sampled_logprobs,
)
from mintjax.client.errors import RequestFailedError
from mintjax.client.futures import Creation, Future, created, submitted
from mintjax.client.sampling import SamplingClient, Served
from mintjax.client.session import Session
from mintjax.train.custom_loss import custom_gradients
from mintjax.train.gradients import add_gradients, evaluate, gradients
from mintjax.train.optimizer import (
    AdamSettings,
    TrainState,
    adjusted_update,
    global_norm,
    init_adjustable,
)
from mintjax.types import (
    AdamParams,
    CheckpointType,
    Datum,
    ForwardBackwardOutput,
    GetInfoResponse,
    LoadWeightsResponse,
    ModelData,
    OptimStepResponse,
    ParsedCheckpointTinkerPath,
    SaveWeightsForSamplerResponse,
    SaveWeightsResponse,
)

CustomLoss = Callable[[Sequence[Datum], list[Any]], tuple[Any, Mapping[str, Any]]]


@dataclass
class Trainee:
    """What is trained, on the worker's thread alone.

    Attributes:
        model: the base model.
        owner: the run, and what its checkpoints are of.
        train_state: the policy and its optimizer.
        grads: the sum of the gradients since the last step; None where there was none.
    """

    model: BaseModel
    owner: Owner
    train_state: TrainState
    grads: Adapter | None = None


class TrainingClient(Creation):
    """Trains one LoRA adapter. Requests are carried out in the order of their calls, so none needs waiting for.

    Made by :class:`ServiceClient`. It is its own future: ``result()`` and ``await`` wait until it is there.

    Example:
        >>> client = service_client.create_lora_training_client("smollm2-135m-instruct", rank=16)
        >>> loss = client.forward_backward(data, "cross_entropy")
        >>> client.optim_step(types.AdamParams(learning_rate=1e-4)).result()
        >>> loss.result().metrics["loss:sum"]
    """

    def __init__(self, session: Session, make: Callable[[], Trainee]) -> None:
        """Queue the making of what is trained; for :class:`ServiceClient` to call."""
        super().__init__()
        self._session = session
        self._trainee: Trainee | None = None
        session.worker.submit_into(self, lambda: self._start(make))

    def forward(
        self, data: Sequence[Datum], loss_fn: str, loss_fn_config: Mapping[str, float] | None = None
    ) -> Future[ForwardBackwardOutput]:
        """The loss and the log probabilities of data, without a gradient.

        Args:
            data: as for :meth:`forward_backward`.
            loss_fn: its name.
            loss_fn_config: its settings.

        Returns:
            What :meth:`forward_backward` returns.
        """
        data = self._warned(data, loss_fn, loss_fn_config)
        return self._submit(lambda live: self._forward(live, data, loss_fn, loss_fn_config))

    def forward_backward(
        self, data: Sequence[Datum], loss_fn: str, loss_fn_config: Mapping[str, float] | None = None
    ) -> Future[ForwardBackwardOutput]:
        """Adds the gradient of a loss, a sum over all tokens, to that of the calls since the last step.

        Args:
            data: any number of any lengths.
            loss_fn: ``"cross_entropy"`` (needs ``target_tokens, weights``; targets may be ``[N, K]``),
                ``"importance_sampling"``, ``"ppo"``, ``"cispo"`` or ``"dro"`` (``target_tokens, logprobs, advantages``).
                ``"dro"`` takes ``weights`` too, 1 on sampled tokens; without them a token whose log probability and
                advantage are both 0 counts as not sampled.
            loss_fn_config: ``temperature``, the one that ``logprobs`` are of (1); ``clip_low_threshold`` and
                ``clip_high_threshold``, as ratios (ppo: 0.8 and 1.2; cispo: 0 and 4); ``beta`` (dro: 0.05). All but the
                temperature are compiled in: keep them the same from call to call.

        Returns:
            ``metrics["loss:sum"]``, and the log probabilities of every target.

        Raises:
            RequestFailedError: in the future, for data that do not fit the loss or the model, or a loss that is not
                finite. Nothing is added then.

        Warns:
            UserWarning: once, where a sampling client of this service was asked for another temperature than 1 and a
                loss that uses the sampler's log probabilities is not told which.
        """
        data = self._warned(data, loss_fn, loss_fn_config)
        return self._submit(
            lambda live: self._forward_backward(live, data, loss_fn, loss_fn_config)
        )

    def forward_backward_custom(
        self, data: Sequence[Datum], loss_fn: CustomLoss, *, temperature: float = 1.0
    ) -> Future[ForwardBackwardOutput]:
        """The same for a loss of your own, in one forward and one backward pass.

        Args:
            data: each with ``target_tokens`` at least; the other inputs are for the loss to read.
            loss_fn: a JAX function of the data and of their log probabilities, an array for each datum shaped as its
                targets. It returns a scalar and metrics by name, and is run once, uncompiled, on the worker's thread.
            temperature: what logits are divided by.

        Returns:
            ``metrics["loss:sum"]``, the loss's own metrics, and the log probabilities.

        Raises:
            RequestFailedError: in the future, as for :meth:`forward_backward`, or where the loss raises.

        Example:
            >>> def loss(data, logprobs):
            ...     return -sum(x.sum() for x in logprobs), {}
            >>> client.forward_backward_custom(data, loss)
        """
        data = list(data)
        call = LossCall("custom", None, float(temperature))
        return self._submit(lambda live: self._custom(live, data, loss_fn, call))

    def optim_step(
        self, optim_params: AdamParams | None = None, *, adam_params: AdamParams | None = None
    ) -> Future[OptimStepResponse]:
        """Makes one AdamW step with the gradient that was summed up, and starts a new sum.

        Args:
            optim_params: this step's.
            adam_params: the same by its older name.

        Returns:
            The gradient's norm, and the number of the step.

        Raises:
            TypeError: at once, unless there is exactly one ``AdamParams``.
            RequestFailedError: in the future, where there is no gradient, it is not finite (it is dropped then), or a
                parameter cannot be.
        """
        given = [params for params in (optim_params, adam_params) if params is not None]
        if len(given) != 1 or not isinstance(given[0], AdamParams):
            raise TypeError(
                f"optim_params: expected one AdamParams, got {[type(x).__name__ for x in given]}"
            )
        return self._submit(lambda live: _optim_step(live, given[0]))

    def save_state(
        self,
        name: str,
        ttl_seconds: int | None = None,
        overwrite: bool = False,
        user_metadata: dict[str, str] | None = None,
    ) -> Future[SaveWeightsResponse]:
        """Saves the adapter and the optimizer's state to the disk.

        Args:
            name: letters, digits, ``.``, ``_`` and ``-``.
            ttl_seconds: after how long it is deleted; None is never.
            overwrite: whether to replace a checkpoint of this run and name.
            user_metadata: texts to keep with it.

        Returns:
            Its path, ``tinker://<run>/weights/<name>``. A gradient that was not stepped with is not in it.
        """

        def save(live: Trainee) -> SaveWeightsResponse:
            trees = {"optimizer": live.train_state.optimizer_state}
            options = {"ttl_seconds": ttl_seconds, "user_metadata": user_metadata}
            path = self._save(live, "training", name, trees, overwrite=overwrite, **options)
            return SaveWeightsResponse(path)

        return self._submit(save)

    def save_weights_for_sampler(
        self,
        name: str,
        ttl_seconds: int | None = None,
        user_metadata: dict[str, str] | None = None,
    ) -> Future[SaveWeightsForSamplerResponse]:
        """Saves the adapter alone to the disk, for ``create_sampling_client``.

        Args:
            name: as for :meth:`save_state`.
            ttl_seconds: after how long it is deleted; None is never.
            user_metadata: texts to keep with it.

        Returns:
            Its path, ``tinker://<run>/sampler_weights/<name>``.
        """

        def save(live: Trainee) -> SaveWeightsForSamplerResponse:
            options = {"ttl_seconds": ttl_seconds, "user_metadata": user_metadata}
            return SaveWeightsForSamplerResponse(self._save(live, "sampler", name, {}, **options))

        return self._submit(save)

    def load_state(self, path: str) -> Future[LoadWeightsResponse]:
        """Takes a checkpoint's adapter, and starts the optimizer anew. A gradient that was summed up is dropped.

        Args:
            path: what a save returned.

        Raises:
            RequestFailedError: in the future, where it is missing, damaged, or of another base model or rank.
        """
        return self._submit(lambda live: self._load(live, path, optimizer=False))

    def load_state_with_optimizer(self, path: str) -> Future[LoadWeightsResponse]:
        """Takes a checkpoint's adapter and optimizer, to go on as if nothing had happened since.

        Args:
            path: what :meth:`save_state` returned.

        Raises:
            RequestFailedError: in the future, as for :meth:`load_state`, or where it has no optimizer's state.
        """
        return self._submit(lambda live: self._load(live, path, optimizer=True))

    def save_weights_and_get_sampling_client(self, name: str | None = None) -> SamplingClient:
        """A client that samples from the adapter as it is after all requests so far.

        Nothing is written to the disk: the snapshot lives as long as its client.

        Args:
            name: not used; scripts give one.
        """
        del name

        def snapshot() -> Served:
            live = self._live()
            return Served(live.train_state.policy, live.model, live.owner.base_model)

        return SamplingClient(self._session, snapshot)

    def create_sampling_client(self, model_path: str) -> SamplingClient:
        """A client that samples from a checkpoint on the disk, of this run or another.

        Args:
            model_path: what a save returned.
        """
        return SamplingClient(self._session, lambda: served_checkpoint(self._session, model_path))

    forward_async = submitted(forward)
    forward_backward_async = submitted(forward_backward)
    forward_backward_custom_async = submitted(forward_backward_custom)
    optim_step_async = submitted(optim_step)
    save_state_async = submitted(save_state)
    save_weights_for_sampler_async = submitted(save_weights_for_sampler)
    load_state_async = submitted(load_state)
    load_state_with_optimizer_async = submitted(load_state_with_optimizer)
    save_weights_and_get_sampling_client_async = created(save_weights_and_get_sampling_client)
    create_sampling_client_async = created(create_sampling_client)

    def get_info(self) -> GetInfoResponse:
        """What is trained; waits until the client is there."""
        return _info(self.result()._live())

    def get_tokenizer(self) -> Any:
        """The base model's tokenizer; waits until the client is there."""
        return self.result()._live().model.tokenizer

    async def get_info_async(self) -> GetInfoResponse:
        """The twin of :meth:`get_info`."""
        return _info((await self)._live())

    async def get_tokenizer_async(self) -> Any:
        """The twin of :meth:`get_tokenizer`."""
        return (await self)._live().model.tokenizer

    def _submit(self, call: Callable[[Trainee], Any]) -> Future[Any]:
        return self._session.worker.submit(lambda: call(self._live()))

    def _warned(
        self, data: Sequence[Datum], loss_fn: str, config: Mapping[str, float] | None
    ) -> list[Datum]:
        """The data as they are now, after a look at the temperature."""
        session = self._session
        told = "temperature" in (config or {})
        hot = session.sampled_hot
        if hot is not None and not session.warned and not told and uses_sampled_logprobs(loss_fn):
            session.warned = True
            warnings.warn(
                f"loss_fn_config: no temperature, though a sampling client was asked for {hot}; log probabilities of "
                f"such samples are of that temperature, and their ratio to others is biased. Pass "
                f"loss_fn_config={{'temperature': {hot}}}, or 1 for samples taken at 1",
                UserWarning,
                stacklevel=3,
            )
        return list(data)

    # ----------------------------------------------------------------------------------------------
    # What follows runs on the worker's thread.

    def _start(self, make: Callable[[], Trainee]) -> None:
        self._trainee = make()

    def _live(self) -> Trainee:
        """What is trained; if its creation failed, that error."""
        self.ready()
        assert self._trainee is not None
        return self._trainee

    def _forward(self, live: Trainee, data, loss_fn, config) -> ForwardBackwardOutput:
        call = loss_call(loss_fn, config)
        policy, plan = live.train_state.policy, self._session.plan
        laid = lay_out(data, call, policy.config, self._session.rows)
        found = [evaluate(policy, batch, _loss(call), plan) for batch, _ in laid]
        value = sum(float(metrics.loss) for metrics in found)
        return _output(value, {}, outputs(laid, [metrics.logprobs for metrics in found], data))

    def _forward_backward(self, live: Trainee, data, loss_fn, config) -> ForwardBackwardOutput:
        call = loss_call(loss_fn, config)
        policy, plan = live.train_state.policy, self._session.plan
        laid = lay_out(data, call, policy.config, self._session.rows)
        total, value, logprobs = None, 0.0, []
        for batch, _ in laid:
            grads, metrics = gradients(policy, batch, _loss(call), plan)
            total = grads if total is None else add_gradients(total, grads)
            value += float(metrics.loss)
            logprobs.append(metrics.logprobs)
        _accumulate(live, value, total)
        return _output(value, {}, outputs(laid, logprobs, data))

    def _custom(self, live: Trainee, data, loss_fn: CustomLoss, call: LossCall):
        policy, plan = live.train_state.policy, self._session.plan
        laid = lay_out(data, call, policy.config, self._session.rows)

        def joint(scores):
            return loss_fn(data, outputs(laid, scores, data))

        try:
            found = custom_gradients(policy, [batch for batch, _ in laid], joint, plan)
        except Exception as error:
            raise RequestFailedError(f"loss_fn: {type(error).__name__}: {error}") from error
        value = float(found.loss)
        _accumulate(live, value, found.grads)
        metrics = {name: float(number) for name, number in found.aux.items()}
        return _output(value, metrics, outputs(laid, found.logprobs, data))

    def _save(
        self,
        live: Trainee,
        kind: CheckpointType,
        name: str,
        trees: Mapping[str, Any],
        **options: Any,
    ) -> str:
        path = ParsedCheckpointTinkerPath.of(live.owner.run_id, kind, name)
        trees = {"adapter": live.train_state.policy.adapter, **trees}
        step = int(live.train_state.step)
        self._session.store.save(path, live.owner, trees, step=step, **options)
        return path.tinker_path

    def _load(self, live: Trainee, path: str, *, optimizer: bool) -> LoadWeightsResponse:
        load_into(self._session, live, path, optimizer=optimizer)
        return LoadWeightsResponse(path, live.owner.run_id)


def load_into(session: Session, live: Trainee, path: str, *, optimizer: bool) -> None:
    """Gives a trainee a checkpoint's adapter, and its optimizer's state or a new one.

    Raises:
        RequestFailedError: where the checkpoint is missing or does not fit.
    """
    state = live.train_state
    trees: dict[str, Any] = {"adapter": state.policy.adapter}
    if optimizer:
        trees["optimizer"] = state.optimizer_state
    found = session.store.load(ParsedCheckpointTinkerPath.from_tinker_path(path), trees, live.owner)
    step = np.int32(found["state"]["step"])
    policy = state.policy.replace(adapter=found["adapter"], version=step)
    live.train_state = (
        state.replace(policy=policy, optimizer_state=found["optimizer"])
        if optimizer
        else init_adjustable(policy)
    )
    live.grads = None


def served_checkpoint(session: Session, path: str) -> Served:
    """A checkpoint's policy, to sample from.

    Raises:
        RequestFailedError: where the checkpoint is missing or damaged.
    """
    parsed = ParsedCheckpointTinkerPath.from_tinker_path(path)
    owner = session.store.record(parsed).owner
    model = session.base_model(owner.base_model)
    policy = model.with_adapter(owner.lora, 0)
    found = session.store.load(parsed, {"adapter": policy.adapter}, owner)
    version = np.int32(found["state"]["step"])
    policy = policy.replace(adapter=found["adapter"], version=version)
    return Served(policy, model, owner.base_model)


def _loss(call: LossCall):
    assert call.loss is not None  # only a custom call has none
    return call.loss


def _accumulate(live: Trainee, value: float, grads: Adapter | None) -> None:
    """Add a call's gradient to those before it."""
    if not np.isfinite(value):
        raise RequestFailedError(
            f"loss_fn: the loss is {value}, so its gradient was not added; look for advantages or log probabilities "
            f"that are far off, and for a learning rate that is too high"
        )
    assert grads is not None  # lay_out refuses no data
    live.grads = grads if live.grads is None else add_gradients(live.grads, grads)


def _output(value: float, metrics: Mapping[str, float], logprobs: list[Any]):
    return ForwardBackwardOutput(
        "ArrayRecord", as_tensors(logprobs), {"loss:sum": value, **metrics}
    )


def _optim_step(live: Trainee, params: AdamParams) -> OptimStepResponse:
    """Check a step's parameters, and make it."""
    checks = [
        ("learning_rate", params.learning_rate >= 0, "0 or more"),
        ("beta1", 0 <= params.beta1 < 1, "from 0 to below 1"),
        ("beta2", 0 <= params.beta2 < 1, "from 0 to below 1"),
        ("eps", params.eps > 0, "above 0"),
        ("weight_decay", params.weight_decay >= 0, "0 or more"),
        ("grad_clip_norm", params.grad_clip_norm >= 0, "0 (off) or more"),
    ]
    for name, right, expected in checks:
        value = getattr(params, name)
        if not right or not np.isfinite(value):
            raise RequestFailedError(f"adam_params.{name}: expected {expected}, got {value}")
    if live.grads is None:
        raise RequestFailedError(
            "optim_step: there is no gradient since the last step; call forward_backward before it"
        )
    grads, live.grads = live.grads, None
    norm = float(global_norm(grads))
    if not np.isfinite(norm):
        raise RequestFailedError(
            f"optim_step: the gradient's norm is {norm}, so it was dropped and no step was made; look for advantages "
            f"or log probabilities that are far off"
        )
    settings = AdamSettings(
        learning_rate=params.learning_rate,
        b1=params.beta1,
        b2=params.beta2,
        eps=params.eps,
        weight_decay=params.weight_decay,
        clip_norm=params.grad_clip_norm or float("inf"),
    )
    live.train_state = adjusted_update(live.train_state, grads, settings)
    return OptimStepResponse({"grad_norm": norm, "step": float(live.train_state.step)})


def _info(live: Trainee) -> GetInfoResponse:
    name = live.owner.base_model
    return GetInfoResponse(
        model_data=ModelData(arch="decoder", model_name=name, tokenizer_id=name),
        model_id=live.owner.run_id,
        is_lora=True,
        lora_rank=live.owner.lora.rank,
        model_name=name,
    )
