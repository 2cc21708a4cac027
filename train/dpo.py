"""Direct preference optimisation (Rafailov et al., arXiv:2305.18290): a reply that was chosen over another one.

With s the sum over a reply's tokens of log p - log reference, the reference being the base model, a pair's loss is
``-log sigmoid(beta * (s_chosen - s_rejected))``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from mintjax.train.batches import Batch
from mintjax.train.config_dataset import DpoConfig
from mintjax.train.data_files import DataError, field_of
from mintjax.train.losses import Loss, LossInputs
from mintjax.train.packing import Document, Example
from mintjax.train.plan_arguments import row_numbers
from mintjax.train.sft import document_of


@dataclass(frozen=True)
class Dpo(Loss):
    """The loss of pairs that stand side by side: rows, or documents, 2i chosen and 2i + 1 rejected.

    Each token's term is its pair's loss times the token's weight; the weights of a pair's tokens add up to its share.

    Attributes:
        beta: how dear it is to leave the reference.
    """

    whole_rows = True

    beta: float = 0.1

    def __call__(
        self, logprobs: Float[Array, "*shape"], inputs: LossInputs
    ) -> Float[Array, "*shape"]:
        """See :class:`mintjax.train.losses.Loss`."""
        if inputs.reference is None or inputs.row is None:
            raise ValueError(
                "inputs: DPO needs the batch's reference, and whole rows: the plan 'packed' or 'segments'"
            )
        row = jnp.asarray(inputs.row).reshape(-1)
        gained = jnp.where(inputs.mask > 0, logprobs - inputs.reference, 0).reshape(-1)
        sums = jax.ops.segment_sum(gained, row, num_segments=row.size)
        chosen, rejected = sums[row & ~1], sums[row | 1]
        pair = -jax.nn.log_sigmoid(self.beta * (chosen - rejected))
        return jnp.asarray(inputs.weights) * pair.reshape(logprobs.shape)


class DpoObjective:
    """What a run on preferences makes of its data.

    Example:
        >>> objective = DpoObjective(config)
        >>> pairs = objective.weigh(objective.read(row, renderer))
    """

    needs_reference = True

    def __init__(self, config: DpoConfig) -> None:
        """Bind the choices of a run."""
        self.loss = Dpo(config.beta)

    def read(self, row: dict[str, Any], renderer: Any) -> list[Example]:
        """The pair of one line.

        Args:
            row: ``prompt``, ``chosen`` and ``rejected``, each a list of messages, and ``tools`` where there are any; other
                keys are not read. The assistant's messages in the two replies train.
            renderer: bound to a tokenizer.

        Returns:
            One example: the prompt with the chosen reply, and with the rejected one.

        Raises:
            DataError: where a field is missing, or no single rendering shows a reply as it is said.
            RenderError: where a conversation cannot be rendered.

        Example:
            >>> objective.read({"prompt": [user], "chosen": [good], "rejected": [bad]}, renderer)
        """
        chosen, rejected = (self._reply(row, name, renderer) for name in ("chosen", "rejected"))
        if np.array_equal(chosen.tokens, rejected.tokens):
            raise DataError("rejected: expected another reply than chosen, got the same tokens")
        return [(chosen, rejected)]

    def _reply(self, row: dict[str, Any], name: str, renderer: Any) -> Document:
        """The prompt and one of the replies to it."""
        prompt, reply = field_of(row, "prompt"), field_of(row, name)
        messages = [{**message, "trainable": False} for message in prompt] + [
            {**message, "trainable": message.get("role") == "assistant"} for message in reply
        ]
        found = renderer.supervised(messages, tools=row.get("tools"), train_on="customized")
        if len(found) != 1:
            raise DataError(
                f"{name}: expected one reply, got {len(found)}, which this format does not show in one rendering; "
                f"leave out the reasoning, or give the last message alone"
            )
        return document_of(found[0])

    def weigh(self, examples: Sequence[Example]) -> list[Example]:
        """Pairs whose weights make the sum of the loss's terms the mean over pairs.

        Args:
            examples: all those of one batch.

        Example:
            >>> sum(document.weights.sum() for pair in objective.weigh(pairs) for document in pair)
            1.0
        """
        weighed = []
        for pair in examples:
            share = 1 / (len(examples) * sum(float((x.weights > 0).sum()) for x in pair))
            weighed.append(
                tuple(
                    x._replace(weights=np.where(x.weights > 0, share, 0).astype(np.float32))
                    for x in pair
                )
            )
        return weighed

    def metrics(self, batches: Sequence[Batch], logprobs: Sequence[np.ndarray]) -> dict[str, float]:
        """Figures of all pairs.

        Args:
            batches: with their reference.
            logprobs: the policy's, of each.

        Returns:
            ``rewards/chosen`` and ``rejected``, means of ``beta * s``; ``rewards/margins``, their difference;
            ``rewards/accuracies``, how often the chosen one's is greater; ``logps/chosen`` and ``rejected``, means of the
            replies' log probabilities.

        Example:
            >>> objective.metrics(batches, logprobs)["rewards/accuracies"]
            0.5
        """
        pairs = np.concatenate([_pairs(x, y) for x, y in zip(batches, logprobs, strict=True)])
        rewards = self.loss.beta * (pairs[..., 0] - pairs[..., 1])
        margins = rewards[:, 0] - rewards[:, 1]
        figures = {
            "rewards/chosen": rewards[:, 0],
            "rewards/rejected": rewards[:, 1],
            "rewards/margins": margins,
            "rewards/accuracies": margins > 0,
            "logps/chosen": pairs[:, 0, 0],
            "logps/rejected": pairs[:, 1, 0],
        }
        return {name: float(values.mean()) for name, values in figures.items()}


def _pairs(batch: Batch, logprobs: np.ndarray) -> Float[np.ndarray, "P 2 2"]:
    """For each pair of a batch, chosen and rejected: the log probability of the reply, the policy's and the reference's."""
    assert batch.reference is not None
    mask = batch.mask > 0
    row = row_numbers(batch)[mask]
    sums = [np.bincount(row, x[mask].astype(np.float64)) for x in (logprobs, batch.reference)]
    return np.stack(sums, -1).reshape(-1, 2, 2)
