"""``python -m quark_numba`` and the command ``quark-numba``."""

from __future__ import annotations

import sys


def main() -> int:
    """Run the command and return its exit code. Ctrl-C ends it with 130 and no traceback, even during an import: some modules
    raise an ImportError from the KeyboardInterrupt, so the causes of an error are searched for one."""
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
