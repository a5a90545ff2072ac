"""The expected results of FakeQuantize of OpenVINO, computed in numpy. Imports nothing of the package."""

import numpy as np

f32 = np.float32


def fake_quantize(x, input_low, input_high, output_low, output_high, *, levels, auto_broadcast="numpy"):
    """Return the result of FakeQuantize-1 (OpenVINO, Operation Specifications), each operation in float32. Halves go to even,
    as in the reference of OpenVINO; the page does not say so."""
    if levels < 2 or auto_broadcast not in ("numpy", "none"):
        raise ValueError(f"levels is {levels}, and auto_broadcast {auto_broadcast}")
    low, high, y_low, y_high = (np.asarray(each).astype(f32) for each in (input_low, input_high, output_low, output_high))
    last = f32(levels - 1)
    with np.errstate(all="ignore"):
        y = np.round((x - low) / (high - low) * last) / last * (y_high - y_low) + y_low
    y = np.where(x > np.where(low < high, high, low), y_high, y)
    return np.where(x <= np.where(high < low, high, low), y_low, y).astype(f32)
