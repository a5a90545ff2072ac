"""The walks of `quark_numba.models.protos`, under the name by which sessions import them."""

from ..models.protos import subgraphs, used_names

__all__ = ["subgraphs", "used_names"]
