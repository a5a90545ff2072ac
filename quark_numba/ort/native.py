"""The native backend: operators that ONNX Runtime calls through OrtCustomOp structures, whose functions are compiled."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import logging
import sys
import threading
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from ctypes import c_int, c_int64, c_void_p
from typing import TYPE_CHECKING, Any, NamedTuple

from ..compiling.lock import created, created_once
from ..compiling.memory import release_compiler
from ..errors import NotAvailableError
from . import c_api, cuda, kept_kernels, python_record
from .c_api import Description, OrtApi, OrtCustomOp, keep
from .library.load import check_platform, load
from .providers import CUDA, available, operators_for

# What is imported inside of functions is not needed by a process that finds all its kernels kept.
if TYPE_CHECKING:
    import onnxruntime

    from ..declaration import Operator, Overload
    from ..element_types import ElementType

# Configuration entries of session options. This one tells which backend is registered with them.
REGISTERED = "quark_numba.backend"

# It asks for ONNX's own operators as well. It has to be set before the library is registered, and may be set before the library
# is registered once more.
FLOAT_QDQ = "quark_numba.float_qdq"

# It asks for all other domains, where the library is limited to some.
ALL_DOMAINS = "quark_numba.all_domains"

# The sessions never run. Their nodes get no kernels; `Registry.listing_needs` notes what these would need.
LISTS_NEEDS = "quark_numba.lists_needs"

# With the name of a domain behind it: the options have that domain. ONNX Runtime would refuse one that comes twice, with a
# message that does not say why.
_HAS_DOMAIN = "quark_numba.has_domain."


class Need(NamedTuple):
    """What the kernel of a node needs: an overload of an operator, by the names of element types, and all attributes."""

    domain: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: tuple[tuple[str, Any], ...]
    types: tuple[int, ...] | None  # the ONNXTensorElementDataType of each input, if the overload does not say it


_dimensions = itertools.count()

_log = logging.getLogger(__name__)

_COPIES = (
    "a session with %s has operators of this package that run on the CPU, so that their tensors are copied there and back; "
    'quark_numba.InferenceSession, or quark_numba.optimize(..., operators="standard"), writes them in operators that all '
    "execution providers have"
)


def get_library_path() -> str:
    """The path of a custom-operator library for ``SessionOptions.register_custom_ops_library``.

    The library calls functions of this process, so that the path is valid in this process only, as long as it lives. Another
    process has to call this function itself, even a child that was spawned, or forked and then replaced by exec: there the
    path leads nowhere, or to a library without operators.

    Raises
    ------
    NotAvailableError
        A RuntimeError, if the native backend is not available. It needs Linux, Windows or macOS on x86-64 or AArch64, and a way
        to load the library.
    """
    path, reason = REGISTRY.library
    if path is None:
        raise NotAvailableError(reason)
    return path


def entry(session_options: onnxruntime.SessionOptions, name: str) -> Any:
    """The value of a configuration entry of the options, or None."""
    try:
        return session_options.get_session_config_entry(name)
    except RuntimeError:  # there is no such entry
        return None


def domains_to_add(domains: Iterable[str], limit: Container[str], has: Callable[[str], bool]) -> list[str]:
    """Return which of all `domains` session options get that have a configuration entry if `has` says so.

    `limit` are the domains that the library is limited to, for options that do not ask for all; empty: there is no limit."""

    def is_wanted(domain: str) -> bool:
        if not domain:
            return has(FLOAT_QDQ)
        return not has(REGISTERED) and (domain in limit or not limit or has(ALL_DOMAINS))

    return [domain for domain in domains if is_wanted(domain) and not has(_HAS_DOMAIN + domain)]


def release_of(version: str) -> tuple[int, ...]:
    """The release of a version of ONNX Runtime."""
    return tuple(map(int, version.split(".")[:2]))


def _descriptions(release: tuple[int, ...]) -> list[Description]:
    """The descriptions of all overloads. Kept ones are those of this release, and serve until the catalog is loaded, to which
    operators may be added."""
    descriptions = kept_kernels.descriptions()
    if descriptions and f"{__package__.rpartition('.')[0]}.catalog" not in sys.modules:
        return descriptions
    from . import operators

    return operators.descriptions(release)


def _status(api: int, action: Callable[[], None], is_done: Any, where: Callable[[], str] = str) -> int | None:
    """Run `action` under the creation lock and set `is_done`. Returns an OrtStatus if it raises: no exception may reach C."""
    try:
        created(action)
    except BaseException as error:
        return c_api.create_status(api, c_api.ORT_FAIL, f"quark_numba: {type(error).__name__}: {error}{where()}")
    is_done[0] = 1
    return None


class _CustomOp(NamedTuple):
    """An overload of an operator, as registered with ONNX Runtime."""

    api: int
    release: tuple[int, ...]
    description: Description
    structure: OrtCustomOp
    lists_needs: bool  # in place of kernels
    is_on_gpu: bool

    @property
    def has_shape_reference(self) -> bool:
        return self.release >= c_api.SHAPE_REFERENCE_RELEASE

    @property
    def declared(self) -> tuple[Operator, Overload]:
        from ..catalog import OPERATORS
        from . import operators

        (operator,) = (known for known in OPERATORS.newest(self.description.domain) if known.name == self.description.name)
        return operator, operators.overloads(operator, self.release)[self.description.number]


class _Node(NamedTuple):
    """What a kernel is made for: the attributes of a node, and the types and shapes that are checked."""

    attributes: dict[str, Any]
    inputs: list[tuple[int, list[int | None] | None]] | None  # as from `c_api.inputs`; None: they are not checked
    outputs: list[int | None]  # ONNXTensorElementDataType; None: ONNX Runtime checks it


class Registry:
    """The operators that this process registers with ONNX Runtime, and their library. There is one: on Windows all libraries
    have one file."""

    def __init__(self) -> None:
        # The domains that options get that do not ask for all; empty: all. ONNX Runtime keeps each domain that was ever
        # registered in the process, and names them all in the models that it writes.
        self.limit: frozenset[str] = frozenset()
        self._domains: dict[tuple[int, str, bool], int] = {}
        self._custom_ops: dict[int, _CustomOp] = {}  # by the addresses of their structures
        self._kernels: dict[tuple[int, tuple[tuple[str, Any], ...]], kept_kernels.Kernel] = {}
        self._needs: dict[Need, None] = {}  # in their order
        self._listing = threading.Lock()
        # Whether a session of this build of ONNX Runtime may have another provider, and no warning came yet; None: not known.
        self._may_copy: bool | None = None

    @created_once
    def library(self) -> tuple[str | None, str]:
        """(the library's path, ""), or (None, the reason why there is none). The answer never changes in a process."""
        try:
            check_platform()
            if not kept_kernels.callbacks():
                from ..compiling.jit import JIT_ENABLED  # which imports Numba

                if not JIT_ENABLED:
                    return None, "NUMBA_DISABLE_JIT is set"
                from ..compiling.cache import session_waits

                session_waits()
            return load("RegisterCustomOps", self._functions["register"], self.python_functions), ""
        except NotAvailableError as error:
            return None, str(error)

    @contextlib.contextmanager
    def listing_needs(self) -> Iterator[dict[Need, None]]:
        """Within the context, note what nodes need whose options ask for that."""
        with self._listing:
            self._needs = {}
            yield self._needs

    @functools.cached_property
    def _functions(self) -> dict[str, int]:
        """The addresses of the functions that all operators share."""
        if addresses := kept_kernels.callbacks():
            return addresses
        from . import callbacks

        return callbacks.functions()

    @functools.cached_property
    def python_functions(self) -> int:
        """The address of the record of Python functions that compiled functions call."""
        functions = {"register": self._register, "create": self._create_kernel, "infer": self._infer_outputs}
        return python_record.python_functions(self._functions["run_work"], **functions)

    def _register(self, options: int, api_base: int, _c: int, _d: int, is_done: Any) -> int | None:
        """RegisterCustomOps: add domains of the catalog to an OrtSessionOptions. Returns an OrtStatus."""
        base = c_api.OrtApiBase.from_address(api_base)
        api = base.GetApi(c_api.API_VERSION)
        version = base.GetVersionString().decode()
        if not api:
            message = f"quark_numba needs ONNX Runtime {c_api.FIRST_RELEASE} or later; this is {version}"
            return c_api.create_status(base.GetApi(1), c_api.ORT_FAIL, message)

        def has(entry: str) -> bool:
            return bool(c_api.ask(api, OrtApi.HasSessionConfigEntry, c_int, options, entry.encode()))

        def set_entry(entry: str) -> None:
            c_api.call(api, OrtApi.AddSessionConfigEntry, options, entry.encode(), b"native")

        def add() -> None:
            release = release_of(version)
            domains = dict.fromkeys(description.domain for description in _descriptions(release))
            for domain in domains_to_add(domains, self.limit, has):
                c_api.call(api, OrtApi.AddCustomOpDomain, options, self._domain(api, release, domain, has(LISTS_NEEDS)))
                set_entry(_HAS_DOMAIN + domain)
            if not has(REGISTERED) and (not self.limit or has(ALL_DOMAINS)):
                set_entry(REGISTERED)

        return _status(api, add, is_done)

    def _domain(self, api: int, release: tuple[int, ...], domain: str, lists_needs: bool) -> int:
        """An OrtCustomOpDomain with an OrtCustomOp for each overload. When ONNX Runtime loads a model, it uses the
        overloads' types to check types, and to infer the types of outputs that the model does not declare."""
        key = api, domain, lists_needs
        if key not in self._domains:
            made: int = c_api.ask(api, OrtApi.CreateCustomOpDomain, c_void_p, domain.encode())
            all_providers = _providers()
            for description in _descriptions(release):
                if description.domain != domain:
                    continue
                for provider in all_providers if description.runs_on_gpus else [None]:
                    structure = self._structure(description, provider)
                    custom_op = _CustomOp(api, release, description, structure, lists_needs, is_on_gpu=provider is not None)
                    self._custom_ops[ctypes.addressof(structure)] = custom_op
                    c_api.call(api, OrtApi.CustomOpDomain_Add, made, ctypes.byref(structure))
            self._domains[key] = made
        return self._domains[key]

    def _structure(self, description: Description, provider: str | None) -> OrtCustomOp:
        functions = dict(self._functions)
        create, infer = functions.pop("create"), functions.pop("infer")
        del functions["register"], functions["run_work"]
        arrays = "input_types", "output_types", "input_characteristics", "output_characteristics"
        return keep(
            OrtCustomOp(
                version=c_api.CUSTOM_OP_VERSION,
                **functions,
                CreateKernelV2=create,
                # ONNX Runtime ignores the types that attributes give when it chooses an overload.
                InferOutputShapeFn=infer if description.infers else None,
                name=ctypes.addressof(_name(description.name)),
                provider=ctypes.addressof(_name(provider)) if provider else None,
                input_count=len(description.input_types),
                output_count=len(description.output_types),
                is_homogeneous=description.is_homogeneous,
                **{name: c_api.words_at(tuple(getattr(description, name))) for name in arrays},
                python=self.python_functions,
            )
        )

    def _create_kernel(self, op: int, api: int, info: int, result: int, is_done: Any) -> int | None:
        """OrtCustomOp::CreateKernelV2: compile a node's kernel, so that its first run does not have to. Returns an
        OrtStatus."""

        def create() -> None:
            custom_op = self._custom_ops[op]
            description = custom_op.description
            attributes = {attribute[0]: c_api.attribute(api, info, *attribute) for attribute in description.attributes}
            inputs = c_api.inputs(api, info) if description.is_checked else None
            outputs = [
                c_api.tensor(api, OrtApi.KernelInfo_GetOutputTypeInfo, info, index)[0] if number == c_api.ANY_TYPE else None
                for index, number in enumerate(description.output_types)
            ]
            node = _Node(attributes, inputs, outputs)
            if custom_op.lists_needs:
                self._needs[_need_of_node(custom_op, node)] = None
                return
            if not custom_op.is_on_gpu:
                self._warn_of_copies()
            kernel = self._kernel_of(op, node)
            # This is early enough: ONNX Runtime reads these functions only when a node runs or is destroyed.
            custom_op.structure.KernelComputeV2 = kernel.compute
            if kernel.destroy:
                custom_op.structure.KernelDestroy = kernel.destroy
            address = kernel.state
            if kernel.prepare:
                address = _prepared(kernel, c_api.constants(api, info, len(description.input_types)))
            c_void_p.from_address(result).value = address

        return _status(api, create, is_done, lambda: f" (node {c_api.node_name(api, info)!r})")

    def _kernel_of(self, op: int, node: _Node) -> kept_kernels.Kernel:
        """The kernel of a node: a kept one, or that of all nodes with this operator, these types and attributes. There are few,
        so none is ever freed. Raises TypeError or ValueError if the node is wrong."""
        custom_op = self._custom_ops[op]
        key = kept_kernels.key_of(custom_op.description, *node)
        if not custom_op.is_on_gpu and (kept := kept_kernels.find(key, custom_op.api, custom_op.has_shape_reference)):
            return kept
        operator, overload = custom_op.declared
        _check(operator, overload, node)
        attributes = _hashable(node.attributes)
        if (op, attributes) not in self._kernels:
            self._kernels[op, attributes] = _new_kernel(custom_op, node.attributes)
        if not custom_op.is_on_gpu:
            kept_kernels.record(key, functools.partial(kept_kernels.state_of, operator, overload, node.attributes))
        return self._kernels[op, attributes]

    def _warn_of_copies(self) -> None:
        """Warn, once a process, if nodes are created for a session with another execution provider: they run on the CPU's, and
        their tensors are copied there and back. There is no warning for a provider for which that is the best."""
        if self._may_copy is None:
            self._may_copy = bool(_better_in_standard(available()))
        if not self._may_copy:
            return
        from .loading import providers_of_sessions

        if others := _better_in_standard(providers_of_sessions(lambda options: bool(entry(options, REGISTERED)))):
            self._may_copy = False
            _log.warning(_COPIES, ", ".join(dict.fromkeys(others)))

    def _infer_outputs(self, op: int, context: int, thread: int, _d: int, is_done: Any) -> None:
        """OrtCustomOp::InferOutputShapeFn: set the types and shapes of outputs. The API cannot set a type alone, so that all
        stays unknown if the rank of x is."""
        from ..declaration import Tensor
        from .loading import is_undeclared

        custom_op = self._custom_ops[op]
        api, (operator, _) = custom_op.api, custom_op.declared
        # ONNX Runtime ignores a status that is returned here: if this fails, it falls back to its own inference.
        with contextlib.suppress(c_api.StatusError, ValueError):
            known = [c_api.inference_input(api, context, index) for index in range(len(operator.inputs))]
            if known[0] is None or not known[0][1].sizes:
                return
            _, x = known[0]
            shapes = [given and ([None if size < 0 else size for size in given[1].sizes] or None) for given in known]
            inputs = [given and Tensor(_element_type(given[0]), shape) for given, shape in zip(known, shapes, strict=True)]
            attributes = {each.name: c_api.inference_attribute(api, context, each) for each in operator.attributes}
            for index, output in enumerate(operator.infer(inputs, attributes)):
                has_any_type = custom_op.description.output_types[index] == c_api.ANY_TYPE
                if has_any_type and not is_undeclared(thread, operator.domain, operator.name):
                    continue
                if output.element_type and output.shape:
                    names = x.names if output.shape == shapes[0] else [b""] * len(output.shape)
                    sizes = [-1 if size is None else size for size in output.shape]
                    own = [name or (_new_dimension() if size < 0 else b"") for size, name in zip(sizes, names, strict=True)]
                    number = c_api.element_type(output.element_type)
                    c_api.set_inferred(api, context, index, number, c_api.Dimensions(sizes, own))


# What `register` and `get_library_path` use.
REGISTRY = Registry()


def _providers() -> list[str | None]:
    """The execution providers that get operators with kernels for GPUs: None for the CPU's, and CUDA's if this machine may have
    a GPU."""
    return [None, CUDA] if CUDA in available() and cuda.driver() is not None else [None]


@functools.cache
def _name(name: str) -> ctypes.Array[ctypes.c_char]:
    return keep(ctypes.create_string_buffer(name.encode()))


def _better_in_standard(providers: Iterable[str]) -> list[str]:
    return [name for name in providers if operators_for([name]) != "custom"]


def _hashable(attributes: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    return tuple((name, tuple(value) if isinstance(value, list) else value) for name, value in attributes.items())


def _need_of_node(custom_op: _CustomOp, node: _Node) -> Need:
    """What a node needs. Raises TypeError or ValueError if it is wrong."""
    from . import operators

    operator, overload = custom_op.declared
    _check(operator, overload, node)
    operators.state_of(operator, overload, node.attributes, compiles=False)  # raises ValueError for wrong attributes
    types = None if operator.is_homogeneous else tuple(number for number, _ in node.inputs or ())
    return need_of(operator, overload, _hashable(node.attributes), types)


def need_of(
    operator: Operator, overload: Overload, attributes: tuple[tuple[str, Any], ...], types: tuple[int, ...] | None = None
) -> Need:
    inputs, outputs = (tuple(element_type.name for element_type in side) for side in overload)
    return Need(operator.domain, operator.name, inputs, outputs, attributes, types)


def _prepared(kernel: kept_kernels.Kernel, constants: Sequence[tuple[int, int]]) -> int:
    """The address of a node's state, as the family's `prepare` returns it: the given one, or one for this node alone."""
    words = [word for pair in constants for word in pair]
    function = ctypes.CFUNCTYPE(c_void_p, c_void_p, c_void_p)(kernel.prepare)
    address = function(kernel.state, (c_int64 * len(words))(*words))
    if not address:
        raise MemoryError("there is no memory for the weights")
    return int(address)


def _check(operator: Operator, overload: Overload, node: _Node) -> None:
    """Check the types and shapes of inputs, as far as they are known, and the types of outputs of any type: a tensor of another
    type may have too little memory. Raises TypeError or ValueError."""
    from ..declaration import Tensor
    from ..element_types import UINT8, names

    inputs = []
    for index, (number, shape) in enumerate(node.inputs or ()):
        element_type = _element_type(number)
        if element_type is None:
            raise TypeError(f"input {index} is no tensor of an element type that {operator.full_name} takes")
        inputs.append(Tensor(element_type, shape))
    if node.inputs is not None:
        operator.infer(inputs, node.attributes)
    for index, declared in enumerate(node.outputs):
        allowed = [overload.outputs[index], UINT8]
        if declared is not None and declared not in map(c_api.element_type, allowed):
            raise TypeError(f"{operator.outputs[index].name} is declared as another type; expected {names(allowed)}")


def _new_kernel(custom_op: _CustomOp, attributes: Mapping[str, Any]) -> kept_kernels.Kernel:
    from . import operators

    operator, overload = custom_op.declared
    make = operators.gpu_state_of if custom_op.is_on_gpu else operators.state_of
    state = keep(make(operator, overload, attributes))
    state["api"], state["has_shape_reference"] = custom_op.api, custom_op.has_shape_reference
    state["messages"] = c_api.texts_at(operators.messages_of(operator))
    family, is_on_gpu = operator.family, custom_op.is_on_gpu
    functions = (operators.compiled_for_gpu(family), 0, 0) if is_on_gpu else operators.node_functions(family)
    kernel = kept_kernels.Kernel(int(state.ctypes.data), *functions)
    release_compiler()
    return kernel


def _new_dimension() -> bytes:
    """A name for a dimension of unknown size, which may differ from all others."""
    return b"unknown_of_quark_numba_%d" % next(_dimensions)


def _element_type(number: int) -> ElementType | None:
    """The element type of an ONNXTensorElementDataType; None if the package does not have it."""
    from ..element_types import ELEMENT_TYPES

    return next((element_type for element_type in ELEMENT_TYPES if c_api.element_type(element_type) == number), None)
