"""Timing and memory of one case in one process: clocks, paired rounds, guards.

``bench`` is the only module that knows the order of the steps; a worker process enters through it,
``footprint``, ``ceilings``, ``claims`` and ``probing``.
"""
