"""What a reader needs to trust or repeat a figure: hardware, software and settings.

``describe`` runs in a worker, since it asks torch. Its ``key`` is a hash of what must be equal for
times to be comparable; the load average and the like stand beside it.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil
import torch

from harness.machine import usable_cores
from harness.worker import Channel

_PACKAGES = (
    "mha-bench",
    "torch",
    "numpy",
    "pandas",
    "xformers",
    "triton",
    "flash-attn",
    "hydra-core",
)
_VARIABLES = (
    "OMP_NUM_THREADS",
    "OMP_PROC_BIND",
    "KMP_AFFINITY",
    "MKL_NUM_THREADS",
    "ATEN_CPU_CAPABILITY",
    "ONEDNN_MAX_CPU_ISA",
    "MALLOC_ARENA_MAX",
    "LD_PRELOAD",
    "CUDA_VISIBLE_DEVICES",
    "PYTORCH_CUDA_ALLOC_CONF",
    "NVIDIA_TF32_OVERRIDE",
)
_CPUINFO = Path("/proc/cpuinfo")
_CPU_FOLDER = Path("/sys/devices/system/cpu/cpu0")


def send_description(payload: object, channel: Channel) -> None:
    """Worker target: send ``describe()``."""
    channel.send(describe())


def describe() -> dict[str, Any]:
    """Everything about this machine and process that a figure may depend on, as JSON values."""
    hardware = {"cpu": _cpu(), "gpus": _gpus(), "memory_bytes": psutil.virtual_memory().total}
    software = {
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "torch_cuda": torch.version.cuda,
        "torch_cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "torch_commit": torch.version.git_version,
        "torch_build": _libraries_of_torch(),
        "system": platform.system(),
        "kernel": platform.release(),
        "libc": " ".join(platform.libc_ver()),
    }
    settings = {
        "variables": {name: os.environ[name] for name in _VARIABLES if name in os.environ},
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }
    stable = {"hardware": hardware, "software": software, "settings": settings}
    canonical = json.dumps(stable, sort_keys=True)
    return {
        "key": hashlib.sha256(canonical.encode()).hexdigest()[:16],
        **stable,
        "state": _state(),
        "commit": _commit(),
    }


def _libraries_of_torch() -> list[str]:
    """The libraries that torch was built with; not its compiler flags, which the commit fixes."""
    lines = (line.strip(" -") for line in torch.__config__.show().splitlines()[1:])
    return [line for line in lines if not line.startswith("Build settings")]


def _cpu() -> dict[str, Any]:
    fields = _cpuinfo_fields()
    flags = fields.get("flags", fields.get("Features", "")).split()
    return {
        "model": fields.get("model name", platform.processor() or platform.machine()),
        "architecture": platform.machine(),
        "cores_logical": psutil.cpu_count(logical=True),
        "cores_physical": psutil.cpu_count(logical=False),
        "cores_usable": usable_cores(),
        "caches_bytes": cache_sizes_bytes(),
        "vector_flags": [f for f in flags if f.startswith(("avx", "amx", "fma", "sve", "asimd"))],
        "virtual_machine": "hypervisor" in flags,
        "governor": _read(_CPU_FOLDER / "cpufreq/scaling_governor"),
    }


def _cpuinfo_fields() -> dict[str, str]:
    text = _read(_CPUINFO) or ""
    pairs = (line.partition(":") for line in text.partition("\n\n")[0].splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def cache_sizes_bytes() -> dict[str, int]:
    """Sizes of the first CPU's caches by level (``L1i`` for instructions); empty if unreadable."""
    units = {"K": 2**10, "M": 2**20, "G": 2**30}
    found = {}
    for folder in sorted((_CPU_FOLDER / "cache").glob("index*")):
        size, kind = _read(folder / "size"), _read(folder / "type")
        if size and size[-1] in units:
            level = f"L{_read(folder / 'level')}{'i' if kind == 'Instruction' else ''}"
            found[level] = int(size[:-1]) * units[size[-1]]
    return found


def _gpus() -> list[dict[str, Any]]:
    if not torch.cuda.is_available():
        return []
    found = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        found.append(
            {
                "name": properties.name,
                "compute_capability": f"{properties.major}.{properties.minor}",
                "memory_bytes": properties.total_memory,
                "multiprocessors": properties.multi_processor_count,
            }
        )
    return found


def _state() -> dict[str, Any]:
    """What changes while the machine stays the same."""
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "load_average": list(os.getloadavg()),
        "memory_available_bytes": psutil.virtual_memory().available,
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    """Commit of the source tree that this file lies in, marked when it has been edited."""
    folder = Path(__file__).resolve().parent
    if not (folder.parent / ".git").exists():
        return None
    command = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip()


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None
