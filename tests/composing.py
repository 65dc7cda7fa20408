"""Configurations composed as the command line composes them, without running anything."""

from __future__ import annotations

from harness.cli.hydra_app import compose
from harness.machine import Machine
from harness.planning.config import RunConfig, to_run_config
from harness.planning.plan import Plan, make_plan

MACHINE = Machine(cpu_count=4, memory_bytes=16 * 2**30)


def configured(*words: str, machine: Machine = MACHINE) -> RunConfig:
    """The run configuration that `mha-bench sweep WORDS` would have on a given machine."""
    cfg, invocation = compose(words)
    return to_run_config(cfg, invocation, machine)


def planned(*words: str, machine: Machine = MACHINE) -> Plan:
    """The plan that `mha-bench sweep WORDS` would make on a given machine."""
    return make_plan(configured(*words, machine=machine))
