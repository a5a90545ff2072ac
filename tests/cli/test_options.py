"""The options of all subcommands: a name has one meaning everywhere, and a meaning has one name."""

import argparse

import pytest

from quark_numba import cli


def subparsers():
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers()
    for command in cli._COMMANDS:
        command.add_options(commands.add_parser(command.__name__))
    return commands.choices


OPTIONS = {}
for name, subparser in subparsers().items():
    for action in subparser._actions:
        for option in action.option_strings:
            OPTIONS.setdefault(option, {})[name] = action


@pytest.mark.parametrize("option", [option for option, actions in OPTIONS.items() if len(actions) > 1])
def test_one_meaning(option):
    """An option has the same help in all subcommands, apart from the default, which it gives in parentheses."""
    meanings = {
        name: (
            action.metavar,
            action.nargs,
            action.const,
            type(action),
            action.help.partition(" (default")[0].replace("%%", "%"),
        )
        for name, action in OPTIONS[option].items()
    }
    assert len({*meanings.values()}) == 1, meanings


def test_one_name():
    """No two options of the command have the same help, but for the default."""
    texts = {}
    for option, actions in OPTIONS.items():
        if option.startswith("--"):
            for action in actions.values():
                texts.setdefault(action.help.partition(" (default")[0], set()).add(option)
    assert [options for options in texts.values() if len(options) > 1] == []
