"""Episodes of eight turns beside `skyrl` 0.3.0, its JAX backend in this process: the rollout, and a training step.

Both have the same weights, from one checkpoint, and adapters of the same rank; skyrl has as few adapter slots as it can.
Where skyrl is not installed, the line says so. It needs Python 3.12 or later, and an environment of its own: its
requirements exclude mintjax's of transformers.
"""

import json
import tempfile
from functools import partial

import jax.numpy as jnp
import numpy as np

from mintjax import load_policy
from mintjax.bench.clock import interleaved
from mintjax.bench.models import SAMPLED, SMALL, random_batch, tokens_of
from mintjax.bench.rollouts import RolloutSize, carried, observations
from mintjax.bench.rows import speed_up
from mintjax.policy import Policy
from mintjax.train.batches import Batch
from mintjax.train.gradients import gradients
from mintjax.train.losses import Ppo
from mintjax.train.optimizer import init_train_state, make_optimizer, update
from tests.peers import installed
from tests.tiny import tiny_tokenizer

SIZE = RolloutSize(SMALL, turns=8, rows=4)
RANK, ALPHA, RATE = 8, 16.0, 1e-4
RUNS = 9


def save_model(folder: str) -> None:
    """Writes the small model as a Hugging Face directory, since that is what skyrl starts from."""
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=SMALL.vocab_size,
        hidden_size=SMALL.hidden_size,
        intermediate_size=SMALL.intermediate_size,
        num_hidden_layers=SMALL.num_layers,
        num_attention_heads=SMALL.num_heads,
        num_key_value_heads=SMALL.num_kv_heads,
        head_dim=SMALL.head_dim,
        max_position_embeddings=SMALL.context,
        tie_word_embeddings=False,
        dtype="float32",
    )
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=tiny_tokenizer())
    tokenizer.save_pretrained(folder)


class Peer:
    """skyrl's backend with one adapter, which it samples from and trains."""

    def __init__(self, folder: str) -> None:
        from skyrl.backends.jax import JaxBackendConfig, JaxBackendImpl
        from skyrl.tinker import types

        self.types = types
        config = JaxBackendConfig(max_lora_adapters=2, max_lora_rank=RANK)
        self.backend = JaxBackendImpl(folder, config, process_id=0)
        self.backend.create_model("a", types.LoraConfig(rank=RANK, alpha=ALPHA, seed=0))
        # The weights in memory are those to sample from: nothing is written to the disk and read back.
        self.backend.models["a"].loaded_checkpoint_id = "now"

    def inputs(self, rows: np.ndarray) -> list:
        """Token ids as skyrl takes them."""
        chunk, whole = self.types.EncodedTextChunk, self.types.ModelInput
        return [whole(chunks=[chunk(tokens=row.tolist())]) for row in rows]

    def rollout(self, news: list[np.ndarray]) -> None:
        """Samples every turn's reply; skyrl keeps no cache, so each prompt is the conversation so far."""
        said = np.empty((len(news[0]), 0), np.int32)
        count = len(said)
        sampling = self.types.SamplingParams(
            temperature=1.0, max_tokens=SAMPLED, seed=0, stop_tokens=[-1]
        )
        for new in news:
            said = np.concatenate([said, new], axis=1)
            batch = self.types.PreparedSampleBatch(
                all_model_inputs=self.inputs(said),
                all_sampling_params=[sampling] * count,
                all_model_ids=["a"] * count,
                all_checkpoint_ids=["now"] * count,
                all_checkpoint_paths=[""] * count,
                all_session_ids=[None] * count,
                needs_prompt_logprobs=False,
                request_batch_slices=[("turn", "a", 0, count, False)],
            )
            sequences = self.backend.sample(batch)["turn"].sequences
            replies = np.array([sequence.tokens for sequence in sequences], np.int32)
            assert replies.shape == (count, SAMPLED)
            said = np.concatenate([said, replies], axis=1)

    def train(self, batch: Batch) -> None:
        """A gradient over whole episodes, a row each, and the optimizer's step."""
        count = len(batch.tokens)
        prepared = self.types.PreparedModelPassBatch(
            all_model_inputs=self.inputs(batch.tokens[:, :-1]),
            all_targets=batch.tokens[:, 1:].tolist(),
            all_token_weights=batch.mask[:, 1:].tolist(),
            all_sampling_logprobs=batch.logprobs[:, 1:].tolist(),
            all_advantages=batch.advantages[:, 1:].tolist(),
            all_values=[[]] * count,
            all_returns=[[]] * count,
            all_model_ids=["a"] * count,
            all_loss_fns=["ppo"] * count,
            all_loss_fn_configs=[None] * count,
            request_batch_slices=[("step", "a", 0, count)],
        )
        self.backend.forward_backward(prepared)
        adam = self.types.AdamParams(
            learning_rate=RATE, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.0
        )
        self.backend.optim_step("a", self.types.OptimStepInput(adam_params=adam))


def trainer(policy: Policy, batch: Batch):
    """The same step with mintjax, from the same state at every call."""
    start = init_train_state(policy, make_optimizer(RATE, clip_norm=None))

    def step() -> object:
        return update(start, gradients(policy, batch, Ppo())[0]).policy.adapter

    return step


def main() -> None:
    """Measures both."""
    names = ("skyrl_rollout", "skyrl_training")
    if not installed("skyrl"):
        for name in names:
            print(json.dumps({"name": name, "skipped": "skyrl 0.3.0 is not installed"}))
        return
    with tempfile.TemporaryDirectory() as folder:
        save_model(folder)
        peer = Peer(folder)
        policy = load_policy(folder, rank=RANK, alpha=ALPHA, dtype=jnp.float32)
    news = observations(SIZE)
    batch = random_batch(SMALL, SIZE.rows, tokens_of(SIZE.turns))
    pairs = (
        (partial(carried, policy, news), partial(peer.rollout, news)),
        (trainer(policy, batch), partial(peer.train, batch)),
    )
    for name, (ours, other) in zip(names, pairs, strict=True):
        figures = speed_up(*interleaved(ours, other, runs=RUNS), turns=SIZE.turns, rows=SIZE.rows)
        print(figures.row(name).as_json(), flush=True)


if __name__ == "__main__":
    main()
