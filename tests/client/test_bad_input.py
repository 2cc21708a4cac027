"""Requests that cannot be: an error of Tinker's category that names the field and the cure, and a client that works."""

import numpy as np
import pytest

from mintjax.client import RequestErrorCategory, RequestFailedError
from mintjax.types import AdamParams, Datum, ModelInput, SamplingParams, TensorData

PROMPT = ModelInput.from_ints([1, 2, 3])


def datum(n=3, ids=(1, 2, 3), **inputs):
    arrays = {"target_tokens": [2, 3, 4][:n], "logprobs": [-1.0] * n, "advantages": [1.0] * n}
    return Datum(ModelInput.from_ints(ids), arrays | inputs)


def train(data, loss="ppo", config=None):
    return lambda clients: clients["trainer"].forward_backward(data, loss, config)


def sample(prompt=PROMPT, count=1, **params):
    return lambda clients: clients["sampler"].sample(prompt, count, SamplingParams(**params))


def step(**params):
    return lambda clients: clients["trainer"].optim_step(AdamParams(**params))


def custom(loss):
    return lambda clients: clients["trainer"].forward_backward_custom([datum()], loss)


def rest(method, *args):
    return lambda clients: getattr(clients["service"].create_rest_client(), method)(*args)


def loop(data, logprobs):
    raise KeyError("mine")


PATH = "tinker://a:train:0/weights/none"
CASES = {
    "no data": (train([]), r"data: expected at least one Datum, got none"),
    "wrong length": (
        train([datum(), datum(n=2)]),
        r"data\[1\].*'target_tokens'\].*\[3\].*got \[2\]",
    ),
    "wrong length of another": (
        train([datum(advantages=[1.0])]),
        r"data\[0\].*'advantages'\]: expected the targets' shape \[3\], got \[1\]",
    ),
    "choices in a policy loss": (
        train([datum(target_tokens=np.ones((3, 2), np.int64))]),
        r"'target_tokens'\]: expected the shape \[3\], an entry",
    ),
    "not finite": (train([datum(logprobs=[0, float("nan"), 0])]), r"'logprobs'\].*finite.*nan"),
    "unknown loss": (
        train([datum()], "gspo"),
        r"loss_fn: 'gspo' is unknown; there are cross_entropy",
    ),
    "unknown input": (
        train([datum(mask=TensorData([1.0, 1, 1], "float32"))]),
        r"data\[0\].*'mask' is unknown for ppo.*leave it out",
    ),
    "missing input": (
        train([datum()], "cross_entropy"),
        r"'weights' is missing; cross_entropy needs",
    ),
    "unknown setting": (
        train([datum()], "ppo", {"beta": 1}),
        r"'beta'\]: unknown for ppo; it takes",
    ),
    "setting of another kind": (
        train([datum()], "dro", {"beta": "x"}),
        r"'beta'\].*number, got 'x'",
    ),
    "greedy temperature": (
        train([datum()], "ppo", {"temperature": 0}),
        r"'temperature'\].*above 0",
    ),
    "weights that scale": (train([datum(weights=[0, 1, 2])], "dro"), r"1 on tokens.*got 2\.0"),
    "id past the vocabulary": (train([datum(ids=(1, 2, 100))]), r"0 to 99.*got 100 at place 2"),
    "label past the vocabulary": (train([datum(target_tokens=[1, -1, 2])]), r"got -1 at place 1"),
    "datum past the context": (
        train([datum(ids=[1] * 513, target_tokens=[1] * 513)]),
        r"model_input: expected 1 to 512 tokens.*got 513",
    ),
    "loss that is nan": (
        train([datum(logprobs=[-1e30] * 3)], "importance_sampling"),
        r"the loss is .*not added",
    ),
    "own loss raises": (custom(loop), r"loss_fn: KeyError: 'mine'"),
    "own loss is no scalar": (custom(lambda data, x: (x[0], {})), r"loss: expected a scalar"),
    "step without gradient": (step(), r"no gradient since the last step; call forward_backward"),
    "negative rate": (step(learning_rate=-1.0), r"learning_rate: expected 0 or more, got -1"),
    "beta of one": (step(beta2=1.0), r"beta2: expected from 0 to below 1, got 1"),
    "empty prompt": (
        sample(ModelInput.empty(), max_tokens=2),
        r"prompt: expected at least one token",
    ),
    "no sample": (sample(count=0, max_tokens=2), r"num_samples: expected at least 1, got 0"),
    "past the context": (sample(max_tokens=510), r"max_tokens: 510.*context of 512.*at most 509"),
    "prompt past the context": (sample(ModelInput.from_ints([1] * 513)), r"513 tokens do not fit"),
    "no tokens": (sample(max_tokens=0), r"max_tokens: expected at least 1, got 0"),
    "temperature": (
        sample(max_tokens=2, temperature=-1),
        r"temperature: expected 0 or more, got -1",
    ),
    "top_k": (sample(max_tokens=2, top_k=0), r"top_k: expected -1 \(off\) or at least 1, got 0"),
    "top_p": (sample(max_tokens=2, top_p=0), r"top_p: expected above 0.*got 0"),
    "mixed stops": (sample(max_tokens=2, stop=["a", 3]), r"stop: expected.*got \['a', 3\]"),
    "empty stop": (sample(max_tokens=2, stop=""), r"stop: expected"),
    "unknown model": (
        lambda c: c["service"].create_lora_training_client("smollm2-135m"),
        r"smollm2-135m: no such file.*did you mean smollm2-135m-instruct",
    ),
    "rank": (lambda c: c["service"].create_lora_training_client("tiny", rank=0), r"rank: expected"),
    "nothing trained": (
        lambda c: c["service"].create_lora_training_client(
            "tiny", train_attn=False, train_mlp=False, train_unembed=False
        ),
        r"train_attn, train_mlp, train_unembed: all are false",
    ),
    "missing checkpoint": (lambda c: c["trainer"].load_state(PATH), r"is not in .*MINTJAX_HOME"),
    "missing checkpoint to sample": (
        lambda c: c["service"].create_sampling_client(model_path=PATH),
        r"path: tinker://a:train:0/weights/none is not in",
    ),
    "no path": (lambda c: c["trainer"].load_state("weights/a"), r"path: expected tinker://<run>"),
    "name with a slash": (lambda c: c["trainer"].save_state("../a"), r"names of letters, digits"),
    "unknown run": (rest("get_training_run", "x"), r"'x' saved nothing in .*list_training_runs"),
    "unknown session": (rest("get_session", "x"), r"no run of 'x'.*list_sessions"),
    "limit": (rest("list_training_runs", 0), r"a limit of at least 1.*got 0 and 0"),
}


@pytest.fixture
def clients(service, trainer):
    return {
        "service": service,
        "trainer": trainer,
        "sampler": service.create_sampling_client(base_model="tiny"),
    }


@pytest.mark.parametrize(("request_", "message"), CASES.values(), ids=CASES.keys())
def test_a_bad_request_is_the_users(clients, request_, message):
    with pytest.raises(RequestFailedError, match=message) as caught:
        request_(clients).result()
    assert caught.value.category is RequestErrorCategory.User
    assert clients["trainer"]._trainee.grads is None
    assert clients["sampler"].stats().sampled == 0


def test_types_are_refused_at_once(service, trainer):
    sampler = trainer.save_weights_and_get_sampling_client()
    with pytest.raises(TypeError, match="prompt: expected ModelInput, got list"):
        sampler.sample([1, 2])
    with pytest.raises(TypeError, match="sampling_params: expected SamplingParams, got dict"):
        sampler.sample(PROMPT, 1, {"max_tokens": 3})
    for params in ((), ({"learning_rate": 1e-3},)):
        with pytest.raises(TypeError, match="optim_params: expected one AdamParams"):
            trainer.optim_step(*params)
    with pytest.raises(ValueError, match="expected one of them"):
        service.create_sampling_client()
    with pytest.raises(TypeError, match="unexpected keyword"):
        SamplingParams(temprature=1)


def test_what_needs_a_remote_service_says_so(service):
    client = service.create_rest_client()
    with pytest.raises(RequestFailedError, match="whoami: not supported locally"):
        client.whoami()
    assert not hasattr(client, "who")
