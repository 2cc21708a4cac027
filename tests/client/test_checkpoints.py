"""Checkpoints on the disk: what comes back, what is refused, and what the REST client says of it."""

from datetime import UTC, datetime, timedelta

import jax
import numpy as np
import pytest

import mintjax.client.checkpoint_store
from mintjax import ServiceClient
from mintjax.client import RequestFailedError
from mintjax.types import AdamParams, ModelInput, SamplingParams

PROMPT = ModelInput.from_ints([1, 2, 3])


def bits(client):
    client._session.worker.submit(lambda: None).result()
    live = client.result()._trainee.train_state
    trees = (live.policy.adapter, live.optimizer_state, live.policy.version)
    return [np.asarray(x).tobytes() for x in jax.tree.leaves(trees)]


def step(client, data, rate=1e-2):
    client.forward_backward(data, "ppo")
    client.optim_step(AdamParams(learning_rate=rate)).result()


def test_a_run_goes_on_from_its_checkpoint_as_if_nothing_had_happened(trainer, service, make_data):
    data = make_data()
    step(trainer, data)
    path = trainer.save_state("one").result().path
    assert path == f"tinker://{trainer.get_info().model_id}/weights/one"
    saved = bits(trainer)
    step(trainer, data)
    went_on = bits(trainer)
    assert trainer.load_state_with_optimizer(path).result().path == path
    assert bits(trainer) == saved
    step(trainer, data)
    assert bits(trainer) == went_on

    copy = service.create_training_client_from_state_with_optimizer(path)
    assert bits(copy) == saved and copy.get_info().lora_rank == 3
    step(copy, data)
    assert bits(copy) == went_on

    weights = service.create_training_client_from_state(path)
    trainer.load_state(path)
    adapter = len(jax.tree.leaves(trainer._trainee.train_state.policy.adapter))
    assert bits(trainer)[:adapter] == saved[:adapter] and bits(trainer) == bits(weights) != saved


def test_loading_drops_a_gradient_that_was_not_stepped_with(trainer, make_data):
    path = trainer.save_state("one").result().path
    trainer.forward_backward(make_data(), "ppo")
    trainer.load_state(path)
    with pytest.raises(RequestFailedError, match="no gradient"):
        trainer.optim_step(AdamParams()).result()


def test_a_sampler_checkpoint_outlives_its_process(trainer, service, models, make_data):
    step(trainer, make_data())
    path = trainer.save_weights_for_sampler("best").result().path
    want = trainer.save_weights_and_get_sampling_client().compute_logprobs(PROMPT).result()
    step(trainer, make_data())
    with ServiceClient(home=service._session.store.home, models=models) as later:
        client = later.create_sampling_client(model_path=path)
        assert client.compute_logprobs(PROMPT).result() == want
        assert client.get_base_model() == "tiny"
    assert trainer.create_sampling_client(path).compute_logprobs(PROMPT).result() == want
    with pytest.raises(RequestFailedError, match="saved for sampling and has no optimizer state"):
        trainer.load_state_with_optimizer(path).result()
    trainer.load_state(path).result()


def test_an_adapter_that_does_not_fit_is_refused(trainer, service):
    path = trainer.save_state("one").result().path
    before = bits(trainer)
    other = service.create_lora_training_client("other", rank=3)
    with pytest.raises(
        RequestFailedError, match=r"adapter of 'tiny', and this client trains 'other'"
    ):
        other.load_state(path).result()
    wide = service.create_lora_training_client("tiny", rank=5, train_mlp=False)
    with pytest.raises(RequestFailedError, match=r"rank 3 there and 5 here.*train_mlp True there"):
        wide.load_state(path).result()
    with pytest.raises(RequestFailedError, match=r"adapter of 'tiny', not of 'other'"):
        service.create_training_client_from_state(path, base_model="other").result()
    assert bits(trainer) == before


def test_a_damaged_checkpoint_is_refused(trainer, service):
    path = trainer.save_state("one").result().path
    (home,) = service._session.store.home.glob("*/weights/one/trees")
    file = max((p for p in home.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    before = bits(trainer)
    with pytest.raises(RequestFailedError, match="is damaged"):
        trainer.load_state(path).result()
    assert bits(trainer) == before


def test_a_save_that_was_cut_off_is_no_checkpoint(trainer, service, monkeypatch):
    def cut(*_):
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(mintjax.client.checkpoint_store, "_write", cut)
        with pytest.raises(RequestFailedError, match="disk full") as caught:
            trainer.save_state("one").result()
    assert caught.value.category.value == "server"
    rest = service.create_rest_client()
    assert rest.list_user_checkpoints().result().checkpoints == []
    assert trainer.save_state("one").result()


def test_a_name_is_overwritten_only_when_asked(trainer, make_data):
    trainer.save_state("one").result()
    with pytest.raises(RequestFailedError, match=r"weights/one exists; save with overwrite=True"):
        trainer.save_state("one").result()
    step(trainer, make_data())
    path = trainer.save_state("one", overwrite=True).result().path
    after = bits(trainer)
    step(trainer, make_data())
    trainer.load_state_with_optimizer(path)
    assert bits(trainer) == after


def test_the_rest_client_lists_describes_and_deletes(trainer, service, monkeypatch):
    rest = service.create_rest_client()
    assert rest.list_training_runs().result().training_runs == []
    info = {"renderer": "chatml"}
    first = trainer.save_state("one", user_metadata=info).result().path
    second = trainer.save_weights_for_sampler("two", ttl_seconds=3600).result().path
    other = service.create_lora_training_client("other", rank=2, train_mlp=False)
    third = other.save_state("one").result().path

    runs = rest.list_training_runs().result()
    ids = [run.training_run_id for run in runs.training_runs]
    assert ids == [other.get_info().model_id, trainer.get_info().model_id]
    assert [(run.base_model, run.lora_rank) for run in runs.training_runs] == [
        ("other", 2),
        ("tiny", 3),
    ]
    assert rest.list_training_runs(1, 1).result().training_runs == runs.training_runs[1:]
    run = rest.get_training_run(ids[1]).result()
    assert run == rest.get_training_run_by_tinker_path(first).result() == runs.training_runs[1]
    assert run.last_checkpoint.tinker_path == first
    assert run.last_sampler_checkpoint.tinker_path == second

    one = rest.list_checkpoints(ids[1]).result().checkpoints[1]
    assert (one.checkpoint_id, one.checkpoint_type) == ("weights/one", "training")
    assert one.user_metadata == info and one.expires_at is None and one.size_bytes > 1000
    paths = [c.tinker_path for c in rest.list_user_checkpoints().result().checkpoints]
    assert paths == [third, second, first]
    weights = rest.get_weights_info_by_tinker_path(third).result()
    assert (weights.base_model, weights.lora_rank, weights.train_mlp) == ("other", 2, False)
    assert weights.train_attn and weights.train_unembed
    (session,) = rest.list_sessions().result().sessions
    assert rest.get_session(session).result().training_run_ids == ids
    names = [m.model_name for m in rest.get_server_capabilities().result().supported_models]
    assert names == ["tiny", "other", "smollm2-135m-instruct"]

    rest.delete_checkpoint(ids[0], "weights/one").result()
    assert [r.training_run_id for r in rest.list_training_runs().result().training_runs] == [ids[1]]
    rest.set_checkpoint_ttl_from_tinker_path(first, 60).result()

    class Later(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.now(tz) + timedelta(minutes=2)

    with monkeypatch.context() as patch:
        patch.setattr(mintjax.client.checkpoint_store, "datetime", Later)
        with pytest.raises(RequestFailedError, match="is not in"):
            trainer.load_state(first).result()
        (left,) = rest.list_user_checkpoints().result().checkpoints
    assert left.tinker_path == second
    assert left.expires_at - datetime.now(UTC) < timedelta(hours=1)
    rest.set_checkpoint_ttl_from_tinker_path(second, None).result()
    assert rest.list_checkpoints(ids[1]).result().checkpoints[0].expires_at is None
    rest.delete_checkpoint_from_tinker_path(second).result()
    assert not any(service._session.store.home.iterdir())
    with pytest.raises(RequestFailedError, match="is not in"):
        rest.delete_checkpoint_from_tinker_path(second).result()


def test_a_sampling_client_of_a_checkpoint_samples(trainer):
    path = trainer.save_weights_for_sampler("a").result().path
    client = trainer.create_sampling_client(path)
    params = SamplingParams(max_tokens=2, temperature=0, stop=[])
    assert len(client.sample(PROMPT, 1, params).result().sequences[0].tokens) == 2
