"""The expected results of models with quantization operators, computed operator by operator by onnx's reference evaluator, with
classes in plain numpy for the quantization operators, the integer operators, convolutions and pools. Imports nothing of the
package."""

import functools
import math

import numpy as np
import onnx
import oracle
from numpy.lib.stride_tricks import sliding_window_view
from onnx import helper, inliner
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun
from onnx.reference.ops import op_resize
from other_quantizers import NoSchema, attributes_of, from_onnx, reference_ops

MICROSOFT, QUARK, ONNX = "com.microsoft", "com.amd.quark", ""
NAMES = {np.dtype(row.dtype): name for name, row in oracle.TYPES.items()}


def outputs_of(model, feeds):
    """Return the outputs of a model, as a list."""
    with np.errstate(all="ignore"):
        return list(_evaluator(model.SerializeToString()).run(None, feeds))


@functools.lru_cache(maxsize=2)
def _evaluator(content):
    # The evaluator would not use the classes in local functions.
    return ReferenceEvaluator(inliner.inline_local_functions(onnx.load_from_string(content)), new_ops=list(CLASSES))


# Quantization.


def quantize(x, scale, zero_point=None, *, axis=1, block_size=0, output_dtype=0, saturate=1, precision=0):
    name = "uint8" if zero_point is None else NAMES[zero_point.dtype]
    if zero_point is None and output_dtype:
        name = NAMES[helper.tensor_dtype_to_np_dtype(output_dtype)]
    scale, zero_point = _spread(scale, zero_point, axis, block_size, x.shape)
    return oracle.quantize(x, scale, zero_point, name, saturate=bool(saturate))


def dequantize(x, scale, zero_point=None, *, axis=1, block_size=0, output_dtype=0):
    scale, zero_point = _spread(scale, zero_point, axis, block_size, x.shape)
    return np.asarray(oracle.dequantize(x, scale, zero_point, NAMES[x.dtype]))


def _spread(scale, zero_point, axis, block_size, shape):
    return [None if each is None else oracle.spread(each, axis, block_size, shape) for each in (scale, zero_point)]


def real(codes, scale, zero_point=None, axis=0):
    """Return codes as float64, with a scale for each index of the axis, if there are several. ONNX Runtime's integer operators
    also accept scales of one element."""
    if zero_point is not None and zero_point.size == 1:
        zero_point = np.broadcast_to(zero_point, scale.shape)
    return dequantize(codes, scale, zero_point, axis=axis).astype(np.float64)


def dynamic_quantize(x):
    low, high = min(0, x.min(initial=0)), max(0, x.max(initial=0))
    scale = np.float32((np.float32(high) - np.float32(low)) / np.float32(255))
    zero_point = np.uint8(np.clip(np.rint(-low / scale if scale else 0), 0, 255))
    return oracle.quantize(x, scale, zero_point, "uint8"), scale, zero_point


# Convolutions and pools, in float64.


def windows(x, kernel, fill, *, strides=None, dilations=None, pads=None, auto_pad="NOTSET"):
    """Return the windows of x as an array (N, C, *lengths, *kernel)."""
    rank = len(kernel)
    strides, dilations, pads = strides or [1] * rank, dilations or [1] * rank, pads or [0] * 2 * rank
    spans = [d * (k - 1) + 1 for d, k in zip(dilations, kernel, strict=True)]
    if auto_pad.startswith("SAME"):
        total = [max((-(-n // s) - 1) * s + k - n, 0) for n, s, k in zip(x.shape[2:], strides, spans, strict=True)]
        less = [each // 2 for each in total]
        more = [one - other for one, other in zip(total, less, strict=True)]
        pads = less + more if auto_pad == "SAME_UPPER" else more + less
    x = np.pad(x, [(0, 0), (0, 0), *zip(pads[:rank], pads[rank:], strict=True)], constant_values=fill)
    found = sliding_window_view(x, spans, tuple(range(2, 2 + rank)))
    places = [slice(None)] * 2 + [slice(None, None, step) for step in (*strides, *dilations)]
    return found[tuple(places)]


def conv(x, w, bias=None, *, group=1, kernel_shape=None, **window):
    x, w = x.astype(np.float64), w.astype(np.float64)
    found = windows(x, w.shape[2:], 0, **window)
    rank, n, channels = w.ndim - 2, x.shape[0], w.shape[0]
    lengths = found.shape[2 : 2 + rank]
    products = math.prod(w.shape[1:])
    found = found.reshape(n, group, x.shape[1] // group, math.prod(lengths), math.prod(w.shape[2:])).swapaxes(2, 3)
    columns = found.reshape(n, group, math.prod(lengths), products)
    y = columns @ w.reshape(group, channels // group, products).swapaxes(1, 2)
    y = y.swapaxes(2, 3).reshape(n, channels, *lengths)
    return y if bias is None else y + bias.astype(np.float64).reshape(-1, *[1] * rank)


def conv_transpose(x, w, bias=None, *, group=1, strides=None, kernel_shape=None, pads=None):
    rank = w.ndim - 2
    strides, pads = strides or [1] * rank, pads or [0] * 2 * rank
    lengths = [(n - 1) * s + 1 for n, s in zip(x.shape[2:], strides, strict=True)]  # below 0 if x has no elements
    wide = np.zeros((*x.shape[:2], *(max(each, 0) for each in lengths)))
    wide[(..., *(slice(None, None, s) for s in strides))] = x
    turned = w.reshape(group, w.shape[0] // group, *w.shape[1:]).swapaxes(1, 2)
    turned = turned.reshape(group * w.shape[1], w.shape[0] // group, *w.shape[2:])[(..., *[slice(None, None, -1)] * rank)]
    missing = [0] * rank + [min(each, 0) for each in lengths]
    around = [k - 1 - pad + less for k, pad, less in zip([*w.shape[2:]] * 2, pads, missing, strict=True)]
    return conv(wide, turned, bias, group=group, pads=around)


def max_pool(x, *, kernel_shape, **window):
    lowest = np.iinfo(x.dtype).min if x.dtype.kind in "iu" else -np.inf
    return windows(x, kernel_shape, lowest, **window).max(tuple(range(-len(kernel_shape), 0)))


def average_pool(x, *, kernel_shape, count_include_pad=0, ceil_mode=0, **window):
    axes = tuple(range(-len(kernel_shape), 0))
    sums = windows(x.astype(np.float64), kernel_shape, 0, **window).sum(axes)
    return sums / windows(np.ones(x.shape), kernel_shape, int(count_include_pad), **window).sum(axes)


def over_space(function):
    return lambda x: function(x, tuple(range(2, x.ndim)), keepdims=True)


def mean(x, axes, *, keepdims=True):
    """Return the mean in float64, NaN of no numbers."""
    count = math.prod(x.shape[k] for k in axes)
    return x.sum(axes, np.float64, keepdims=keepdims) / np.float64(count)


def reduce_mean(x, given=None, *, axes=None, keepdims=1, noop_with_empty_axes=0):
    chosen = axes if given is None else given.tolist()
    return mean(x, tuple(range(x.ndim)) if chosen is None else tuple(k % x.ndim for k in chosen), keepdims=bool(keepdims))


# Operators on codes: the result of the float operator on dequantized codes, quantized.


def coded(y, scale, zero_point):
    return oracle.quantize(y, np.asarray(scale), zero_point, NAMES[zero_point.dtype], precision="float64")


def qlinear_conv(x, sx, zx, w, sw, zw, sy, zy, bias=None, **named):
    bias = None if bias is None else bias * (np.float64(sx) * sw)
    return coded(conv(real(x, sx, zx), real(w, sw, zw), bias, **named), sy, zy)


def qlinear_matmul(a, sa, za, b, sb, zb, sy, zy):
    return coded(real(a, sa, za) @ real(b, sb, zb, -1), sy, zy)


def qgemm(a, sa, za, b, sb, zb, c, sy=None, zy=None, *, alpha=1.0, transA=0, transB=0):  # noqa: N803
    a, b = real(a, sa, za), real(b, sb, zb, -1)
    y = alpha * (a.T if transA else a) @ (b.T if transB else b)
    y = y if c is None else y + c * (np.float64(alpha) * sa * sb)
    return y.astype(np.float32) if sy is None else coded(y, sy, zy)


def qlinear_binary(operator):
    """These operators are ONNX Runtime's own, and add the zero point before they round."""

    def codes(a, sa, za, b, sb, zb, sy, zy):
        limits = np.iinfo(zy.dtype)
        y = np.rint(operator(real(a, sa, za), real(b, sb, zb)) / np.float64(sy) + np.float64(zy))
        return np.clip(y, limits.min, limits.max).astype(zy.dtype)

    return codes


def qlinear_concat(sy, zy, *inputs, axis):
    return coded(np.concatenate([real(*inputs[k : k + 3]) for k in range(0, len(inputs), 3)], axis), sy, zy)


def qlinear_average_pool(x, sx, zx, sy, zy, **named):
    return coded(average_pool(real(x, sx, zx), **named), sy, zy)


def qlinear_global_average_pool(x, sx, zx, sy, zy):
    return coded(over_space(mean)(real(x, sx, zx)), sy, zy)


def qlinear_unary(function):
    return lambda x, sx, zx, sy, zy, **named: coded(function(real(x, sx, zx), **named), sy, zy)


def difference(codes, zero_point, axis=None):
    zero_point = np.int64(0) if zero_point is None else zero_point.astype(np.int64)
    if zero_point.ndim == 1 and axis is not None:
        zero_point = oracle.along(zero_point, axis, codes.ndim)
    return codes.astype(np.int64) - zero_point


def conv_integer(x, w, zx=None, zw=None, **named):
    return conv(difference(x, zx), difference(w, zw, 0), **named).astype(np.int32)


def matmul_integer(a, b, za=None, zb=None):
    return (difference(a, za) @ difference(b, zb)).astype(np.int32)


# Shapes of tensors without elements, which the evaluator refuses.


def reshape(x, shape, *, allowzero=0):
    shape = [x.shape[k] if n == 0 and not allowzero else int(n) for k, n in enumerate(shape)]
    known = math.prod(n for n in shape if n != -1)
    return x.reshape([(x.size // known if known else 0) if n == -1 else n for n in shape])


def flatten(x, *, axis=1):
    return x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))


def concat(*inputs, axis):
    """Return the concatenation of all inputs that have elements. ONNX Runtime does not look at the shapes of others."""
    given = [each for each in inputs if each.size]
    if given:
        return np.concatenate(given, axis)
    shape = [*inputs[0].shape]
    shape[axis] = sum(each.shape[axis] for each in inputs)
    return np.zeros(shape, inputs[0].dtype)


def in_float32(function):
    return lambda x, *others, **named: function(x, *others, **named).astype(np.float32)


FUNCTIONS = {
    (ONNX, "QuantizeLinear"): quantize,
    (ONNX, "DequantizeLinear"): dequantize,
    (MICROSOFT, "QuantizeLinear"): quantize,
    (MICROSOFT, "DequantizeLinear"): dequantize,
    (QUARK, "ExtendedQuantizeLinear"): quantize,
    (QUARK, "ExtendedDequantizeLinear"): dequantize,
    (QUARK, "BFPQuantizeDequantize"): oracle.bfp,
    (QUARK, "MXQuantizeDequantize"): oracle.mx,
    (ONNX, "DynamicQuantizeLinear"): dynamic_quantize,
    (ONNX, "Conv"): in_float32(conv),
    (ONNX, "ConvTranspose"): in_float32(conv_transpose),
    (ONNX, "Concat"): concat,
    (ONNX, "Reshape"): reshape,
    (ONNX, "Flatten"): flatten,
    (ONNX, "MaxPool"): max_pool,
    (ONNX, "AveragePool"): in_float32(average_pool),
    (ONNX, "GlobalMaxPool"): over_space(np.max),
    (ONNX, "GlobalAveragePool"): in_float32(over_space(mean)),
    (ONNX, "ReduceMean"): in_float32(reduce_mean),
    (ONNX, "QLinearConv"): qlinear_conv,
    (ONNX, "QLinearMatMul"): qlinear_matmul,
    (ONNX, "ConvInteger"): conv_integer,
    (ONNX, "MatMulInteger"): matmul_integer,
    (MICROSOFT, "QGemm"): qgemm,
    (MICROSOFT, "QLinearAdd"): qlinear_binary(np.add),
    (MICROSOFT, "QLinearMul"): qlinear_binary(np.multiply),
    (MICROSOFT, "QLinearConcat"): qlinear_concat,
    (MICROSOFT, "QLinearAveragePool"): qlinear_average_pool,
    (MICROSOFT, "QLinearGlobalAveragePool"): qlinear_global_average_pool,
    (MICROSOFT, "QLinearLeakyRelu"): qlinear_unary(lambda x, alpha=0.01: np.where(x < 0, x * alpha, x)),
    (MICROSOFT, "QLinearSigmoid"): qlinear_unary(lambda x: 1 / (1 + np.exp(-x))),
}


class _Operator(OpRun):
    def __init__(self, onnx_node, run_params, schema=None):
        super().__init__(onnx_node, run_params, NoSchema)

    def _run(self, *inputs, **_):
        node = self.onnx_node
        arrays = [None if each is None else from_onnx(each) for each in inputs]
        result = FUNCTIONS[node.domain, node.op_type](*arrays, **attributes_of(node))
        return tuple(map(np.asarray, result)) if isinstance(result, tuple) else (np.asarray(result),)


class Resize(op_resize.Resize):
    """With opset 10, whose scales are the second input."""

    op_domain = ""

    def _run(self, x, roi=None, scales=None, sizes=None, **attributes):
        if scales is None and sizes is None:
            for axis, times in enumerate(roi):
                x = np.repeat(x, int(times), axis)
            return (x,)
        return super()._run(x, roi, scales, sizes, **attributes)


CLASSES = [each for each in reference_ops() if each.op_domain] + [Resize]
CLASSES += [type(name, (_Operator,), {"op_domain": domain}) for domain, name in FUNCTIONS]
