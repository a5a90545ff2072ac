"""The declarations of the operators of the LSTM layer: inputs with their shapes, and attributes with the values that they may
have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..declaration import Attribute, Operator, Parameter, Tensor, known, shape_text
from ..element_types import FLOAT32
from .calls import extended_lstm
from .fixed_point import OPERANDS, layer_of
from .granularity import DIRECTIONS, FAULTS, GATES, layer_shape


def _infer(inputs: Sequence[Tensor | None], attributes: Mapping[str, Any]) -> list[Tensor]:
    layer_of(attributes)
    shapes = [tensor.shape if tensor else None for tensor in inputs]
    hidden = attributes["hidden_size"]
    rows = GATES * hidden
    # The input size is the last dimension of x and of w.
    size = next((shape[2] for shape in shapes[:2] if shape and len(shape) == 3 and shape[2] is not None), 1)
    stand_ins = ((1, 1, size), (DIRECTIONS, rows, size), (DIRECTIONS, rows, hidden), (DIRECTIONS, 2 * rows))
    fault, _, _, _ = layer_shape(hidden, *map(known, shapes, stand_ins))
    if fault:
        texts = {f"{name}_shape": shape_text(shape) for name, shape in zip("xwrb", shapes, strict=True)}
        raise ValueError(FAULTS[fault].format(**texts, hidden_size=hidden))
    steps, batch = (None, None) if shapes[0] is None else shapes[0][:2]
    return [Tensor(FLOAT32, [steps, DIRECTIONS, batch, hidden])]


OPERATORS = (
    Operator(
        family="recurrent",
        domain="com.amd.quark",
        name="ExtendedLSTM",
        operation="lstm",
        doc="y is the output of a bidirectional LSTM layer in 16-bit fixed point. See quark_numba.extended_lstm.",
        types={"T": (FLOAT32,)},
        inputs=(
            Parameter("x", "T", "Of shape [sequence length, batch, input size]."),
            Parameter("w", "T", "Of shape [2, 4 * hidden_size, input size]: input, output, forget, cell."),
            Parameter("r", "T", "Of shape [2, 4 * hidden_size, hidden_size]."),
            Parameter("b", "T", "Of shape [2, 8 * hidden_size]: biases of w, then of r."),
        ),
        outputs=(Parameter("y", "T", "Of shape [sequence length, 2, batch, hidden_size]."),),
        attributes=(
            Attribute("hidden_size", None, "Above 0."),
            *(Attribute(f"{name}_scale", None, f"Of {name}: finite and positive.", "FLOAT") for name in OPERANDS),
            *(Attribute(f"{name}_zero_point", None, f"Of {name}, modulo 65536.") for name in OPERANDS),
            Attribute("layout", 0, "0.", values=(0,)),
            Attribute("input_forget", 0, "0.", is_always_written=False, values=(0,)),
            Attribute("direction", "bidirectional", "Without meaning.", "STRING", is_always_written=False),
        ),
        call=extended_lstm,
        infer=_infer,
        faults=FAULTS,
        formats={"uint16": None},
        like=lambda inputs, attributes: (
            "LSTM",
            inputs,
            {"hidden_size": attributes["hidden_size"], "direction": "bidirectional"},
        ),
        is_checked_at_load=True,
    ),
)
