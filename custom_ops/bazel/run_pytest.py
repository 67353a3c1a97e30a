# SPDX-License-Identifier: Apache-2.0
"""The main program of Bazel's Python tests: pytest on the files named in the arguments."""

import os
import sys

import pytest

if __name__ == "__main__":
    # Bazel gives a path relative to the folder that the test starts in; tests may leave it.
    library = "TF_GRADCOMP_OPS_LIBRARY"
    os.environ[library] = os.path.abspath(os.environ[library])
    # Processes that a test starts need the same import path.
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    sys.exit(pytest.main(["-p", "no:cacheprovider", *sys.argv[1:]]))
