"""Convolutions of 8-bit codes times powers of two, which sessions compute on codes. Every bit is that of a drop-in session that
optimizes nothing."""

import logging

import numpy as np
import onnx
import onnxruntime
import pytest
from blocked_models import count, has_blocks, laid_out
from conv_oracle import convolve
from marks import batches
from onnx_models import session_options
from paths import MODELS
from text_graphs import text_model

import quark_numba
from quark_numba.declaration.reasons import NotRewrittenError
from quark_numba.session.blocked import codes as blocked_codes
from quark_numba.session.blocked.grids import Grid, exact_conv

blocked = [
    pytest.mark.compiled,
    pytest.mark.skipif(not has_blocks(), reason="ONNX Runtime has no such layout on this processor"),
]


@pytest.fixture(autouse=True)
def _always_faster(monkeypatch):
    """Convolutions of codes also run on processors without the instructions, where they are not chosen otherwise."""
    monkeypatch.setattr(blocked_codes, "_has_dot_products", lambda lanes: True)
    monkeypatch.setattr(blocked_codes, "_has_lookup", lambda: True)
    monkeypatch.setattr(blocked_codes, "_FEWEST_PRODUCTS", 1)


def weights_of(*shape, seed=0, largest=127):
    """Return integers as float32, among them the largest, to be multiplied by a power of two."""
    w = np.random.default_rng(seed).integers(-largest, largest + 1, shape).astype(np.float32)
    w.flat[0] = largest
    return w


def network(steps, channels=16, *, inputs="float[2, 16, 9, 11] x", zero_point=None, **constants):
    """Return a model of `steps` between a quantized x ("a", in steps of 1/8) and y. The weights w have `channels` rows."""
    constants = {
        "w": weights_of(channels, 16, 3, 3) / 64,
        "bias": weights_of(channels, seed=1) / 256,
        "first": weights_of(16, 16, 1, 1, seed=2) / 128,
        "scale": 0.125,
        "fine": 2.0**-5,
    } | constants
    return text_model(
        f"({inputs}) => (float[] y) {{ x0 = Conv (x, first) a = Pair (x0, scale, zero_point) {steps} }}",
        opset=17,
        zero_point=np.uint8(120) if zero_point is None else zero_point,
        **{
            name: np.asarray(value, getattr(value, "dtype", np.float32))
            for name, value in constants.items()
            if value is not None
        },
    )


def drop_in(source, feeds):
    options = session_options(threads=1)
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    quark_numba.register(options)
    return onnxruntime.InferenceSession(source.SerializeToString(), options).run(None, feeds)


def results(source, feeds, threads=1):
    return quark_numba.InferenceSession(source, session_options(threads=threads)).run(None, feeds)


def on_grid(*shape, seed=5):
    """Return an x in small steps, so that the first convolution, which stays in float, is exact too."""
    return np.random.default_rng(seed).integers(-40, 40, shape).astype(np.float32) / 32


def assert_computed_on_codes(source, convolutions=1, shape=(2, 16, 9, 11), codes=0):
    """So many convolutions are computed on codes, and `codes` others give codes as well. The result has the bits of the drop-in
    session."""
    after = laid_out(source)
    assert (count(after, "IntegerConv"), count(after, "IntegerConvToCodes")) == (convolutions, codes)
    feeds = {"x": on_grid(*shape)}
    for threads in (1, 2):
        for mine, expected in zip(results(source, feeds, threads), drop_in(source, feeds), strict=True):
            assert len(np.unique(expected)) > 20
            np.testing.assert_array_equal(mine.view(np.int32), expected.view(np.int32))


STEPS = {
    "a convolution": "y = Conv <pads = [1, 1, 1, 1]> (a, w, bias)",
    "no bias": "y = Conv (a, w)",
    "strides": "y = Conv <strides = [2, 3], pads = [1, 0, 1, 2]> (a, w, bias)",
    "dilations": "y = Conv <dilations = [2, 3], pads = [2, 3, 2, 3]> (a, w, bias)",
    "Relu": "b = Conv (a, w, bias) y = Relu (b)",
    "Relu, then a pair": "b = Conv (a, w, bias) c = Relu (b) y = Pair (c, fine, zero_point)",
    "a region": "b = Conv (a, w, bias) c = HardSigmoid (b) d = Mul (b, c) y = Pair (d, fine, zero_point)",
    "MaxPool": "b = MaxPool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (a) y = Conv (b, w, bias)",
    "a part": "b, c = Split <axis = 1> (twice, sizes) y = Conv (c, w, bias)",
    "a Concat": "b = Concat <axis = 2> (a, a) y = Conv (b, w, bias)",
    "Resize": 'b = Resize <mode = "nearest"> (a, "", factors) y = Conv (b, w, bias)',
    "Pad": "b = Pad (a, pads, nothing) y = Conv (b, w, bias)",
    "Pad without a number": "b = Pad (a, pads) y = Conv (b, w, bias)",
    "Pad with what is there": 'b = Pad <mode = "reflect"> (a, pads) y = Conv (b, w, bias)',
    "Transpose": "b = Transpose <perm = [0, 1, 3, 2]> (a) y = Conv (b, w, bias)",
}
STEPS["a part"] = "twice = Concat <axis = 1> (a, a) " + STEPS["a part"]
CONSTANTS = {
    "sizes": np.array([16, 16]),
    "factors": np.array([1, 1, 2, 2], np.float32),
    "pads": np.array([0, 0, 1, 2, 0, 0, 1, 0]),
    "nothing": np.array(0, np.float32),
}


@pytest.mark.parametrize("name", STEPS)
class TestSessions:
    pytestmark = blocked

    @pytest.mark.covering
    @pytest.mark.by_default(20, slow=20)
    @pytest.mark.parametrize("zero_point", [np.uint8(120), np.int8(-3), np.int8(90), np.uint8(20)])
    def test_same_bits(self, name, zero_point):
        constants = {key: value for key, value in CONSTANTS.items() if key in STEPS[name]}
        gives_codes = name == "Relu, then a pair"
        source = network(STEPS[name], zero_point=zero_point, **constants)
        assert_computed_on_codes(source, not gives_codes, codes=gives_codes)

    def test_channels_beside_blocks(self, name):
        """The output has channels that fill no block."""
        if "Relu" in name or "region" in name or "convolution" in name:
            gives_codes = name == "Relu, then a pair"
            assert_computed_on_codes(network(STEPS[name], 20), not gives_codes, codes=gives_codes)


class TestModels:
    pytestmark = blocked

    def test_a_free_batch(self):
        source = network(STEPS["Relu, then a pair"], inputs="float[n, 16, 9, 11] x")
        for batch in (1, 3):
            assert_computed_on_codes(source, 0, shape=(batch, 16, 9, 11), codes=1)

    def test_free_sizes(self):
        source = network(STEPS["strides"], inputs="float[n, 16, h, w] x")
        for size in ((1, 16, 5, 6), (2, 16, 33, 70)):
            assert_computed_on_codes(source, shape=size)

    def test_a_pixel(self):
        source = network("y = Conv (a, w, bias)", 64, inputs="float[n, 16, h, w] x", w=weights_of(64, 16, 1, 1) / 64)
        assert_computed_on_codes(source, shape=(2, 16, 1, 1))

    def test_groups(self):
        w = weights_of(64, 16, 3, 3) / 64
        steps = "b = Concat <axis = 1> (a, a) y = Conv <group = 2> (b, w, bias)"
        assert_computed_on_codes(network(steps, 64, w=w))

    def test_scales_for_each_channel(self):
        w = weights_of(48, 16, 3, 3) * np.exp2(np.arange(48) % 7 - 9).reshape(48, 1, 1, 1)
        assert_computed_on_codes(network("y = Conv (a, w, bias)", 48, w=w.astype(np.float32)))

    def test_one_after_the_other(self):
        steps = "b = Conv <pads = [1, 1, 1, 1]> (a, w) c = Pair (b, scale, zero_point) y = Conv (c, w, bias)"
        assert_computed_on_codes(network(steps), 1, codes=1)

    def test_a_model_of_quark(self):
        """All convolutions between its first and its last ones are computed on codes, most of them behind a Pad."""
        after = laid_out(onnx.load(MODELS / "style_xint8.onnx"))
        assert count(after, "IntegerConvToCodes") >= 9


# Pass the codes of a first convolution on. All of these take whole blocks of 32 channels. The number is that of nodes that turn
# codes into numbers; None if the convolution gives none.
BETWEEN = {
    "a region": ("e = HardSigmoid (d) f = Mul (d, e) b = Pair (f, fine, zero_point)", 0),
    "Relu": ("f = Relu (d) b = Pair (f, fine, zero_point)", 0),
    "Split and Concat": ("g, h = Split <axis = 1> (d, halves) b = Concat <axis = 1> (h, g)", 0),
    "Slice": ("g = Slice (d, half, end, axis) b = Concat <axis = 1> (g, g)", 0),
    "MaxPool": ("b = MaxPool <kernel_shape = [2, 2]> (d)", 1),
    "Concat of two scales": ("h = Concat <axis = 1> (d, a) b = Slice (h, zero, end32, axis)", 1),
    "Concat of a region": (
        "g = Concat <axis = 1> (x0, x0) e = Pair (g, fine, zero_point) b = Concat <axis = 1> (e, d)",
        0,
    ),
    "another user": ("e = Relu (c) b = Concat <axis = 1> (d, e)", None),
    "a sum": ("e = Add (d, d) b = Pair (e, scale, zero_point)", 0),
    "a sum of another": ("g = Concat <axis = 1> (a, a) e = Add (d, g) b = Pair (e, scale, zero_point)", None),
}
NUMBERS = {"halves": [16, 16], "half": [16], "end": [2**63 - 1], "end32": [32], "axis": [1], "zero": [0]}


@pytest.mark.parametrize("name", BETWEEN)
@pytest.mark.parametrize("looks_up", [True, False])
class TestCodesBetween:
    pytestmark = blocked

    def test_same_bits(self, name, looks_up, monkeypatch):
        monkeypatch.setattr(blocked_codes, "_has_lookup", lambda: looks_up)
        steps, decoded = BETWEEN[name]
        inner = 64 if name in ("another user", "Concat of a region") else 32
        constants = {key: np.array(value) for key, value in NUMBERS.items() if f"{key}," in steps or f"{key})" in steps}
        source = network(
            f"c = Conv <pads = [1, 1, 1, 1]> (a, w) d = Pair (c, fine, zero_point) {steps} y = Conv (b, v)",
            32,
            bias=None,
            v=weights_of(16, inner, 1, 1, seed=9) / 64,
            **constants,
        )
        after = laid_out(source)
        gives_codes = looks_up and decoded is not None
        assert count(after, "IntegerConvToCodes") == gives_codes
        if gives_codes:
            assert count(after, "Dequantize") == decoded
            assert count(after, "Quantize") == (name == "Concat of a region")
        feeds = {"x": on_grid(2, 16, 9, 11)}
        for mine, expected in zip(results(source, feeds, 2), drop_in(source, feeds), strict=True):
            assert len(np.unique(expected)) > 20
            np.testing.assert_array_equal(mine.view(np.int32), expected.view(np.int32))


class RandomNetwork:
    """A network of random steps on 8-bit codes times powers of two. `values` are pairs of a name and a number of channels, all
    of one height and width."""

    def __init__(self, seed):
        self.random = np.random.default_rng(seed)
        self.constants, self.steps, self.count = {}, [], 0
        self.values = [("a", 16, 0.125)]
        self.signed = bool(self.random.integers(2))
        zero_point = int(self.random.integers(-40, 40)) + 128 * (not self.signed)
        self.zero_point = (np.int8 if self.signed else np.uint8)(zero_point)
        for _ in range(int(self.random.integers(4, 12))):
            kinds = ("conv", "conv", "conv", "concat", "split", "slice", "pool", "resize", "add", "relu")
            getattr(self, str(self.random.choice(kinds)))()
        self.conv()
        names = [name for name, *_ in self.values]
        self.outputs = [names[-1], str(self.random.choice(names))]
        self.steps += [f"{out} = Identity ({name})" for out, name in zip(("y", "z"), self.outputs, strict=True)]

    def new(self):
        self.count += 1
        return f"v{self.count}"

    def constant(self, value):
        name = f"k{len(self.constants)}"
        self.constants[name] = np.asarray(value)
        return name

    def take(self):
        return self.values[int(self.random.integers(max(0, len(self.values) - 3), len(self.values)))]

    def keep(self, name, channels, scale):
        self.values.append((name, channels, scale))

    def pair(self, name, channels, scale):
        """Round a value to a grid, and keep it."""
        y = self.new()
        self.steps.append(f"{y} = Pair ({name}, {self.constant(np.float32(scale))}, zero_point)")
        self.keep(y, channels, scale)

    def conv(self):
        x, channels, scale = self.take()
        random, group = self.random, int(self.random.choice([1, 1, 1, 2])) if channels % 32 == 0 else 1
        outer = int(random.choice([16, 20, 32, 48, 64])) if group == 1 else 32 * int(random.integers(1, 3))
        kernel = [int(random.choice([1, 1, 3])) for _ in range(2)]
        dilations = [int(random.integers(1, 3)) for _ in range(2)]
        pads = [(size - 1) * dilation // 2 for size, dilation in zip(kernel, dilations, strict=True)]
        w = weights_of(outer, channels // group, *kernel, seed=int(random.integers(1 << 30)))
        step = 2.0 ** int(random.integers(-9, -3))
        w *= np.exp2(random.integers(-1, 2, outer) * int(random.integers(2))).reshape(-1, 1, 1, 1).astype(np.float32) * step
        operands = [x, self.constant(w)]
        if random.integers(2):
            operands.append(self.constant(weights_of(outer, seed=int(random.integers(1 << 30))) * np.float32(scale * step * 8)))
        made, how = self.new(), f"pads = [{pads[0]}, {pads[1]}, {pads[0]}, {pads[1]}], dilations = {dilations}, group = {group}"
        self.steps.append(f"{made} = Conv <{how}> ({', '.join(operands)})")
        wide = 2.0 ** round(np.log2(scale * step * np.sqrt(channels // group * np.prod(kernel)) * 40))
        kind = int(random.integers(6))
        if kind in (1, 2):
            self.pair(made, outer, wide)
            made, *_ = self.values[-1]
        if kind in (2, 3):
            gate, product = self.new(), self.new()
            self.steps += [f"{gate} = HardSigmoid ({made})", f"{product} = Mul ({made}, {gate})"]
            made = product
        if kind == 4:
            relu = self.new()
            self.steps.append(f"{relu} = Relu ({made})")
            made = relu
        if kind != 1:
            self.pair(made, outer, wide * 2.0 ** int(random.integers(-1, 2)))

    def step(self, text, channels, scale):
        name = self.new()
        self.steps.append(f"{name} = {text}")
        self.keep(name, channels, scale)

    def concat(self):
        (a, channels, scale), (b, more, other) = self.take(), self.take()
        if scale == other and channels + more <= 128:
            self.step(f"Concat <axis = 1> ({a}, {b})", channels + more, scale)

    def split(self):
        x, channels, scale = self.take()
        if channels % 32 == 0:
            a, b = self.new(), self.new()
            self.steps.append(f"{a}, {b} = Split <axis = 1> ({x}, {self.constant([channels // 2] * 2)})")
            self.keep(a, channels // 2, scale)
            self.keep(b, channels // 2, scale)

    def slice(self):
        x, channels, scale = self.take()
        last = int(self.random.integers(16, channels + 1)) if self.random.integers(2) else 16
        last -= last % 4
        names = [self.constant([number]) for number in (0, last, 1)]
        self.step(f"Slice ({x}, {', '.join(names)})", last, scale)

    def pool(self):
        x, channels, scale = self.take()
        self.step(f"MaxPool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> ({x})", channels, scale)

    def resize(self):
        """Enlarge, and take every other pixel of the result."""
        x, channels, scale = self.take()
        large, factors = self.new(), self.constant(np.array([1, 1, 2, 2], np.float32))
        self.steps.append(f'{large} = Resize <mode = "nearest"> ({x}, "", {factors})')
        eye = np.zeros((channels, channels, 1, 1), np.float32)
        eye[range(channels), range(channels)] = 1
        self.step(f"Conv <strides = [2, 2]> ({large}, {self.constant(eye)})", channels, scale)
        self.pair(self.values.pop()[0], channels, scale)

    def add(self):
        (a, channels, scale), (b, more, other) = self.take(), self.take()
        if channels == more:
            total = self.new()
            self.steps.append(f"{total} = Add ({a}, {b})")
            self.pair(total, channels, 2 * max(scale, other))

    def relu(self):
        x, channels, scale = self.take()
        self.step(f"Relu ({x})", channels, scale)

    def model(self):
        return text_model(
            "(float[n, 16, 6, 15] x) => (float[] y, float[] z) { x0 = Conv (x, first) a = Pair (x0, eighth, zero_point) "
            + " ".join(self.steps)
            + " }",
            opset=17,
            zero_point=self.zero_point,
            eighth=np.float32(0.125),
            first=weights_of(16, 16, 1, 1, seed=2) / 128,
            **self.constants,
        )


@batches(default=(0, 8, 8), slow=(8, 224, 54))
class TestRandomNetworks:
    pytestmark = blocked

    def test_same_bits(self, seeds):
        counts = {"IntegerConv": 0, "IntegerConvToCodes": 0, "Conv": 0}
        for seed in seeds:
            source = RandomNetwork(seed).model()
            feeds = {"x": on_grid(1 + seed % 2, 16, 6, 15, seed=seed)}
            for mine, expected in zip(results(source, feeds, 1 + seed % 2), drop_in(source, feeds), strict=True):
                np.testing.assert_array_equal(mine.view(np.int32), expected.view(np.int32), str(seed))
            after = laid_out(source)
            counts = {name: total + (count(after, name) if after else 0) for name, total in counts.items()}
        assert counts["IntegerConv"] > 0
        assert counts["IntegerConvToCodes"] > len(seeds)


# Graphs whose convolution has to stay in float, and the reason.
LEFT = {
    "another scale": (STEPS["a convolution"], {"scale": 0.3}, "not known to be 8-bit codes times a power of two"),
    "16 bits": (STEPS["a convolution"], {"zero_point": np.uint16(7)}, "not known to be 8-bit codes"),
    "a sum": ("b = Add (a, a) y = Conv (b, w, bias)", {}, "not known to be 8-bit codes"),
    "a pool with windows of pads": (
        "b = MaxPool <kernel_shape = [3, 3], dilations = [2, 2], pads = [2, 2, 2, 2]> (a) y = Conv (b, w, bias)",
        {},
        "not known to be 8-bit codes",
    ),
    "a pool beyond the end": (
        "b = MaxPool <kernel_shape = [2, 2], strides = [3, 3], ceil_mode = 1> (a) y = Conv (b, w, bias)",
        {},
        "not known to be 8-bit codes",
    ),
    "a Pad with another number": (
        "b = Pad (a, pads, third) y = Conv (b, w, bias)",
        {"pads": CONSTANTS["pads"], "third": np.array(1 / 3, np.float32)},
        "not known to be 8-bit codes",
    ),
    "a Pad with -0": (
        "b = Pad (a, pads, negative) y = Conv (b, w, bias)",
        {"pads": CONSTANTS["pads"], "negative": np.array(-0.0, np.float32)},
        "not known to be 8-bit codes",
    ),
    "a Pad with a computed number": (
        "computed = ReduceMax <keepdims = 0> (x) b = Pad (a, pads, computed) y = Conv (b, w, bias)",
        {"pads": CONSTANTS["pads"]},
        "not known to be 8-bit codes",
    ),
    "two scales": (
        "c = Pair (x0, fine, zero_point) b = Concat <axis = 2> (a, c) y = Conv (b, w, bias)",
        {},
        "not known to be 8-bit codes",
    ),
    "weights of 9 bits": (
        STEPS["a convolution"],
        {"w": weights_of(16, 16, 3, 3, largest=255) / 64},
        "are not integers of 8 bits",
    ),
    "weights with another scale": (STEPS["a convolution"], {"w": weights_of(16, 16, 3, 3) / 100}, "are not integers of 8 bits"),
    "a fine bias": (STEPS["a convolution"], {"bias": weights_of(16) * 2.0**-22}, "may need more than 24 bits"),
    "a large bias": (STEPS["a convolution"], {"bias": weights_of(16) * 2.0**12}, "may need more than 24 bits"),
    "small groups": ("y = Conv <group = 2> (a, w, bias)", {"w": weights_of(16, 8, 3, 3) / 64}, "are not whole blocks"),
    "auto_pad": ('y = Conv <auto_pad = "SAME_UPPER"> (a, w, bias)', {}, "it has auto_pad"),
    "another activation": ("b = Conv (a, w, bias) y = LeakyRelu (b)", {}, "an activation other than Relu"),
    "computed weights": ("v = Mul (a, a) s = Slice (v, o, e, r) y = Conv (a, s)", {}, "its weights are not constants"),
}


@pytest.mark.parametrize("name", LEFT)
class TestLeft:
    pytestmark = blocked

    def test_stays_in_float(self, name, caplog):
        steps, constants, reason = LEFT[name]
        if "Slice" in steps:
            constants = {key: np.array(value) for key, value in {"o": [0, 0], "e": [2, 3], "r": [0, 2]}.items()}
        source = network(steps, **constants)
        with caplog.at_level(logging.DEBUG, "quark_numba.session.blocked.counterparts"):
            after = laid_out(source)
        assert after is None or count(after, "IntegerConv") == 0
        assert any(reason in record.getMessage() for record in caplog.records), [r.getMessage() for r in caplog.records]


def taken(grid, w, bias):
    """Return the weights of an exact convolution and "", or None and the reason why it is not exact."""
    try:
        return exact_conv(grid, w, bias), ""
    except NotRewrittenError as error:
        return None, error.reason


def sums_of(codes, grid, exact, bias):
    sums = convolve(codes, exact.codes, zero=grid.zero_point)
    return sums * exact.scales.astype(np.float64).reshape(-1, 1, 1) + bias.astype(np.float64).reshape(-1, 1, 1)


@pytest.mark.parametrize("seed", range(20))
def test_a_float_sum_in_any_order_has_the_same_bits(seed):
    """Whatever `exact_conv` accepts: float32 sums of the products and the bias, in random orders, equal the integers' sums."""
    random = np.random.default_rng(seed)
    grid = Grid(2.0 ** int(random.integers(-10, 10)), int(random.integers(0, 256)))
    depth = int(random.integers(1, 400))
    codes = random.choice([0, 255, int(random.integers(0, 256))], (1, depth, 1, 1))
    w = random.integers(-128, 128, (4, depth, 1, 1)) * np.exp2(random.integers(-20, 20, (4, 1, 1, 1)))
    bias = random.integers(-500, 500, 4) * np.exp2(random.integers(-12, 4)) * grid.scale
    w, bias = w.astype(np.float32), bias.astype(np.float32)
    exact, reason = taken(grid, w, bias)
    if exact is None:
        assert "24 bits" in reason
        return
    np.testing.assert_array_equal(exact.codes * (exact.scales / np.float32(grid.scale)).reshape(-1, 1, 1, 1), w)
    expected = sums_of(codes, grid, exact, bias).ravel()
    x = ((codes - grid.zero_point) * grid.scale).astype(np.float32).ravel()
    for channel in range(4):
        terms = np.append(x * w[channel].ravel(), bias[channel])
        for order in (np.argsort(terms), np.argsort(-np.abs(terms)), random.permutation(terms.size)):
            assert np.cumsum(terms[order], dtype=np.float32)[-1] == expected[channel]


def largest_sum(total, bias=0.0, grid=None):
    """Return whether sums of this magnitude are taken for exact: total / 255 products of the code 255."""
    count, rest = divmod(total // 255, 127)
    w = np.array([[127.0] * count + [float(rest)]], np.float32).reshape(1, -1, 1, 1)
    exact, reason = taken(grid or Grid(1.0, 0), w, np.array([bias], np.float32))
    assert exact or "24 bits" in reason
    return exact is not None


def test_sums_up_to_24_bits():
    most = (1 << 24) // 255 * 255  # 16,777,215 is a multiple of 255
    assert most == (1 << 24) - 1
    assert largest_sum(most)
    assert not largest_sum(most + 255)
    assert not largest_sum(most, 1.0)
    assert not largest_sum(most, -1.0)
    assert largest_sum(most - 255, 255.0)
    assert not largest_sum(most - 255, 256.0)


def test_a_fine_bias_makes_all_sums_finer():
    assert largest_sum(255 * 127 * 64, 0.125)
    assert not largest_sum(255 * 127 * 64, 0.125 / 64)
    assert largest_sum(255 * 127 * 64, 0.0)


def test_the_zero_point_decides_the_largest_code():
    """Of 128, no code is further away than 128; of 0 or 255, 255."""
    assert largest_sum(255 * 127 * 1000, grid=Grid(1.0, 128))
    assert not largest_sum(255 * 127 * 1000, grid=Grid(1.0, 0))
    assert not largest_sum(255 * 127 * 1000, grid=Grid(1.0, 255))


@pytest.mark.parametrize(
    ("weights", "reason"),
    [
        ([1.0, np.nan], "not finite"),
        ([1.0, np.inf], "not finite"),
        ([1.0, 1 + 2.0**-7], "not integers of 8 bits"),
        ([128.0, 1.0], "not integers of 8 bits"),
        ([2.0**-70, 2.0**-70], "extreme"),
        ([2.0**70, 0.0], "extreme"),
        ([], "empty"),
    ],
)
def test_weights_that_are_not_codes(weights, reason):
    w = np.array([weights], np.float32).reshape(1, -1, 1, 1)
    with pytest.raises(NotRewrittenError, match=reason):
        exact_conv(Grid(0.5, 3), w, np.zeros(1, np.float32))


@pytest.mark.parametrize("bias", [np.nan, np.inf, 2.0**70, 2.0**-70])
def test_an_extreme_bias(bias):
    with pytest.raises(NotRewrittenError, match="its bias is"):
        exact_conv(Grid(0.5, 3), np.ones((1, 4, 1, 1), np.float32), np.array([bias], np.float32))


def test_many_weights():
    """They are looked at in parts."""
    w = weights_of(500, 64, 3, 3) / 32
    exact = exact_conv(Grid(0.5, 3), w, np.zeros(500, np.float32))
    np.testing.assert_array_equal(exact.codes, w * 32)
    assert exact.scales.tolist() == [1 / 64] * 500
    w[499, 0, 0, 0] = 5 + 2.0**-9
    with pytest.raises(NotRewrittenError, match="not integers of 8 bits"):
        exact_conv(Grid(0.5, 3), w, np.zeros(500, np.float32))


def test_weights_of_zeros():
    exact = exact_conv(Grid(0.5, 3), np.zeros((2, 4, 1, 1), np.float32), np.array([0.0, 3.0], np.float32))
    assert not exact.codes.any()
    assert np.isfinite(exact.scales).all()


def test_the_lowest_code_of_weights():
    exact = exact_conv(Grid(1.0, 3), np.array([-128.0, 1.0], np.float32).reshape(1, 2, 1, 1), np.zeros(1, np.float32))
    assert exact.codes.ravel().tolist() == [-128, 1]
