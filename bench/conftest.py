"""Facts that are added to pytest-benchmark's description of the machine."""

from importlib.metadata import PackageNotFoundError, version

from pages import instruction_sets

PACKAGES = ("quark_numba", "numba", "numpy", "onnxruntime", "onnxruntime-extensions", "onnx", "ml_dtypes", "torch", "qonnx")
PACKAGES += ("mct-quantizers", "amd-quark")


def pytest_benchmark_update_machine_info(machine_info):
    machine_info["quark_numba"] = dict(_versions())
    machine_info["instruction_sets"] = instruction_sets()


def _versions():
    for package in PACKAGES:
        try:
            yield package, version(package)
        except PackageNotFoundError:
            continue
