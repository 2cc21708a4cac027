"""Benchmarks: each prints one JSON line with ratios of two things timed in one run; nothing is asserted."""
