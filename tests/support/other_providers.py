"""An execution provider that builds of ONNX Runtime have besides the CPU provider. In the plain build it leaves all nodes to
that one."""

import onnxruntime
import pytest

from quark_numba.ort import providers

CPU = ["CPUExecutionProvider"]
OTHERS = [each for each in onnxruntime.get_available_providers() if each not in CPU][-1:] + CPU


@pytest.fixture
def other_provider(monkeypatch):
    """Let the provider count as one that runs nodes elsewhere."""
    if OTHERS == CPU:
        pytest.skip("ONNX Runtime has no other provider")
    monkeypatch.setattr(providers, "_WITHOUT_DEVICE", {*CPU})
