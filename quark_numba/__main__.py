"""The entry point of ``python -m quark_numba`` and of the command ``quark-numba``, and its end after Ctrl-C: exit code 130,
without a traceback."""

from __future__ import annotations

import signal
import sys


def main() -> int:
    """Run the command and return its exit code: 130 after Ctrl-C, without a traceback. Some libraries turn the
    KeyboardInterrupt into an error of their own, so the causes of an error are searched for a KeyboardInterrupt."""
    try:
        from .errors import interrupt

        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, interrupt)
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
