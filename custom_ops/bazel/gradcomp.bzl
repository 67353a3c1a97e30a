# SPDX-License-Identifier: Apache-2.0
"""Flags and test macros that the BUILD files share."""

# The same as in native_build.py: equal results on every machine need plain IEEE arithmetic.
GRADCOMP_COPTS = [
    "-O3",
    "-std=c++17",
    "-ffp-contract=off",
    "-Wall",
    "-Wextra",
]

def core_tests(deps):
    """One cc_test for every *_core_test.cc of the package."""
    for source in native.glob(["*_core_test.cc"]):
        native.cc_test(
            name = source[:-len(".cc")],
            size = "small",
            srcs = [source],
            copts = GRADCOMP_COPTS,
            linkopts = ["-lpthread"],
            deps = deps,
        )

def pytest_tests(srcs, data, deps):
    """One py_test, run by pytest on the native library that Bazel built, tagged with its folder."""
    for source in srcs:
        native.py_test(
            name = source[:-len(".py")],
            size = "large",
            srcs = [source, "//custom_ops/bazel:run_pytest.py"],
            args = ["$(rootpath {})".format(source)],
            tags = [source.split("/")[0]],
            data = data + ["//:pyproject.toml", "//custom_ops:_gradcomp_ops.so"],
            env = {"TF_GRADCOMP_OPS_LIBRARY": "$(rootpath //custom_ops:_gradcomp_ops.so)"},
            main = "//custom_ops/bazel:run_pytest.py",
            python_version = "PY3",
            deps = deps,
        )
