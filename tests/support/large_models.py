"""Models with their tensors in files, and lower limits from which a model is large, so that small models take the same way."""

import onnx
import pytest

from quark_numba.models import model_files, protos, tensors
from quark_numba.rewriting import constants


@pytest.fixture
def is_large(monkeypatch):
    """Every model is large, and its tensors have many parts."""
    monkeypatch.setattr(model_files, "MAX_IN_MEMORY", 0)
    monkeypatch.setattr(protos, "_LARGE", model_files.LEAST_APART)
    monkeypatch.setattr(constants, "_LARGE", 0)
    monkeypatch.setattr(tensors, "_PART", 1 << 6)


def apart(content, path, location="weights"):
    """Write a model with its tensors in a file beside it."""
    copy = onnx.ModelProto()
    copy.CopyFrom(content)
    onnx.save(copy, path, save_as_external_data=True, location=location)
