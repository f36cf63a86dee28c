"""The compiled core, which is optional: without a C++ compiler everything else installs and works."""

from pathlib import Path

from setuptools import Extension, setup

NATIVE = Path("native")

setup(
    ext_modules=[
        Extension(
            "regard._core",
            sources=sorted(str(path) for path in NATIVE.glob("*.cpp")),
            depends=sorted(str(path) for path in NATIVE.glob("*.h")),
            include_dirs=[str(NATIVE)],
            language="c++",
            extra_compile_args=[
                "-std=c++17",
                "-O3",
                "-ffp-contract=off",  # what decides must be the same number here and in torch
                "-fno-math-errno",
                "-fvisibility=hidden",
                "-Wno-psabi",
            ],
            libraries=["dl"],
            py_limited_api=True,
            optional=True,
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
