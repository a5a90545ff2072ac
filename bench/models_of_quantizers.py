"""Models that other quantizers wrote, models with their layouts of nodes, their float models, and their runtimes."""

import warnings
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
from architectures import RANGE, architecture
from labels import DROP_IN, FLOAT, SESSION
from measuring import random_inputs
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnxruntime.capi.onnxruntime_pybind11_state import Fail
from other_quantizers import MCT, MODELS, NVIDIA, QONNX_DOMAINS, expectation, reference_ops

from quark_numba import nvfp4_quantize, to_tensor_proto

QONNX = QONNX_DOMAINS[0]
VENDOR = "quantizers_runtime"
CONTENDERS = FLOAT, DROP_IN, SESSION, VENDOR
FILES = {
    "qonnx/cnn/4_bits": "qonnx/cnn_w4a4",
    "qonnx/cnn/8_bits": "qonnx/cnn_w8a8",
    "qonnx/rounding_modes": "qonnx/modes",
    "qonnx/transformer_block": "qonnx/block_w4a8",
    "qonnx/one_bit": "qonnx/bipolar_mlp",
    "qonnx/minifloats": "qonnx/float_e4m3",
    "mct/cnn": "mct/mct_cnn_imx500",
    "mct/mlp": "mct/mct_mlp_tflite",
    "modelopt/mlp/float8": "nvidia/fp8_m",
    "modelopt/mlp/nvfp4": "nvidia/nvfp4_m",
}


def _qonnx(insert: Callable[..., str], value: str, weight: np.ndarray | None) -> str:
    """As Brevitas does: 8 bits, a scale for each output channel of a weight and one for an activation."""
    scale = np.float32(2 * RANGE / 256)
    if weight is not None:
        scale = np.abs(weight).max(axis=tuple(range(1, weight.ndim)), keepdims=True) / np.float32(127)
    numbers = {"scale": scale, "zero_point": np.float32(0), "bit_width": np.float32(8)}
    return insert("Quant", QONNX, value, numbers, signed=1, narrow=int(weight is not None), rounding_mode="ROUND")


def _mct(insert: Callable[..., str], value: str, weight: np.ndarray | None) -> str:
    """As the Model Compression Toolkit does for devices with thresholds that are powers of two."""
    if weight is None:
        return insert("ActivationPOTQuantizer", MCT, value, {}, threshold=RANGE, signed=1, num_bits=8, mctq_version="1.7.0")
    threshold = np.abs(weight).max(axis=tuple(range(1, weight.ndim)))
    attributes = {"num_bits": 8, "signed": 1, "mctq_version": "1.7.0", "per_channel": 1, "channel_axis": 0}
    return insert("WeightsSymmetricQuantizer", MCT, value, {"threshold": threshold}, **attributes)


def _float8(insert: Callable[..., str], value: str, weight: np.ndarray | None) -> str:
    """As ModelOpt does: weights are codes."""
    scale = {"scale": np.float32(RANGE / 448)}
    if weight is not None:
        codes = (weight / scale["scale"]).astype(ml_dtypes.float8_e4m3fn)
        return insert("DequantizeLinear", NVIDIA, codes, scale)
    return insert("DequantizeLinear", NVIDIA, insert("QuantizeLinear", NVIDIA, value, scale), scale)


def _nvfp4(insert: Callable[..., str], value: str, weight: np.ndarray | None) -> str:
    """As ModelOpt does: weights are codes, with the scales of blocks along their first axis."""
    scale = np.float32(RANGE / (6 * 448))
    axis = -1 if weight is None else 0
    if weight is not None:
        codes, scales = nvfp4_quantize(weight, scale, axis=axis)
    else:
        codes = insert("TRT_FP4DynamicQuantize", NVIDIA, value, {"scale": scale}, axis=axis, block_size=16, scale_type=17)
        scales = f"{codes}_1"
    factors = insert("DequantizeLinear", "", scales, {"scale": scale})
    return insert("DequantizeLinear", "", codes, {"scale": factors}, axis=axis, block_size=16)


# The operators whose inputs are quantized, and how.
LAYOUTS = {
    "qonnx/residual_network": ("residual_network", ("Conv", "Add", "GlobalAveragePool"), _qonnx),
    "mct/residual_network": ("residual_network", ("Conv", "Add", "GlobalAveragePool"), _mct),
    "modelopt/transformer/float8": ("transformer", ("MatMul",), _float8),
    "modelopt/transformer/nvfp4": ("transformer", ("MatMul",), _nvfp4),
}
NAMES = (*FILES, *LAYOUTS)


@lru_cache
def quantized(name: str) -> onnx.ModelProto:
    return onnx.load(_path(name)) if name in FILES else _with_layout(*LAYOUTS[name])


@lru_cache
def float_model(name: str) -> onnx.ModelProto:
    return _without_quantization(quantized(name)) if name in FILES else architecture(LAYOUTS[name][0])


def inputs(name: str) -> dict[str, np.ndarray]:
    return expectation(_path(name))[0] if name in FILES else random_inputs(architecture(LAYOUTS[name][0]))


def _path(name: str) -> Path:
    return MODELS / f"{FILES[name]}.onnx"


def _with_layout(model: str, operators: tuple[str, ...], layout: Callable[..., str]) -> onnx.ModelProto:
    """Return a model whose inputs of some operators are quantized: each tensor once, but neither biases nor constants of less
    than two dimensions."""
    result = onnx.ModelProto()
    result.CopyFrom(architecture(model))
    graph, nodes, renamed = result.graph, [], {}
    weights = {each.name: numpy_helper.to_array(each) for each in graph.initializer}

    def constant(array: np.ndarray) -> str:
        graph.initializer.append(to_tensor_proto(array, f"constant_{len(graph.initializer)}"))
        return graph.initializer[-1].name

    def insert(operator: str, domain: str, x: object, parameters: dict[str, object], **attributes: object) -> str:
        names = [each if isinstance(each, str) else constant(np.asarray(each)) for each in (x, *parameters.values())]
        output = f"quantized_{len(nodes)}"
        outputs = [output, f"{output}_1"][: 1 + (operator == "TRT_FP4DynamicQuantize")]
        nodes.append(helper.make_node(operator, names, outputs, output, domain=domain, **attributes))
        if operator == "QuantizeLinear":
            graph.value_info.append(helper.make_tensor_value_info(output, onnx.TensorProto.UINT8, None))
        return output

    for node in architecture(model).graph.node:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        # No quantizer of the layouts quantizes products of activations by default.
        is_quantized = node.op_type in operators and (node.op_type != "MatMul" or node.input[1] in weights)
        for index, value in enumerate(node.input[:2] if is_quantized else ()):
            weight = weights.get(value)
            if weight is None or weight.ndim >= 2:
                if value not in renamed:
                    renamed[value] = layout(insert, value, weight)
                copy.input[index] = renamed[value]
        nodes.append(copy)
    del graph.node[:]
    graph.node.extend(nodes)
    used = {value for node in nodes for value in node.input}
    kept = [each for each in graph.initializer if each.name in used]
    del graph.initializer[:]
    graph.initializer.extend(kept)
    for each in result.opset_import:
        each.version = 23  # DequantizeLinear of four bits
    result.ir_version = 11
    result.opset_import.extend(helper.make_opsetid(domain, 1) for domain in {node.domain for node in nodes} - {""})
    return result


def _without_quantization(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model without its quantization nodes. Where these compute a constant, the result has it. Initializers are no
    inputs of the graph: ONNX Runtime could not prepare weights for convolutions."""
    result, evaluated = onnx.ModelProto(), onnx.ModelProto()
    result.CopyFrom(model)
    graph, before = result.graph, {}
    constants = {each.name for each in graph.initializer}
    kept, computed = [], set()
    for node in graph.node:
        if node.domain in (*QONNX_DOMAINS, MCT, NVIDIA) or node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            if all(value in constants for value in node.input if value):
                constants.update(node.output)
                computed.update(node.output)
            else:
                before.update(dict.fromkeys(node.output, before.get(node.input[0], node.input[0])))
            continue
        node.input[:] = [before.get(value, value) for value in node.input]
        kept.append(node)
    wanted = [value for value in dict.fromkeys(value for node in kept for value in node.input) if value in computed]
    evaluated.CopyFrom(model)
    del evaluated.graph.output[:]
    evaluated.graph.output.extend(helper.make_empty_tensor_value_info(value) for value in wanted)
    used = [node for node in evaluated.graph.node if set(node.output) & computed]
    del evaluated.graph.node[:]
    evaluated.graph.node.extend(used)
    held = {each.name for each in evaluated.graph.initializer}
    open_inputs = [each for each in evaluated.graph.input if each.name in held]
    del evaluated.graph.input[:]
    evaluated.graph.input.extend(open_inputs)
    arrays = ReferenceEvaluator(evaluated, new_ops=reference_ops()).run(None, {}) if wanted else []
    graph.initializer.extend(to_tensor_proto(array, value) for value, array in zip(wanted, arrays, strict=True))
    del graph.node[:]
    graph.node.extend(kept)
    real_inputs = [each for each in graph.input if each.name not in held]
    del graph.input[:]
    graph.input.extend(real_inputs)
    for each in graph.output:
        each.name = before.get(each.name, each.name)
    return result


def vendors_runtime(name: str) -> Callable[[], object] | None:
    """Return a run of a model in the quantizer's own runtime. None: it has none for a CPU, it is not installed, or sessions of
    the extensions backend have registered operators of the same names in this process."""
    try:
        if name.startswith("qonnx"):
            return _in_qonnx(name)
        if name.startswith("mct"):
            return _in_mct_quantizers(name)
    except (ImportError, Fail):
        pass
    return None


def _in_qonnx(name: str) -> Callable[[], object]:
    from qonnx.core.modelwrapper import ModelWrapper
    from qonnx.core.onnx_exec import execute_onnx
    from qonnx.transformation.infer_shapes import InferShapes

    model, feeds = ModelWrapper(quantized(name)).transform(InferShapes()), inputs(name)
    return lambda: execute_onnx(model, feeds)


def _in_mct_quantizers(name: str) -> Callable[[], object]:
    import onnxruntime

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import mct_quantizers

        options = mct_quantizers.get_ort_session_options()
    options.intra_op_num_threads = 1
    session, feeds = onnxruntime.InferenceSession(quantized(name).SerializeToString(), options), inputs(name)
    return lambda: session.run(None, feeds)
