"""What the compiler plans for a gradient, for shapes alone: nothing is allocated."""

import math
from functools import partial

import jax
import jax.numpy as jnp

from mintjax.adapters import init_adapter
from mintjax.cache import bucket, init_state
from mintjax.models.dense import weight_shapes
from mintjax.policy import Policy
from mintjax.train.gradients import _gradients
from mintjax.train.losses import LossInputs, Ppo
from mintjax.train.plan import Plan
from mintjax.train.plan_arguments import Rows
from mintjax.train.plan_memory import Shapes
from mintjax.train.reverse_only import reverse_gradients
from mintjax.train.segments import Segments


def ids(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def numbers(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def compiled_bytes(shapes: Shapes, plan: Plan, rows: int, tokens: int) -> int:
    """Temporary memory and results of the compiled gradient in which every token is scored, and the copy of the cache
    that it is handed."""
    config, lora = shapes.config, shapes.lora
    adapter = jax.eval_shape(lambda: init_adapter(config, lora, jax.random.key(0)))
    base = weight_shapes(config, jnp.dtype(shapes.dtype))
    policy = Policy(config, lora, base, adapter, ids())
    if plan.kind == "packed":
        scored = (rows * tokens,)
        data = Rows(ids(rows, tokens), ids(*scored), ids(*scored))
    else:
        steps = tokens // plan.segment
        scored = (steps, rows * plan.segment)
        lengths = ids(steps, rows)
        places = ids(*scored), ids(*scored), ids(steps)
        data = (Segments(ids(steps, rows, plan.segment), lengths, *places),)
    inputs = LossInputs(*(numbers(math.prod(scored)) for _ in range(4)))
    handed = 0
    if plan.kind == "reverse_only":
        state = jax.eval_shape(partial(init_state, batch=rows, capacity=bucket(tokens)), policy)
        handed = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(state.buffers))
        lowered = reverse_gradients.lower(
            policy, data, state, inputs, numbers(), loss=Ppo(), remat=plan.remat
        )
    else:
        lowered = _gradients.lower(policy, data, inputs, numbers(), loss=Ppo(), plan=plan)
    memory = lowered.compile().memory_analysis()
    return memory.temp_size_in_bytes + memory.output_size_in_bytes + handed
