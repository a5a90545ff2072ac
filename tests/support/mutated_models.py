"""Models with random faults, made from a model that has everything that the optimiser rewrites."""

import numpy as np
import onnx
from onnx import TensorProto, helper
from onnx_models import model

DOMAIN = "com.amd.quark"
Q, DQ, MX, BFP = "ExtendedQuantizeLinear", "ExtendedDequantizeLinear", "MXQuantizeDequantize", "BFPQuantizeDequantize"


def node(op_type, inputs, outputs, **attributes):
    return helper.make_node(op_type, inputs, outputs, domain=DOMAIN, **attributes)


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
    branch = helper.make_graph(
        [node(Q, ["p", "s", "z"], ["bq"]), node(DQ, ["bq", "s", "z"], ["by"])],
        "branch",
        [],
        [helper.make_tensor_value_info("by", TensorProto.FLOAT, None)],
    )
    nodes = [
        node(Q, ["x", "s", "z"], ["q"]),
        node(DQ, ["q", "s", "z"], ["p"]),
        node(Q, ["w", "s3", "z3"], ["wq"], axis=1),
        node(DQ, ["wq", "s3", "z3"], ["wd"], axis=1),
        node(DQ, ["codes", "s", "z"], ["cd"]),
        helper.make_node("Constant", [], ["c"], value=helper.make_tensor("c", TensorProto.FLOAT, [3], [1.0, 2.0, 3.0])),
        node(MX, ["c"], ["cm"], element_dtype="fp8_e4m3", axis=0, block_size=2, rounding_mode=0),
        node(BFP, ["p"], ["pb"], bfp_method="to_bfp", axis=1, bit_width=16, block_size=8, rounding_mode=2),
        helper.make_node("QuantizeLinear", ["pb", "s", "z"], ["oq"]),
        helper.make_node("DequantizeLinear", ["oq", "s", "z"], ["od"]),
        node(Q, ["od", "s", "z"], ["rq"]),
        node(DQ, ["rq", "s", "z"], ["rd"]),
        helper.make_node("Add", ["rd", "cm"], ["a"]),
        helper.make_node("Add", ["a", "wd"], ["b"]),
        helper.make_node("Add", ["b", "cd"], ["d"]),
        helper.make_node("If", ["flag"], ["e"], then_branch=branch, else_branch=branch),
        helper.make_node("F", ["e"], ["f"], domain="local"),
        helper.make_node("Add", ["d", "f"], ["y"]),
    ]
    body = [
        helper.make_node("Constant", [], ["fs"], value_float=0.5),
        node(Q, ["fx", "fs"], ["fq"]),
        node(DQ, ["fq", "fs"], ["fy"]),
    ]
    whole = model(nodes, [("x", "float32", [4, 3])], ["y"], initializers=initializers, domains=[DOMAIN, "local"])
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


def change_input(rng, whole):
    chosen = a_node(rng, whole)
    if chosen is not None and chosen.input:
        chosen.input[rng.integers(len(chosen.input))] = any_of(rng, names(whole))


def change_output(rng, whole):
    chosen = a_node(rng, whole)
    if chosen is not None and chosen.output:
        chosen.output[rng.integers(len(chosen.output))] = any_of(rng, names(whole))


def drop_input(rng, whole):
    chosen = a_node(rng, whole)
    if chosen is not None and chosen.input:
        del chosen.input[rng.integers(len(chosen.input))]


def drop_output(rng, whole):
    chosen = a_node(rng, whole)
    if chosen is not None and chosen.output:
        del chosen.output[:]


def add_input(rng, whole):
    chosen = a_node(rng, whole)
    if chosen is not None:
        chosen.input.append(any_of(rng, names(whole)))


def drop_node(rng, whole):
    graph = any_of(rng, graphs(whole))
    if graph.node:
        del graph.node[rng.integers(len(graph.node))]


def move_node(rng, whole):
    graph = any_of(rng, graphs(whole))
    chosen = any_of(rng, graph.node)
    if chosen is not None:
        graph.node.insert(rng.integers(len(graph.node)), chosen)


def change_operator(rng, whole):
    chosen = a_node(rng, whole)
    if chosen is not None:
        operators = [Q, DQ, MX, BFP, "QuantizeLinear", "DequantizeLinear", "QuantizeDequantizeLinear", "Add", "", "FixNeuron"]
        chosen.op_type = any_of(rng, operators)
        chosen.domain = any_of(rng, ["", DOMAIN, "com.microsoft", "quark_numba", "com.vai.quantize", "local", "other"])


def change_attribute(rng, whole):
    chosen = a_node(rng, whole)
    if chosen is None:
        return
    name = any_of(rng, ["axis", "block_size", "output_dtype", "precision", "saturate", "element_dtype", "bit_width", "value"])
    values = [0, -1, 7, 10**6, -(2**63), 2**63 - 1, 0.5, "text", [1, 2], [0.5], ["a"]]
    value = helper.make_attribute(name, any_of(rng, [*values, helper.make_tensor("t", TensorProto.FLOAT, [], [1])]))
    for attribute in chosen.attribute:
        if attribute.name == name:
            attribute.CopyFrom(value)
            return
    chosen.attribute.append(value)


def change_tensor(rng, whole):
    tensor = any_of(rng, whole.graph.initializer)
    if tensor is None:
        return
    choice = rng.integers(6)
    if choice == 0:
        tensor.data_type = int(rng.integers(-1, 40))
    elif choice == 1:
        tensor.dims.append(int(rng.integers(-1, 4)))
    elif choice == 2:
        del tensor.dims[:]
    elif choice == 3:
        tensor.raw_data = rng.bytes(rng.integers(9))
    elif choice == 4:
        tensor.name = any_of(rng, names(whole))
    else:
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(
            key=any_of(rng, ["location", "offset", "length", ""]), value=any_of(rng, ["a", "-1", "../x", ""])
        )


def change_opset(rng, whole):
    opset = any_of(rng, whole.opset_import)
    if opset is not None:
        opset.version = int(any_of(rng, [0, 1, 9, 13, 99, -1]))


def drop_opset(rng, whole):
    if whole.opset_import:
        del whole.opset_import[rng.integers(len(whole.opset_import))]


def change_function(rng, whole):
    function = any_of(rng, whole.functions)
    if function is None:
        return
    choice = rng.integers(4)
    if choice == 0:
        del function.input[:]
    elif choice == 1:
        function.output.append(any_of(rng, names(whole)))
    elif choice == 2:
        del function.opset_import[:]
    else:
        function.node.append(helper.make_node("F", ["fx"], ["again"], domain="local"))


def change_value(rng, whole):
    value = any_of(rng, [*whole.graph.input, *whole.graph.output])
    if value is None:
        return
    choice = rng.integers(3)
    if choice == 0:
        value.type.tensor_type.elem_type = int(rng.integers(-1, 40))
    elif choice == 1:
        value.name = any_of(rng, names(whole))
    else:
        value.type.tensor_type.shape.dim.add(dim_value=int(rng.integers(-1, 9)))


MUTATIONS = [
    change_input,
    change_output,
    drop_input,
    drop_output,
    add_input,
    drop_node,
    move_node,
    change_operator,
    change_attribute,
    change_tensor,
    change_opset,
    drop_opset,
    change_function,
    change_value,
]
