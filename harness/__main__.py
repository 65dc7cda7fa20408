"""``python -m harness`` is ``mha-bench``."""

from harness.cli import main

if __name__ == "__main__":
    main()
