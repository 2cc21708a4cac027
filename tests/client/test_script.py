"""The multi-turn script that Tinker's documentation of MinT shows, on the real model, word for word but its import."""

# fmt: off
SCRIPT = '''\
import mintjax as mint
from mintjax import types
from mintjax.renderers import get_renderer

service_client = mint.ServiceClient()
training_client = service_client.create_lora_training_client(base_model="smollm2-135m-instruct", rank=16)
tokenizer = training_client.get_tokenizer()
renderer = get_renderer("smollm2")
sampling_client = training_client.save_weights_and_get_sampling_client(name="start")
def run_episode():
    messages = [{"role": "system", "content": "Count down from the given number."}]
    total_reward = 0
    for turn in range(3):
        messages.append({"role": "user", "content": f"Start from {5 - turn}"})
        prompt_tokens = renderer.render(messages, tokenizer)
        result = sampling_client.sample(
            prompt=types.ModelInput.from_ints(tokens=prompt_tokens), num_samples=1,
            sampling_params=types.SamplingParams(max_tokens=50, temperature=0.8)).result()
        response = tokenizer.decode(result.sequences[0].tokens)
        messages.append({"role": "assistant", "content": response})
        total_reward += compute_reward(response, expected=f"{5-turn}, {4-turn}, ...")
    return messages, total_reward
'''
# fmt: on


def compute_reward(response, expected):
    return float(response.startswith(expected.removesuffix(", ...")))


class Recorder:
    """Passes calls on, and notes each prompt and sample."""

    def __init__(self, client):
        self.client, self.turns = client, []

    def sample(self, prompt, **rest):
        future = self.client.sample(prompt=prompt, **rest)
        self.turns.append((prompt.to_ints(), future.result().sequences[0].tokens))
        return future


def test_the_documented_script_runs_and_prefills_each_token_once(monkeypatch, tmp_path):
    monkeypatch.setenv("MINTJAX_HOME", str(tmp_path))
    script = {"compute_reward": compute_reward}
    exec(SCRIPT, script)
    recorder = script["sampling_client"] = Recorder(script["sampling_client"])
    messages, reward = script["run_episode"]()
    assert [message["role"] for message in messages] == ["system", *("user", "assistant") * 3]
    assert 0 <= reward <= 3

    stats = recorder.client.stats()
    histories = [prompt + sample for prompt, sample in recorder.turns]
    distinct = {tuple(ids[: end + 1]) for ids in histories for end in range(len(ids))}
    assert stats.sampled == sum(len(sample) for _, sample in recorder.turns)
    assert stats.prefilled + stats.sampled == len(distinct)
    assert stats.prefilled + stats.reused == sum(len(prompt) for prompt, _ in recorder.turns)
    # These samples' ids come back from encoding their texts, the stop token once.
    for history, (prompt, _) in zip(histories, recorder.turns[1:], strict=False):
        assert prompt[: len(history)] == history
    assert stats.diverged == 0
    last, _ = recorder.turns[-1]
    assert last.count(script["tokenizer"].convert_tokens_to_ids("<|im_end|>")) == 6
    assert not any(tmp_path.iterdir())
