"""What ONNX Runtime calls while a node runs: compiled, without Python, without the GIL, without a copy of a tensor.

A wing's module has

- ``STATE``, the dtype of a node's state: a record that begins with the fields of ``context.STATE``;
- ``NUMBERS``, the names of what messages of faults tell of a node besides shapes, in the order in which it tells them;
- ``fill(state, operator, overload, attributes)``, which sets the fields of its own, compiles the kernel that the node needs,
  and raises ValueError for an attribute that cannot be;
- ``compute(state_address, context)``, which ONNX Runtime calls in each run and which returns an OrtStatus, 0 if all went well;
- if nodes have states of their own, and not one for all that are alike, ``prepare(state_address, constants)``, which returns
  the address of a node's, or 0 if there is no memory, and ``destroy(state_address)``. `constants` is an array of two words for
  each input: where the elements of a constant lie, and how many there are, or zeros.
"""
