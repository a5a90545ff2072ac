"""The checks of PTX find the faults that they look for."""

import ptx
import pytest

GOOD = ".version 6.3\n.target sm_60\ndiv.rn.f32 %r1, %r2, %r3;\nadd.rn.f32 %r1, %r2, %r3;\nmad.lo.s64 %rd1, %rd2, %rd3, %rd4;\n"
BAD = ["div.approx.f32", "div.full.f32", "div.rn.ftz.f32", "add.f32", "mul.ftz.f32", "fma.rn.f32", "mad.rn.f32", "fma.rn.f64"]
BAD += ["rcp.approx.f32", "sqrt.approx.f32", "fma.rn.f16x2", "div.rz.f32"]


def test_ieee_arithmetic_passes():
    ptx.check_text(GOOD, divides=True)


@pytest.mark.parametrize("instruction", BAD)
def test_other_arithmetic_is_found(instruction):
    with pytest.raises(AssertionError):
        ptx.check_text(f"{GOOD}{instruction} %r1, %r2, %r3;\n", divides=True)


def test_a_missing_division_is_found():
    with pytest.raises(AssertionError):
        ptx.check_text(GOOD.replace("div", "max"), divides=True)
    with pytest.raises(AssertionError):
        ptx.check_text(GOOD, divides=False)


def test_ptxas_refuses_what_is_not_ptx(tmp_path):
    with pytest.raises(AssertionError, match="ptxas"):
        [*ptx.assembled(".version 6.3\n.target sm_60\n.address_size 64\nnothing;\n", tmp_path)]
