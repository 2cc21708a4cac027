"""Order, waiting, cancelling and failing: what any of them leaves behind is a client that works."""

import asyncio
import concurrent.futures
import inspect
import signal
import threading

import pytest

from mintjax.client import RequestFailedError, RestClient, SamplingClient, ServiceClient
from mintjax.client.training import TrainingClient
from mintjax.client.worker import Worker
from mintjax.train.plan import Plan
from mintjax.types import AdamParams, ModelInput, SamplingParams

PROMPT = ModelInput.from_ints([1, 2, 3])
TWO = SamplingParams(max_tokens=2)


@pytest.fixture
def held():
    """A worker that is busy until its gate is opened."""
    worker, gate = Worker(), threading.Event()
    worker.submit(gate.wait)
    yield worker, gate
    gate.set()
    worker.close()


def test_requests_are_carried_out_in_the_order_of_their_calls(held):
    worker, gate = held
    seen = []
    futures = [worker.submit(lambda i=i: seen.append(i)) for i in range(20)]
    gate.set()
    concurrent.futures.wait(futures)
    assert seen == list(range(20))


def test_cancelling_takes_back_what_has_not_begun(held):
    worker, gate = held
    first, second = worker.submit(lambda: 1), worker.submit(lambda: 2)
    assert first.cancel()
    gate.set()
    assert second.result() == 2
    with pytest.raises(concurrent.futures.CancelledError):
        first.result()
    assert not second.cancel()


def test_an_interrupt_while_waiting_ends_the_wait_alone(held):
    worker, gate = held
    future = worker.submit(lambda: 5)
    main = threading.main_thread().ident
    timer = threading.Timer(0.05, signal.pthread_kill, [main, signal.SIGINT])
    # Where the tests run in the background, a shell has set the signal to be ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            future.result()
        timer.join()
    finally:
        signal.signal(signal.SIGINT, before)
    gate.set()
    assert future.result() == 5


def test_waiting_for_a_time(held):
    worker, gate = held
    future = worker.submit(lambda: 5)
    with pytest.raises(TimeoutError):
        future.result(timeout=0)
    with pytest.raises(TimeoutError):
        asyncio.run(worker.submit(lambda: 5).result_async(timeout=0.01))
    gate.set()
    assert future.result(timeout=60) == 5


def test_an_error_belongs_to_its_request():
    worker = Worker()
    bad, good = worker.submit(lambda: 1 / 0), worker.submit(lambda: 3)
    with pytest.raises(RequestFailedError, match="ZeroDivisionError") as caught:
        bad.result()
    assert caught.value.category.value == "server"
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert good.result() == 3
    worker.close()
    with pytest.raises(RequestFailedError, match="closed"):
        worker.submit(lambda: 1)


def test_waiting_on_the_workers_own_thread_is_refused():
    worker = Worker()
    outer = worker.submit(lambda: worker.submit(lambda: 1).result())
    with pytest.raises(RequestFailedError, match="runs after the one that waits for it"):
        outer.result()
    worker.close()


def test_a_creation_is_future_and_client_at_once(service):
    trainer = service.create_lora_training_client("tiny", rank=3)
    assert isinstance(trainer, concurrent.futures.Future) and isinstance(trainer, TrainingClient)
    assert trainer.result() is trainer and trainer.future() is trainer and trainer.done()

    async def awaited():
        return await service.create_sampling_client(base_model="tiny")

    assert isinstance(asyncio.run(awaited()), SamplingClient)


def test_a_creation_that_fails_fails_what_was_asked_of_it(service):
    trainer = service.create_lora_training_client("nowhere")
    future = trainer.optim_step(AdamParams())
    sampler = trainer.save_weights_and_get_sampling_client()
    for waiting in (trainer, future, sampler, sampler.sample(PROMPT, 1, TWO)):
        with pytest.raises(RequestFailedError, match="nowhere: no such file"):
            waiting.result()
    assert service.create_sampling_client(base_model="tiny").sample(PROMPT, 1, TWO).result()


def test_a_cancelled_creation_says_so(service):
    gate = threading.Event()
    service._session.worker.submit(gate.wait)
    trainer = service.create_lora_training_client("tiny")
    step = trainer.optim_step(AdamParams())
    assert trainer.cancel()
    gate.set()
    with pytest.raises(RequestFailedError, match="was cancelled"):
        step.result()


def test_a_program_of_coroutines(service, make_data):
    async def program():
        trainer = await service.create_lora_training_client_async("tiny", rank=3)
        loss = await trainer.forward_backward_async(make_data(), "ppo")
        step = await trainer.optim_step_async(AdamParams())
        assert (await loss).metrics.keys() == {"loss:sum"}
        assert (await step.result_async()).metrics["step"] == 1
        sampler = await trainer.save_weights_and_get_sampling_client_async(name="x")
        both = await asyncio.gather(*(sampler.sample_async(PROMPT, 1, TWO) for _ in range(2)))
        assert [len(response.sequences) for response in both] == [1, 1]
        assert (await sampler.stats_async()).reused == 3
        assert len(await sampler.compute_logprobs_async(PROMPT)) == 3
        assert (await trainer.get_info_async()).lora_rank == 3
        runs = await service.create_rest_client().list_training_runs_async()
        assert runs.training_runs == []

    asyncio.run(program())


def test_a_cancelled_coroutine_takes_its_request_back(held):
    worker, gate = held

    async def program():
        future = worker.submit(lambda: 1)
        task = asyncio.ensure_future(future.result_async())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return future

    assert asyncio.run(program()).cancelled()
    gate.set()
    assert worker.submit(lambda: 2).result() == 2


@pytest.mark.parametrize("client", [ServiceClient, TrainingClient, SamplingClient, RestClient])
def test_every_request_has_its_twin(client):
    inherited = {"result", "result_async", "ready", "close", "create_rest_client"}
    names = {
        name
        for name, _ in inspect.getmembers(client, inspect.isfunction)
        if name in vars(client) and not name.startswith("_") and name not in inherited
    }
    methods = {name for name in names if not name.endswith("_async")}
    assert {f"{name}_async" for name in methods} == names - methods
    assert all(inspect.iscoroutinefunction(getattr(client, name)) for name in names - methods)


def test_a_service_cannot_walk_the_cache_of_a_rollout():
    with pytest.raises(ValueError, match="plan: 'reverse_only' walks the cache of a rollout"):
        ServiceClient(plan=Plan("reverse_only"))
