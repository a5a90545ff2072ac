"""Models with random faults, made from a model that has everything that the optimizer rewrites, or from another one."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx_models import model, parsed
from rewritten_models import pair

DOMAIN = "com.amd.quark"
Q, DQ, MX, BFP = "ExtendedQuantizeLinear", "ExtendedDequantizeLinear", "MXQuantizeDequantize", "BFPQuantizeDequantize"


def sound():
    """Return a valid model with pairs, constants of each kind, a round trip, block formats, operators of ONNX, a subgraph and a
    local function."""
    initializers = [
        helper.make_tensor("s", TensorProto.FLOAT, [], [0.5]),
        helper.make_tensor("z", TensorProto.INT8, [], [1]),
        helper.make_tensor("s3", TensorProto.FLOAT, [3], [0.5, 0.25, 2.0]),
        helper.make_tensor("z3", TensorProto.BFLOAT16, [3], [1.0, 0.0, 2.0]),
        helper.make_tensor("w", TensorProto.FLOAT, [4, 3], np.linspace(-2, 2, 12)),
        helper.make_tensor("codes", TensorProto.INT8, [4, 3], range(12)),
        helper.make_tensor("flag", TensorProto.BOOL, [], [True]),
    ]
    branch = f"branch () => (float[] by) {{ bq = {DOMAIN}.{Q} (p, s, z) by = {DOMAIN}.{DQ} (bq, s, z) }}"
    nodes = [
        *pair("x", "q", "p", ["s", "z"]),
        *pair("w", "wq", "wd", ["s3", "z3"], axis=1),
        f"cd = {DOMAIN}.{DQ} (codes, s, z)",
    ]
    nodes += [
        "c = Constant <value = float[3] {1, 2, 3}> ()",
        f'cm = {DOMAIN}.{MX} <element_dtype = "fp8_e4m3", axis = 0, block_size = 2, rounding_mode = 0> (c)',
        f'pb = {DOMAIN}.{BFP} <bfp_method = "to_bfp", axis = 1, bit_width = 16, block_size = 8, rounding_mode = 2> (p)',
        *pair("pb", "oq", "od", ["s", "z"], domain=""),
        *pair("od", "rq", "rd", ["s", "z"]),
        *["a = Add (rd, cm)", "b = Add (a, wd)", "d = Add (b, cd)"],
        f"e = If <then_branch = {branch}, else_branch = {branch}> (flag)",
        *["f = local.F (e)", "y = Add (d, f)"],
    ]
    body = parsed("fs = Constant <value_float = 0.5> ()", *pair("fx", "fq", "fy", ["fs"]))
    whole = model(nodes, [("x", "float32", [4, 3])], ["y"], initializers=initializers)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(DOMAIN, 1)]
    whole.graph.value_info.append(helper.make_tensor_value_info("f", TensorProto.FLOAT, None))
    whole.functions.append(helper.make_function("local", "F", ["fx"], ["fy"], body, opsets))
    return whole


def mutated(rng, whole):
    """Return the bytes of the model after one to three random changes, of bytes or of fields."""
    changed = onnx.ModelProto()
    changed.CopyFrom(whole)
    for _ in range(rng.integers(1, 4)):
        if rng.random() < 0.2:
            content = bytearray(changed.SerializeToString())
            for _ in range(rng.integers(1, 4)):
                content[rng.integers(len(content))] = rng.integers(256)
            try:
                changed = onnx.ModelProto.FromString(bytes(content))
            except Exception:
                return bytes(content)
        else:
            MUTATIONS[rng.integers(len(MUTATIONS))](rng, changed)
    return changed.SerializeToString()


def graphs(whole):
    branches = [a.g for n in whole.graph.node for a in n.attribute if a.HasField("g")]
    return [whole.graph, *branches, *whole.functions]


def any_of(rng, things):
    return things[rng.integers(len(things))] if len(things) else None


def a_node(rng, whole):
    return any_of(rng, any_of(rng, graphs(whole)).node)


def names(whole):
    found = {name for graph in graphs(whole) for n in graph.node for name in [*n.input, *n.output]}
    return sorted({name for name in found if isinstance(name, str)} | {"", "nobody"})  # names that are not UTF-8 are bytes


MUTATIONS = []


def mutation_of(choose):
    """Return a decorator of changes of what ``choose(rng, whole)`` returns. If that is None, nothing changes."""

    def decorated(change):
        def mutation(rng, whole):
            chosen = choose(rng, whole)
            if chosen is not None:
                change(rng, whole, chosen)

        MUTATIONS.append(mutation)
        return mutation

    return decorated


@mutation_of(a_node)
def change_input(rng, whole, node):
    if node.input:
        node.input[rng.integers(len(node.input))] = any_of(rng, names(whole))


@mutation_of(a_node)
def change_output(rng, whole, node):
    if node.output:
        node.output[rng.integers(len(node.output))] = any_of(rng, names(whole))


@mutation_of(a_node)
def drop_input(rng, whole, node):
    if node.input:
        del node.input[rng.integers(len(node.input))]


@mutation_of(a_node)
def drop_output(rng, whole, node):
    del node.output[:]


@mutation_of(a_node)
def add_input(rng, whole, node):
    node.input.append(any_of(rng, names(whole)))


@mutation_of(lambda rng, whole: any_of(rng, graphs(whole)))
def drop_node(rng, whole, graph):
    if graph.node:
        del graph.node[rng.integers(len(graph.node))]


@mutation_of(lambda rng, whole: any_of(rng, graphs(whole)))
def move_node(rng, whole, graph):
    chosen = any_of(rng, graph.node)
    if chosen is not None:
        graph.node.insert(rng.integers(len(graph.node)), chosen)


@mutation_of(a_node)
def change_operator(rng, whole, node):
    operators = [Q, DQ, MX, BFP, "QuantizeLinear", "DequantizeLinear", "QuantizeDequantizeLinear", "Add", "", "FixNeuron"]
    node.op_type = any_of(rng, operators)
    node.domain = any_of(rng, ["", DOMAIN, "com.microsoft", "quark_numba", "com.vai.quantize", "local", "other"])


@mutation_of(a_node)
def change_attribute(rng, whole, node):
    name = any_of(rng, ["axis", "block_size", "output_dtype", "precision", "saturate", "element_dtype", "bit_width", "value"])
    values = [0, -1, 7, 10**6, -(2**63), 2**63 - 1, 0.5, "text", [1, 2], [0.5], ["a"]]
    value = helper.make_attribute(name, any_of(rng, [*values, helper.make_tensor("t", TensorProto.FLOAT, [], [1])]))
    for attribute in node.attribute:
        if attribute.name == name:
            attribute.CopyFrom(value)
            return
    node.attribute.append(value)


@mutation_of(lambda rng, whole: any_of(rng, whole.graph.initializer))
def change_tensor(rng, whole, tensor):
    match rng.integers(6):
        case 0:
            tensor.data_type = int(rng.integers(-1, 40))
        case 1:
            tensor.dims.append(int(rng.integers(-1, 4)))
        case 2:
            del tensor.dims[:]
        case 3:
            tensor.raw_data = rng.bytes(rng.integers(9))
        case 4:
            tensor.name = any_of(rng, names(whole))
        case 5:
            tensor.data_location = TensorProto.EXTERNAL
            key, value = any_of(rng, ["location", "offset", "length", ""]), any_of(rng, ["a", "-1", "../x", ""])
            tensor.external_data.add(key=key, value=value)


@mutation_of(lambda rng, whole: any_of(rng, whole.opset_import))
def change_opset(rng, whole, opset):
    opset.version = int(any_of(rng, [0, 1, 9, 13, 99, -1]))


@mutation_of(lambda rng, whole: whole.opset_import)
def drop_opset(rng, whole, opsets):
    if opsets:
        del opsets[rng.integers(len(opsets))]


@mutation_of(lambda rng, whole: any_of(rng, whole.functions))
def change_function(rng, whole, function):
    match rng.integers(4):
        case 0:
            del function.input[:]
        case 1:
            function.output.append(any_of(rng, names(whole)))
        case 2:
            del function.opset_import[:]
        case 3:
            function.node.append(helper.make_node("F", ["fx"], ["again"], domain="local"))


@mutation_of(lambda rng, whole: any_of(rng, [*whole.graph.input, *whole.graph.output]))
def change_value(rng, whole, value):
    match rng.integers(3):
        case 0:
            value.type.tensor_type.elem_type = int(rng.integers(-1, 40))
        case 1:
            value.name = any_of(rng, names(whole))
        case 2:
            value.type.tensor_type.shape.dim.add(dim_value=int(rng.integers(-1, 9)))


@mutation_of(lambda rng, whole: any_of(rng, [*parameters(whole)]))
def change_parameter(rng, whole, tensor):
    """Change a scale, a zero point or another parameter: values, type, or shape."""
    array = numpy_helper.to_array(tensor)
    values = [-1, 0, np.nan, np.inf, -np.inf, 1e-45, 1e38, 255]
    match rng.integers(3):
        case 0:
            with np.errstate(all="ignore"):
                array = np.where(rng.random(array.shape) < 0.5, array, any_of(rng, values)).astype(array.dtype)
        case 1:
            types = ["float32", "float16", "float64", "int8", "uint8", "int32", "int64", "uint16", "bool"]
            with np.errstate(all="ignore"):
                array = array.astype(any_of(rng, types))
        case 2:
            flat = array.reshape(-1)
            array = any_of(rng, [flat[:1], flat[:0], np.tile(array, 2), flat[None], flat[:, None], flat[:, None, None, None]])
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def parameters(whole):
    """Yield the tensors of at most a kilobyte that nodes take after their first input, of types that numpy has."""
    taken = {name for n in whole.graph.node for name in n.input[1:]}
    for tensor in whole.graph.initializer:
        if tensor.name in taken and tensor.ByteSize() < 1024:
            try:
                is_of_numpy = numpy_helper.to_array(tensor).dtype.isbuiltin == 1
            except Exception:  # of an earlier mutation
                continue
            if is_of_numpy:
                yield tensor


@mutation_of(lambda rng, whole: any_of(rng, [whole.graph.node, whole.graph.initializer, whole.graph.output, whole.functions]))
def repeat(rng, whole, things):
    if things:
        things.append(any_of(rng, things))


@mutation_of(a_node)
def make_cycle(rng, whole, node):
    if node.input and node.output:
        node.input[rng.integers(len(node.input))] = node.output[0]


@mutation_of(lambda rng, whole: any_of(rng, whole.graph.initializer))
def make_huge(rng, whole, tensor):
    sizes = [[2**31], [2**31, 2**31], [2**62, 4], [2**63 - 1], [-(2**31), -(2**31)], [0, 2**62], [2**40, 0, 2**40]]
    tensor.dims[:] = any_of(rng, sizes)


@mutation_of(lambda rng, whole: any_of(rng, graphs(whole)[1:]))
def change_subgraph(rng, whole, graph):
    match rng.integers(3):
        case 0:
            del graph.output[:]
        case 1:
            graph.name = ""
        case 2:
            del graph.node[:]
