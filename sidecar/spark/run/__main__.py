"""The application file for `spark-submit`: `sidecar spark run` with the arguments that follow it."""

from __future__ import annotations

import runpy
import sys

if __name__ == "__main__":
    sys.argv[1:1] = ["spark", "run"]
    runpy.run_module("sidecar", run_name="__main__")
