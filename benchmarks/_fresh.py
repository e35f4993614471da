"""Calling a function of a benchmark in a process of its own, where nothing is compiled and no memory has been used yet."""

import importlib
import json
import os
import subprocess
import sys
from typing import Any


def call(target: str, *args: Any) -> Any:
    """`target` is `"benchmarks.module:function"`; arguments and answer go as JSON. float64, no compilation cache on disk."""
    environment = {**os.environ, "JAX_ENABLE_X64": "1", "JAX_ENABLE_COMPILATION_CACHE": "0"}
    command = [sys.executable, "-m", "benchmarks._fresh", target, json.dumps(args)]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    module, function = sys.argv[1].split(":")
    answer = getattr(importlib.import_module(module), function)(*json.loads(sys.argv[2]))
    print(json.dumps(answer))
