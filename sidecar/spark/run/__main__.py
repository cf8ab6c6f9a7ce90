"""The application file for `spark-submit`: `sidecar spark run` with the arguments that follow it."""

from __future__ import annotations

import sys

from sidecar.cli import main

if __name__ == "__main__":
    main(["spark", "run", *sys.argv[1:]])
