"""Implementations of multi-head attention, one file or folder each; none imports another."""
