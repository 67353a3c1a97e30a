# SPDX-License-Identifier: Apache-2.0
"""A repository rule that finds the installed TensorFlow and the Python that it belongs to.

PYTHON_BIN_PATH names the Python (default: python3 on the path). The repository offers `headers`
and `framework` (the libraries that operations link to), TF_DEFINES in defs.bzl, and a Python
toolchain.
"""

# TensorFlow's own flags, one per line, after the paths of its headers and its library.
_PROGRAM = """
import tensorflow as tf
print("headers=" + tf.sysconfig.get_include())
print("lib=" + tf.sysconfig.get_lib())
for flag in tf.sysconfig.get_compile_flags():
    if flag.startswith("-D"):
        print("define=" + flag[2:])
for flag in tf.sysconfig.get_link_flags():
    if flag.startswith("-l:"):
        print("library=" + flag[3:])
"""

_BUILD = """
load("@bazel_tools//tools/python:toolchain.bzl", "py_runtime_pair")

package(default_visibility = ["//visibility:public"])

cc_library(
    name = "headers",
    hdrs = glob(["include/**"], exclude = ["include/**/*.py", "include/**/BUILD*"]),
    defines = {defines},
    includes = ["include"],
)

cc_library(
    name = "framework",
    srcs = {libraries},
    deps = [":headers"],
)

py_runtime(
    name = "python_runtime",
    interpreter_path = "{python}",
    python_version = "PY3",
)

py_runtime_pair(
    name = "python_runtime_pair",
    py3_runtime = ":python_runtime",
)

toolchain(
    name = "python_toolchain",
    toolchain = ":python_runtime_pair",
    toolchain_type = "@bazel_tools//tools/python:toolchain_type",
)
"""

def _tensorflow_configure_impl(repository_ctx):
    named = repository_ctx.os.environ.get("PYTHON_BIN_PATH")
    python = repository_ctx.path(named) if named else repository_ctx.which("python3")
    if not python:
        fail("python3 was not found; set PYTHON_BIN_PATH to the Python that has TensorFlow")
    result = repository_ctx.execute(
        [str(python), "-c", _PROGRAM],
        environment = {"TF_CPP_MIN_LOG_LEVEL": "3"},
    )
    if result.return_code != 0:
        fail("{} cannot import TensorFlow; install it there, or set PYTHON_BIN_PATH to a Python that has it:\n{}".format(
            python,
            result.stderr,
        ))

    found = {"headers": [], "lib": [], "define": [], "library": []}
    for line in result.stdout.splitlines():
        key, _, value = line.partition("=")
        if key in found:
            found[key].append(value)

    repository_ctx.symlink(found["headers"][0], "include")
    for library in found["library"]:
        repository_ctx.symlink(found["lib"][0] + "/" + library, library)
    repository_ctx.file("BUILD", _BUILD.format(
        defines = found["define"],
        libraries = found["library"],
        python = python,
    ))

tensorflow_configure = repository_rule(
    implementation = _tensorflow_configure_impl,
    environ = ["PYTHON_BIN_PATH"],
    doc = "Makes a repository of the installed TensorFlow's headers and libraries.",
    # Another version may have been installed under the same path.
    local = True,
)
