"""Sessions do not import sympy, which takes longer than all other imports of a session. Other code may."""

import pytest
from paths import MODELS
from processes import loaded

pytestmark = pytest.mark.compiled

# Its dimensions have names.
TEXTLINE = str(MODELS / "textline_cls_bf16.onnx")

SESSION = f"import quark_numba; quark_numba.InferenceSession({TEXTLINE!r}, cache=False)"

# Computes with the names of dimensions, by means of sympy.
COMPUTE = "import onnx_ir as ir; assert (2 * (ir.SymbolicDim('n') + ir.SymbolicDim('max(n, 4)'))).evaluate({'n': 3}) == 14"


def assert_runs(code):
    assert loaded(code, "sympy.core") == ["sympy.core"]


@pytest.mark.by_default(1)
@pytest.mark.parametrize("call", ["InferenceSession({!r}, cache=False)", "optimize({!r})"])
def test_sympy_is_not_imported(call):
    code = f"import quark_numba; quark_numba.{call.format(TEXTLINE)}"
    assert loaded(code, "sympy", "onnx_ir") == ["onnx_ir"]


@pytest.mark.slow
def test_a_session_needs_no_sympy():
    assert not loaded(f"import sys; sys.modules['sympy'] = None\n{SESSION}", "sympy.core")


@pytest.mark.slow
def test_onnx_ir_computes_with_names_after_a_session():
    assert_runs(f"{SESSION}\n{COMPUTE}")


def test_sympy_is_imported_after_a_session():
    same = "assert sympy is sys.modules['sympy'] and isinstance(ir.SymbolicDim(sympy.Symbol('n')), ir.SymbolicDim)"
    assert_runs(
        f"{SESSION}\nimport sys, onnx_ir as ir, sympy, sympy.physics.units\n{same}\nsympy.physics.units.meter\n{COMPUTE}"
    )


@pytest.mark.slow
def test_sympy_is_imported_before_a_session():
    assert_runs(f"import sympy\n{SESSION}\nimport onnx_ir._core\nassert onnx_ir._core.sympy is sympy\n{COMPUTE}")


@pytest.mark.slow
def test_onnx_ir_is_imported_before_the_package():
    assert_runs(f"import onnx_ir\n{SESSION}\n{COMPUTE}")


def test_threads_import_sympy_and_compute_at_once():
    code = f"""
import threading
def compute():
    import quark_numba
    {COMPUTE}
def import_sympy():
    import sympy.physics.units
    sympy.physics.units.meter
errors = []
threading.excepthook = errors.append
threads = [threading.Thread(target=target) for target in (compute, import_sympy) * 4]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert not errors, errors
"""
    assert_runs(code)
