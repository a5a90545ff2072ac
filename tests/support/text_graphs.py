"""Models from ONNX's textual syntax, with additions that most texts would repeat."""

from onnx import helper, parser

from quark_numba import to_tensor_proto

QUARK = "com.amd.quark"


def text_model(text, *, opset=21, **constants):
    """Return the model of a graph's text, such as "(float[3] x) => (float[] y) { y = Relu (x) }". Functions may follow it.

    `constants` become initializers of their element types. Operators whose names begin with Extended, BFP or MX have Quark's
    domain. "y = Pair (x, s, z)" stands for a pair of Quark's linear operators with the parameters s and z; without them, with
    scale and zero_point. The model imports the domains of its nodes."""
    model = parser.parse_model(f'<ir_version: 10, opset_import: ["" : {opset}]> graph {text}')
    model.graph.initializer.extend(to_tensor_proto(array, name) for name, array in constants.items())
    domains = {}
    _fill_in(model.graph, domains)
    for function in model.functions:
        domains[function.domain] = None
        own = {}
        _fill_in(function, own)
        function.opset_import.extend(helper.make_opsetid(domain, 1) for domain in own)
    model.opset_import.extend(helper.make_opsetid(domain, 1) for domain in domains)
    return model


def text_nodes(text):
    """Return the nodes of a text."""
    graph = parser.parse_graph(f"graph (float x) => (float y) {{ {text} }}")
    _fill_in(graph, {})
    return list(graph.node)


def _fill_in(graph, domains):
    """Put the pairs and the domains into a graph or function, and its subgraphs, and add its domains to a dictionary."""
    nodes = []
    for node in graph.node:
        if node.op_type == "Pair":
            (x, *parameters), (y,) = node.input, node.output
            parameters = parameters or ["scale", "zero_point"]
            nodes.append(helper.make_node("ExtendedQuantizeLinear", [x, *parameters], [f"{y}_codes"]))
            nodes.append(helper.make_node("ExtendedDequantizeLinear", [f"{y}_codes", *parameters], [y]))
        else:
            nodes.append(node)
    for node in nodes:
        if not node.domain and node.op_type.startswith(("Extended", "BFP", "MX")):
            node.domain = QUARK
        if node.domain:
            domains[node.domain] = None
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _fill_in(attribute.g, domains)
    del graph.node[:]
    graph.node.extend(nodes)
