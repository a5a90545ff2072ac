"""``python -m quark_numba`` and the command ``quark-numba``."""

from __future__ import annotations

import sys


def main() -> int:
    """The command. Ctrl-C ends it without a traceback, also while modules are imported, some of which make an ImportError of
    it."""
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
