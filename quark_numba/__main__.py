"""The entry point of ``python -m quark_numba`` and of the command ``quark-numba``."""

from __future__ import annotations

import sys


def main() -> int:
    """Run the command and return its exit code: 130 after Ctrl-C, without a traceback. During an import, some modules turn the
    KeyboardInterrupt into an ImportError, so the causes of an error are searched for a KeyboardInterrupt."""
    try:
        from .cli import main as command

        return command()
    except BaseException as error:
        cause: BaseException | None = error
        while cause:
            if isinstance(cause, KeyboardInterrupt):
                return 130
            cause = cause.__cause__ or cause.__context__
        raise


if __name__ == "__main__":
    sys.exit(main())
