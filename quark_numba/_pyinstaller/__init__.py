"""What tells PyInstaller how to freeze applications that use this package."""

from __future__ import annotations


def hook_dirs() -> list[str]:
    """Return the folders with hooks. PyInstaller calls this; the entry point `pyinstaller40` names it."""
    return [*__path__]
