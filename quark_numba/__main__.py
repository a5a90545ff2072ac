"""``python -m quark_numba`` and the command ``quark-numba``."""

import sys


def main() -> int:
    """The command. Ctrl-C ends it without a traceback, also while its modules are imported."""
    try:
        from .cli import main as command

        return command()
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
