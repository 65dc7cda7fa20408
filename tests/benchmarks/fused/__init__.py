"""What the fused CPU kernels must reach, measured: the tables of ``tests.benchmarks.test_fused``.

::

    plans (which calls, what they must reach) -> engine (interleaved rounds) -> cells (what the
    rounds say, quiet ones apart from slow ones) -> verdicts (reached or not) -> show

A ratio is the other's time divided by ours in the same round: above 1, ours is faster.
"""
