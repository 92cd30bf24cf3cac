"""`python -m benchmarks.gpu`."""

from benchmarks.gpu.standalone import attach

if __name__ == "__main__":
    attach()
    from benchmarks.gpu.cli import main

    raise SystemExit(main())
