"""Functions that run Python code in new processes."""

import functools
import os
import signal
import subprocess
import sys
import time

from paths import SUPPORT

# The beginning of the code: names that the code may use.
PREPARE = f"""
import functools, os, sys, threading, time
sys.path.insert(0, {str(SUPPORT)!r})
import numpy as np
import oracle
import onnx_models
from onnx_models import one_node, run
import quark_numba
from quark_numba import dequantize, get_library_path, quantize

session = functools.partial(onnx_models.session, spins=True)  # as in a user's process

def check(name, seed=0, size=200_000):
    x = np.random.default_rng(seed).normal(0, 50, size).astype(np.float32)
    zero_point = np.ones((), oracle.dtype(name))
    expected = oracle.quantize(x, np.float32(0.5), zero_point, name)
    oracle.assert_same_bits(quantize(x, np.float32(0.5), zero_point), expected)
    node = session(one_node("quantize", name))
    oracle.assert_same_bits(run(node, x=x, scale=np.float32(0.5), zero_point=zero_point), expected)

def wait(child):
    end = time.monotonic() + 60
    while time.monotonic() < end:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            assert status == 0, status
            return
        time.sleep(0.002)
    os.kill(child, 9)
    raise AssertionError("the child hangs")

def fork(action):
    child = os.fork()
    if not child:
        code = 1
        try:
            action()
            code = 0
        finally:
            os._exit(code)
    return child
"""


def note(path, text):
    """Append a line to a file: the text and the number of this process."""
    with open(path, "a") as file:
        file.write(f"{text} {os.getpid()}\n")


def python(*words, **environment):
    """Return the process of a Python that has run."""
    command = [sys.executable, *map(str, words)]
    return subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=600)


def loaded(code, *names):
    """Return the modules among `names` that are loaded in a new process after it has run the code."""
    code = f"{code}\nimport sys\nprint(*(name for name in {names!r} if name in sys.modules))"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()


def start(code, **environment):
    command = [sys.executable, "-P", "-c", PREPARE + code]  # the current folder may hold the package
    return subprocess.Popen(command, env={**os.environ, **environment})


def run(code, expected=0, seconds=300, **environment):
    process = start(code, **environment)
    try:
        assert process.wait(seconds) == expected
    finally:
        process.kill()  # which may hang


def interrupted(seconds, *arguments, **environment):
    """Return the exit code, output and errors of the command, which gets Ctrl-C `seconds` after its start. On Windows, Ctrl-C
    would go to all processes of the console, so the process interrupts itself there."""
    itself = f"import threading, _thread; threading.Timer({seconds}, _thread.interrupt_main).start()" if os.name == "nt" else ""
    begin = f"{itself}\nimport runpy; print(flush=True); runpy.run_module('quark_numba', run_name='__main__', alter_sys=True)"
    # A shell makes processes in the background ignore the signal, and child processes inherit this.
    heed = None if itself else functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    words, pipe = [sys.executable, "-P", "-c", begin, *arguments], subprocess.PIPE
    process = subprocess.Popen(words, env={**os.environ, **environment}, stdout=pipe, stderr=pipe, preexec_fn=heed)
    try:
        assert process.stdout.readline().strip() == b""  # it has begun
        if not itself:
            time.sleep(seconds)
            process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    return process.returncode, out, errors
