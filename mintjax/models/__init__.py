"""Decoder layers as Flax NNX modules and as pure functions."""
