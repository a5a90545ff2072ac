"""The paths of the repository's folders."""

from pathlib import Path

SUPPORT = Path(__file__).parent
TESTS = SUPPORT.parent
ROOT = TESTS.parent
MODELS = TESTS / "models"
