"""The catalog: which families and dialects have operators, which domain is another name of ONNX's, and which version of an
operator a node or an opset gets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import ModuleType

from .block import operators as block
from .convolution import operators as convolution
from .declaration import Operator
from .dialects import mct, nvidia, openvino, qonnx, quark
from .fake_quantization import operators as fake_quantization
from .linear import operators as linear
from .linear.versions import LATEST_OPSET
from .normalization import operators as normalization
from .recurrent import operators as recurrent
from .region import operators as region

# QuantizeLinear and DequantizeLinear in ONNX Runtime's own domain are the same operators as in ONNX's domain.
_ALIASES = {"com.microsoft": ""}


class Catalog:
    """All versions of operators, by domain and name."""

    def __init__(self, operators: Iterable[Operator]) -> None:
        self.nodes: dict[str, ModuleType] = {}  # by family, for the families from outside of the package
        self._versions: dict[tuple[str, str], list[Operator]] = {}
        for operator in operators:
            self.add(operator)
        self._own = {*map(id, self)}

    def add(self, operator: Operator, node: ModuleType | None = None) -> None:
        """Add a version of an operator. Libraries and sessions that are made afterwards have it.

        Parameters
        ----------
        operator : Operator
        node : module, optional
            The node of the operator's family in sessions, if the family is not in the package: a module with what
            `quark_numba.ort.nodes` says. It selects None as the key of a kernel.

        Raises
        ------
        ValueError
            If the catalog has the same version or a later one already.
        """
        versions = self._versions.setdefault((operator.domain, operator.name), [])
        if versions and versions[-1].since_version >= operator.since_version:
            raise ValueError(f"{operator.full_name}-{operator.since_version} comes twice, or after a later version")
        versions.append(operator)
        if node:
            self.nodes[operator.family] = node

    def __iter__(self) -> Iterator[Operator]:
        """Yield every version of every operator, the versions of one operator in ascending order."""
        for versions in self._versions.values():
            yield from versions

    @property
    def added(self) -> list[Operator]:
        """The operators that were added from outside of the package."""
        return [operator for operator in self if id(operator) not in self._own]

    @property
    def domains(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(domain for domain, _ in self._versions))

    def newest(self, domain: str) -> tuple[Operator, ...]:
        """Return the newest version of each operator in a domain. It accepts everything that older versions accept."""
        return tuple(versions[-1] for (its_domain, _), versions in self._versions.items() if its_domain == domain)

    def find(self, domain: str, name: str) -> Operator | None:
        """Return the newest version of the operator of a node, by the node's domain and op_type, or None if the catalog lacks
        it."""
        versions = self._versions.get((_ALIASES.get(domain, domain), name))
        return versions[-1] if versions else None

    def of_opset(self, operator: Operator, opset: int) -> Operator:
        """Return the version of one of ONNX's own operators in an opset. Raise ValueError if it is not known."""
        versions = self.versions(operator)
        known = [version for version in versions if version.since_version <= opset <= LATEST_OPSET]
        if not known:
            raise ValueError(f"opset is {opset}; expected {versions[0].since_version}..{LATEST_OPSET}")
        return known[-1]

    def versions(self, operator: Operator) -> tuple[Operator, ...]:
        """Return all versions of an operator, the oldest first."""
        return tuple(self._versions[operator.domain, operator.name])


# The families with operators of ONNX, of Quark, or of this package, which `optimize` writes. Dialects declare all other
# operators.
_FAMILIES = (linear, block, normalization, recurrent, fake_quantization, region, convolution)
_DIALECTS = (qonnx, mct, nvidia, openvino)
_FAMILY_OPERATORS = [operator for family in _FAMILIES for operator in family.OPERATORS]
_DIALECT_OPERATORS = [operator for dialect in _DIALECTS for operator in dialect.OPERATORS]

OPERATORS = Catalog((*_FAMILY_OPERATORS, *quark.older_names(_FAMILY_OPERATORS), *_DIALECT_OPERATORS))
