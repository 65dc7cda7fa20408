"""The tests, as a package, so that fakes can be named as ``tests.fakes:Class``."""
