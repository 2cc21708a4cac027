"""What multi-head latent attention is made of: the widths that its queries, keys and values pass through."""

from dataclasses import dataclass


@dataclass(frozen=True)
class LatentConfig:
    """Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434, section 2.1), of DeepSeek-V3 and Kimi-K2.

    A token's keys and values of all heads are made from one latent, which alone is cached, with one rotated key that
    all heads share.

    Attributes:
        query_rank: width that queries pass through; None where they are made straight from the residual stream.
        rank: width of the latent.
        key_dim: numbers of a head's key that come from the latent and are not rotated.
        rope_dim: numbers of the shared rotated key; even.
        value_dim: numbers of a head's value.
        interleaved: whether neighbours among the rotated numbers turn together, as the checkpoints have them, and not the
            one of the first half and the one of the second.
        norm_eps: of the norms of what queries pass through and of the latent.
    """

    query_rank: int | None
    rank: int
    key_dim: int
    rope_dim: int
    value_dim: int
    interleaved: bool = True
    norm_eps: float = 1e-6

    @property
    def cached(self) -> int:
        """Numbers of a token that a layer's cache holds."""
        return self.rank + self.rope_dim

    def linear_shapes(self, width: int, heads: int) -> dict[str, tuple[int, int]]:
        """Shapes ``(out, in)`` of a layer's linears, by name.

        Example:
            >>> LatentConfig(None, 6, 4, 2, 3).linear_shapes(width=10, heads=5)["kv_b"]
            (35, 6)
        """
        query = heads * (self.key_dim + self.rope_dim)
        if self.query_rank is None:
            queries = {"q": (query, width)}
        else:
            queries = {"q_a": (self.query_rank, width), "q_b": (query, self.query_rank)}
        return queries | {
            "kv_a": (self.cached, width),
            "kv_b": (heads * (self.key_dim + self.value_dim), self.rank),
            "o": (width, heads * self.value_dim),
        }

    def norm_sizes(self) -> dict[str, int]:
        """Widths of the norms within attention, by name.

        Example:
            >>> LatentConfig(None, 6, 4, 2, 3).norm_sizes()
            {'kv_a_norm': 6}
        """
        query = {} if self.query_rank is None else {"q_a_norm": self.query_rank}
        return query | {"kv_a_norm": self.rank}
