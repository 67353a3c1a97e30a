# SPDX-License-Identifier: Apache-2.0
"""A process that has imported TensorFlow and Keras, and forks workers that then need not.

Importing them is two thirds of what a short run of a cluster costs. A worker is a process of its
own in every other respect: it has its own session, environment, arguments and output, joins the
cluster by itself and ends as any program does.

Reads one JSON object per line: `program`, `arguments`, `environment`, `output`. Answers each with
`{"pid": ...}`, and writes `{"pid": ..., "code": ...}` when a worker has ended, `code` negative for
a signal.
"""

from __future__ import annotations

import json
import os
import random
import runpy
import selectors
import sys
from typing import Any

import numpy


def serve() -> dict[str, Any] | None:
    """Forks workers until the input ends. Returns the request in a worker, `None` at the end."""
    selector = selectors.DefaultSelector()
    selector.register(sys.stdin, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.data is not None:
                pid = key.data
                selector.unregister(key.fd)
                os.close(key.fd)
                answer(pid=pid, code=os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
                continue
            line = sys.stdin.readline()
            if not line:
                return None
            pid = os.fork()
            if pid == 0:
                selector.close()
                return json.loads(line)
            selector.register(os.pidfd_open(pid), selectors.EVENT_READ, data=pid)
            answer(pid=pid)


def answer(**values: int) -> None:
    print(json.dumps(values), flush=True)


def run(request: dict[str, Any]) -> None:
    """Runs a program as if it had been started by itself."""
    os.setsid()
    output = os.open(request["output"], os.O_WRONLY | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(output, stream)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.environ.clear()
    os.environ.update(request["environment"])
    # Forks would all draw the same numbers, which workers of a real cluster do not.
    random.seed()
    numpy.random.seed()
    sys.argv = [request["program"], *request["arguments"]]
    sys.path[0] = os.path.dirname(request["program"])
    runpy.run_path(request["program"], run_name="__main__")


def main() -> None:
    import tensorflow as tf

    getattr(tf.keras, "__version__", None)  # loads the Keras in use
    request = serve()
    if request is not None:
        run(request)


if __name__ == "__main__":
    main()
