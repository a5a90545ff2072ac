"""Run the command in this process."""

import json

import pytest


def main(words):
    from quark_numba import cli  # later than conftest.py, which has to come before what it traces

    return cli.main([str(word) for word in words])


class Terminal:
    """A terminal for the command, whose words are strings or paths."""

    def __init__(self, capsys):
        self.capsys = capsys

    def _run(self, words, code):
        self.capsys.readouterr()
        returned, printed = main(words), self.capsys.readouterr()
        assert returned == code, (returned, printed)
        return printed

    def text(self, *words, code=0):
        """Return the output of the command."""
        return self._run(words, code).out

    def report(self, *words, code=0):
        """Return the content of the output in JSON, in which NaN and Infinity, of which Python makes some, have no place."""
        return json.loads(self._run([*words, "--json"], code).out, parse_constant=pytest.fail)

    def error(self, *words):
        """Return the error of a command that fails, in one line."""
        return self._run(words, 1).err.replace("\n", " ")

    def refusal(self, *words):
        """Return the error for words that the command refuses."""
        with pytest.raises(SystemExit) as stop:
            main(words)
        assert stop.value.code == 2
        return self.capsys.readouterr().err


@pytest.fixture
def terminal(capsys):
    return Terminal(capsys)
