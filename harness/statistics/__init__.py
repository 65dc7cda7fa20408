"""Intervals, verdicts and corrections: pure functions on arrays, without torch."""
