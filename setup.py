"""The optional native part of the package: the fused attention kernels.

Everything else about the package is in pyproject.toml. Without a C++ compiler the build goes on
without this extension, and the implementation ``fused`` then says so with the remedy.
"""

from __future__ import annotations

from pathlib import Path

from setuptools import Extension, setup

_SOURCES = Path("implementations/fused/csrc")

setup(
    ext_modules=[
        Extension(
            "implementations.fused._kernels",
            sources=sorted(str(path) for path in _SOURCES.glob("*.cpp")),
            depends=sorted(str(path) for path in _SOURCES.rglob("*.h")),
            language="c++",
            # No -march: each path sets its own target, and the fastest that the machine can run is
            # chosen at run time. No -ffast-math: it would flush denormals in the whole process.
            extra_compile_args=[
                "-std=c++17",
                "-O3",
                "-fopenmp",
                "-fvisibility=hidden",
                "-fno-math-errno",
                "-fno-trapping-math",
                "-ffp-contract=fast",
                "-Wall",
                "-g0",
                "-Wno-psabi",
                # GCC 12 warns about its own intrinsics.
                "-Wno-maybe-uninitialized",
                "-Wno-uninitialized",
                "-Wno-ignored-attributes",
            ],
            extra_link_args=["-fopenmp"],
            define_macros=[("Py_LIMITED_API", "0x030B0000")],
            py_limited_api=True,
            optional=True,
        )
    ]
)
