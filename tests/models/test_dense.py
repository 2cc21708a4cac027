"""Of bfloat16 weights: what is rounded as it was trained, and what is not rounded."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np

from mintjax.models.dense import embed, final_norm
from tests.tiny import CONFIG


def test_embeddings_are_scaled_by_a_number_of_their_own_dtype():
    config = replace(CONFIG, embed_scale=3072**0.5)
    for dtype, scale in ((jnp.bfloat16, 55.5), (jnp.float32, np.float32(3072**0.5))):
        found = embed(config, {"embed": jnp.ones((4, 8), dtype)}, jnp.array([[1, 3]]))
        assert found.dtype == jnp.float32 and (found == scale).all()


def test_a_norms_offset_is_added_in_float32():
    config = replace(CONFIG, norm_offset=1.0, norm_eps=0.0)
    weight = jnp.full(8, 2**-10, jnp.bfloat16)  # 1 + 2**-10 would be 1 in bfloat16
    found = final_norm(config, {"norm": weight}, jnp.ones((1, 1, 8)))
    assert (found == 1 + 2**-10).all()
