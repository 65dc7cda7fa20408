"""From rows to decisions: pure functions on DataFrames of ``harness.load``; no torch, no printing.

::

    rows -> cells       one line per (case, implementation): all passes together
         -> pairs       paired differences, the run's own control
         -> comparisons ratio, interval and verdict of each implementation
         -> winners     the set of the best in each case
"""
