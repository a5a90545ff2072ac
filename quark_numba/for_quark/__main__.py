"""Run a script or a module in which Quark takes this package's operators: python -m quark_numba.for_quark SCRIPT"""

from __future__ import annotations

import os
import runpy
import sys

_USAGE = """usage: python -m quark_numba.for_quark SCRIPT [ARGUMENT ...]
       python -m quark_numba.for_quark -m MODULE [ARGUMENT ...]

Run a script or a module as Python does, but with Quark's ONNX quantizer on the operators of quark_numba."""


def main() -> None:
    """Run the script or module that `sys.argv` names, with its arguments. Exit with 2 if there is neither."""
    _, *words = sys.argv
    if words in (["-h"], ["--help"]):
        print(_USAGE)
    elif words[:1] == ["-m"] and len(words) > 1:
        sys.argv = words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    elif words and os.path.exists(words[0]):
        sys.argv = words
        if not sys.flags.safe_path:
            sys.path[0] = os.path.dirname(os.path.realpath(words[0]))
        runpy.run_path(words[0], run_name="__main__")
    else:
        fault = f"there is no file {words[0]}\n\n" if words and not words[0].startswith("-") else ""
        print(f"{fault}{_USAGE}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
