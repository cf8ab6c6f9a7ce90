"""`python -m sidecar`: the same as the `sidecar` command. Nothing else comes in here."""

from sidecar.cli import main

if __name__ == "__main__":
    main()
