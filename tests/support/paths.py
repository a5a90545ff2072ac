"""Where the repository's folders are."""

from pathlib import Path

SUPPORT = Path(__file__).parent
TESTS = SUPPORT.parent
ROOT = TESTS.parent
MODELS = TESTS / "models"
