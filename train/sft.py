"""Supervised fine-tuning: the cross entropy of what a conversation's chosen messages say."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from mintjax.train.batches import Batch
from mintjax.train.config_dataset import SftConfig
from mintjax.train.data_files import DataError, field_of
from mintjax.train.losses import CrossEntropy
from mintjax.train.packing import Document, Example


class SftObjective:
    """What a supervised run makes of its data.

    Example:
        >>> objective = SftObjective(config)
        >>> examples = objective.weigh(objective.read(row, renderer))
    """

    needs_reference = False
    loss = CrossEntropy()

    def __init__(self, config: SftConfig) -> None:
        """Bind the choices of a run."""
        self._train_on = config.train_on
        self._normaliser = config.normaliser

    def read(self, row: dict[str, Any], renderer: Any) -> list[Example]:
        """The examples of one line: one, or several where no single rendering shows all replies as they are said.

        Args:
            row: ``messages``, and ``tools`` where there are any; other keys are not read.
            renderer: bound to a tokenizer.

        Returns:
            Examples of one document each. The first id of a conversation is never trained: nothing predicts it.

        Raises:
            DataError: where there are no messages, or nothing trains.
            RenderError: where the conversation cannot be rendered.

        Example:
            >>> objective.read({"messages": [user, reply]}, renderer)
        """
        messages = field_of(row, "messages")
        renderings = renderer.supervised(messages, tools=row.get("tools"), train_on=self._train_on)
        return [(document_of(rendered),) for rendered in renderings]

    def weigh(self, examples: Sequence[Example]) -> list[Example]:
        """Examples whose weights are divided so that the loss's sum is the mean that the run wants.

        Args:
            examples: all those of one batch.

        Example:
            >>> sum(document.weights.sum() for (document,) in objective.weigh(examples))
            1.0
        """
        sums = [float(document.weights.sum()) for (document,) in examples]
        by = [len(sums) * own for own in sums]
        if self._normaliser == "batch_tokens":
            by = [sum(sums)] * len(sums)
        return [
            (document._replace(weights=(document.weights / divisor).astype(np.float32)),)
            for (document,), divisor in zip(examples, by, strict=True)
        ]

    def metrics(self, batches: Sequence[Batch], logprobs: Sequence[np.ndarray]) -> dict[str, float]:
        """Nothing beside the loss."""
        return {}


def document_of(rendered: Any) -> Document:
    """The token stream of a rendered conversation and what trains in it.

    Raises:
        DataError: where nothing trains.

    Example:
        >>> document_of(renderer.supervised([user, reply])[0]).weights.sum()
        6.0
    """
    weights = rendered.weights.astype(np.float32)
    weights[:1] = 0
    if not weights.any():
        raise DataError("messages: nothing in them trains; choose by train_on what is there")
    return Document(rendered.ids, weights)
