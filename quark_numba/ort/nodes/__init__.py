"""The nodes of a session: the functions that ONNX Runtime calls while it creates and runs them.

The functions that run are compiled. They need neither Python nor its lock, and copy no tensor.

There is a module for each family. It contains

- ``STATE``, the dtype of a node's state: a record that begins with the fields of ``context.STATE``;
- ``select(operator, overload, attributes)``, which returns a ``context.Selection``: the key of the kernel, and numbers for the
  fields of the state. It compiles nothing and raises ValueError if an attribute is invalid;
- ``compute(state_address, context_address)``, which ONNX Runtime calls in each run. It returns an OrtStatus, 0 for success;
- optionally ``MESSAGE_NUMBERS``, the names of the numbers that error messages mention besides shapes, in the order in which
  ``compute`` passes them;
- optionally ``functions(overload, key)``, which compiles and returns further C functions whose addresses the state holds, by
  the names of the fields: a function, None where no function is needed, or a tuple of these. The field ``task`` gets the
  address of the key's kernel;
- optionally ``FREE_ATTRIBUTES`` and ``set_attributes(state_address, values_address)``. Stand-alone libraries take any values
  of these attributes: ``set_attributes`` sets what they decide, as ``select`` does it, and returns 1, or 0 if one is invalid;
- optionally ``prepare(state_address, constants_address)`` and ``destroy(state_address)``. Nodes that are alike share a state
  unless there is a ``prepare``, which returns the address of the state of one node, or 0 if memory runs out. It gets two words
  for each input: the address of a constant's elements and their number, or zeros if the input is not a constant.

At the end of a session, ``destroy`` frees what ``prepare`` allocated (``convolution`` and ``recurrent`` have the two). Nothing
is freed of other nodes: their states are shared and never freed (``compiling.lifetimes``), and what ``compute`` allocates, it
frees before it returns.
"""
