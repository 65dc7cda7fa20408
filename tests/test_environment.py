"""The environment tells what a figure depends on, and its key only what makes figures differ."""

import json

from harness import environment


def test_everything_is_json_and_the_key_is_stable():
    first, second = environment.describe(), environment.describe()
    assert json.loads(json.dumps(first))["key"] == first["key"] == second["key"]


def test_the_key_changes_with_a_setting_that_matters(monkeypatch):
    before = environment.describe()["key"]
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    described = environment.describe()
    assert described["key"] != before
    assert described["settings"]["variables"]["OMP_NUM_THREADS"] == "7"


def test_the_state_of_the_moment_is_not_in_the_key(monkeypatch):
    before = environment.describe()["key"]
    monkeypatch.setattr(environment.os, "getloadavg", lambda: (9.0, 9.0, 9.0))
    described = environment.describe()
    assert described["state"]["load_average"] == [9.0, 9.0, 9.0]
    assert described["key"] == before


def test_hardware_has_cores_caches_and_memory():
    hardware = environment.describe()["hardware"]
    assert 1 <= hardware["cpu"]["cores_usable"] <= hardware["cpu"]["cores_logical"]
    assert hardware["memory_bytes"] > 2**28
    assert all(size > 0 for size in hardware["cpu"]["caches_bytes"].values())


def test_unreadable_system_files_leave_nulls(monkeypatch, tmp_path):
    monkeypatch.setattr(environment, "_CPUINFO", tmp_path / "none")
    monkeypatch.setattr(environment, "_CPU_FOLDER", tmp_path)
    cpu = environment.describe()["hardware"]["cpu"]
    assert cpu["governor"] is None
    assert cpu["caches_bytes"] == {}
    assert cpu["model"]
