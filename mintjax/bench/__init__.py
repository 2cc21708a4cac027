"""Benchmarks, ``mintjax bench``: each a ratio of two things that are timed in turn in one run.

``mintjax.bench.registry`` lists them; there is one module a theme.
"""
