"""The native backend, operators that ONNX Runtime calls through OrtCustomOp structures: its entries in session options, which
domains a session gets, why it is not available, and the warning of copies."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import logging
import threading
from collections.abc import Callable, Container, Iterable, Iterator
from ctypes import c_int, c_void_p
from typing import TYPE_CHECKING, Any

from ..compiling.lock import created_once, run_in_creation
from ..errors import NotAvailableError
from . import c_api, cached_nodes, cuda, python_record
from .c_api import Description, OrtApi
from .custom_op import CustomOp, Need, make_structure
from .providers import CUDA, available, better_in_standard
from .shared_library.load import check_platform, load

# Modules that a process does not need if it finds all its kernels kept are imported inside of functions.
if TYPE_CHECKING:
    import onnxruntime

# Configuration entries of session options. This one tells which backend is registered with them.
REGISTERED = "quark_numba.backend"

# This entry asks for the operators of ONNX's own domain as well. It has to be set before the library is registered, possibly
# for a second time.
FLOAT_QDQ = "quark_numba.float_qdq"

# This entry asks for all other domains if the library is limited to some domains.
ALL_DOMAINS = "quark_numba.all_domains"

# These entries mark the options of sessions that never run. No kernels are created for their nodes, so nothing is compiled.
# ONNX Runtime runs no custom operator to fold it. With the second entry, `Registry.listing_needs` collects what the nodes need.
NEVER_RUNS = "quark_numba.never_runs"
LISTS_NEEDS = "quark_numba.lists_needs"

# Followed by the name of a domain: the options have that domain. ONNX Runtime would refuse a domain that is added twice, with a
# message that does not say why.
_HAS_DOMAIN = "quark_numba.has_domain."

_log = logging.getLogger(__name__)

_COPIES = (
    "a session with %s has operators of this package that run on the CPU, so their tensors are copied there and back; "
    'quark_numba.InferenceSession, or quark_numba.optimize(..., operators="standard"), writes them in operators that all '
    "execution providers have"
)


def get_library_path() -> str:
    """Return the path of a custom-operator library for ``SessionOptions.register_custom_ops_library``.

    The library calls functions of this process, so the path is valid only in this process, as long as it lives. Another process
    has to call this function itself, even a child that was spawned, or forked and then replaced by exec: there the path does
    not exist, or is that of another file or of a library without operators. Do not pass the path to other programs, such as the
    tools of ONNX Runtime: a program that opens the library of this process nevertheless may crash. Libraries for other programs
    come from `build_library`: with ``models=None`` (``quark-numba build-library --all``) for any model by Quark as written.

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


def config_entry(session_options: onnxruntime.SessionOptions, name: str) -> Any:
    """Return the value of a configuration entry of the options, or None if they lack it."""
    try:
        return session_options.get_session_config_entry(name)
    except RuntimeError:  # there is no such entry
        return None


def domains_to_add(domains: Iterable[str], limit: Container[str], has: Callable[[str], bool]) -> list[str]:
    """Return which of all `domains` are added to session options. `has` tells whether the options have a configuration entry.

    `limit` has the domains to which the library is limited, unless the options ask for all domains. An empty `limit` means all
    domains."""

    def is_wanted(domain: str) -> bool:
        if not domain:
            return has(FLOAT_QDQ)
        return not has(REGISTERED) and (domain in limit or not limit or has(ALL_DOMAINS))

    return [domain for domain in domains if is_wanted(domain) and not has(_HAS_DOMAIN + domain)]


def release_of(version: str) -> tuple[int, ...]:
    """Return the release of a version of ONNX Runtime."""
    return tuple(map(int, version.split(".")[:2]))


def _run(api: int, action: Callable[[], None], is_done: Any, where: Callable[[], str] = str) -> int | None:
    """Run `action` under the creation lock and set `is_done`. Return an OrtStatus if it raises: no exception may reach C."""
    try:
        run_in_creation(action)
    except BaseException as error:
        return c_api.create_status(api, c_api.ORT_FAIL, f"quark_numba: {type(error).__name__}: {error}{where()}")
    is_done[0] = 1
    return None


class Registry:
    """The operators that this process registers with ONNX Runtime, and their library. A process has one library: on Windows all
    libraries have one file."""

    def __init__(self) -> None:
        # The domains that are registered with options that do not ask for all. If it is empty, such options get all domains.
        # ONNX Runtime keeps each domain that was ever registered in the process, and names all of them in the models that it
        # writes.
        self.limit: frozenset[str] = frozenset()
        self._domains: dict[tuple[int, str, str], int] = {}
        self._custom_ops: dict[int, CustomOp] = {}  # by the addresses of their structures
        self._needs: dict[Need, None] = {}  # in their order
        self._listing = threading.Lock()
        self._has_warned = False  # of copies

    @created_once
    def library(self) -> tuple[str | None, str]:
        """Return (the path of the library, ""), or (None, the reason why it is not available). The answer never changes in a
        process."""
        try:
            check_platform()
            if not cached_nodes.functions():
                from ..compiling.jit import JIT_ENABLED  # which imports Numba

                if not JIT_ENABLED:
                    return None, "NUMBA_DISABLE_JIT is set"
                from ..compiling import cache

                cache.process.warns_on_next_compile = True
            return load("RegisterCustomOps", self._functions["register"], self.python_functions), ""
        except NotAvailableError as error:
            return None, str(error)

    @property
    def has_functions(self) -> bool:
        """Return whether the functions that all operators share are compiled, in this process or an earlier one."""
        return "library" in vars(self) or bool(run_in_creation(cached_nodes.functions))

    @contextlib.contextmanager
    def listing_needs(self) -> Iterator[dict[Need, None]]:
        """Collect, within the context, the needs of nodes in sessions whose options have the entry LISTS_NEEDS."""
        with self._listing:
            self._needs = {}
            yield self._needs

    @functools.cached_property
    def _functions(self) -> dict[str, int]:
        """The addresses of the functions that all operators share."""
        if addresses := cached_nodes.functions():
            return addresses
        from . import callbacks

        addresses = callbacks.functions()
        cached_nodes.keep_functions(addresses)
        return addresses

    @functools.cached_property
    def python_functions(self) -> int:
        """The address of the record of Python functions that compiled functions call."""
        functions = {"register": self._register, "create": self._create_kernel, "infer": self._infer_outputs}
        return python_record.python_functions(self._functions["run_work"], **functions)

    def _register(self, options: int, api_base: int, _c: int, _d: int, is_done: Any) -> int | None:
        """Add domains of the catalog to an OrtSessionOptions (RegisterCustomOps). Return an OrtStatus."""
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
            descriptions = cached_nodes.descriptions(release)
            domains = dict.fromkeys(description.domain for description in descriptions)
            for domain in domains_to_add(domains, self.limit, has):
                own = [description for description in descriptions if description.domain == domain]
                instead = next((entry for entry in (LISTS_NEEDS, NEVER_RUNS) if has(entry)), "")
                added = self._get_or_create_domain(api, release, domain, own, instead)
                c_api.call(api, OrtApi.AddCustomOpDomain, options, added)
                set_entry(_HAS_DOMAIN + domain)
            if not has(REGISTERED) and (not self.limit or has(ALL_DOMAINS)):
                set_entry(REGISTERED)

        return _run(api, add, is_done)

    def _get_or_create_domain(
        self, api: int, release: tuple[int, ...], domain: str, descriptions: list[Description], instead: str
    ) -> int:
        """Return an OrtCustomOpDomain with an OrtCustomOp for each overload. When ONNX Runtime loads a model, it uses the
        overloads' types to check types, and to infer the types of outputs that the model does not declare."""
        key = api, domain, instead
        if key not in self._domains:
            made: int = c_api.ask(api, OrtApi.CreateCustomOpDomain, c_void_p, domain.encode())
            all_providers = _providers()
            for description in descriptions:
                for provider in all_providers if description.runs_on_gpus else [None]:
                    structure = make_structure(description, provider, self._functions, self.python_functions)
                    address = ctypes.addressof(structure)
                    self._custom_ops[address] = CustomOp(api, release, description, structure, instead, bool(provider))
                    c_api.call(api, OrtApi.CustomOpDomain_Add, made, address)
            self._domains[key] = made
        return self._domains[key]

    def _create_kernel(self, op: int, api: int, info: int, result: int, is_done: Any) -> int | None:
        """Create the kernel of a node, or note what it needs (OrtCustomOp::CreateKernelV2). Return an OrtStatus."""

        def create() -> None:
            custom_op = self._custom_ops[op]
            if custom_op.instead:
                if custom_op.instead == LISTS_NEEDS:
                    self._needs[custom_op.need_of(info)] = None
                return
            if not custom_op.is_on_gpu:
                self._warn_of_copies()
            c_void_p.from_address(result).value = custom_op.create_kernel(info)

        return _run(api, create, is_done, lambda: f" (node {c_api.read_node_name(api, info)!r})")

    def _infer_outputs(self, op: int, context: int, thread: int, _d: int, is_done: Any) -> None:
        """Infer the types and shapes of outputs (OrtCustomOp::InferOutputShapeFn). ONNX Runtime ignores a status: if this
        fails, it falls back to its own inference."""
        with contextlib.suppress(c_api.StatusError, ValueError):
            self._custom_ops[op].infer_outputs(context, thread)

    def _warn_of_copies(self) -> None:
        """Warn, once a process, if nodes are created for a session with another execution provider: they run on the CPU, and
        their tensors are copied there and back. There is no warning for a provider for which running them on the CPU is the
        best."""
        if self._has_warned or not better_in_standard(available()):
            return
        from .loading import providers_of_sessions

        if others := better_in_standard(providers_of_sessions(lambda options: bool(config_entry(options, REGISTERED)))):
            self._has_warned = True
            _log.warning(_COPIES, ", ".join(dict.fromkeys(others)))


# What `register` and `get_library_path` use.
REGISTRY = Registry()


def _providers() -> list[str | None]:
    """Return the execution providers that get operators with kernels for GPUs: None, which is the CPU provider, and the CUDA
    provider if this machine may have a GPU."""
    return [None, CUDA] if CUDA in available() and cuda.driver() is not None else [None]
