"""The optional native part of the package: the fused attention kernels.

Everything else about the package is in pyproject.toml. Without a C++ compiler the build goes on
without this extension, and the implementation ``fused`` then says so with the remedy.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

_SOURCES = Path("implementations/fused/csrc")


class BuildInParallel(build_ext):
    """Compiles the sources of an extension side by side; setuptools takes one after the other."""

    def build_extension(self, ext: Extension) -> None:
        compile_in_turn = self.compiler.compile

        def compile_side_by_side(sources: list[str], **options: Any) -> list[str]:
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                done = pool.map(lambda source: compile_in_turn([source], **options), sources)
                return [path for objects in done for path in objects]

        self.compiler.compile = compile_side_by_side
        super().build_extension(ext)


setup(
    cmdclass={"build_ext": BuildInParallel},
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
    ],
)
