"""PyInstaller runs this where an application imports the package: https://pyinstaller.org/en/stable/hooks.html."""

from PyInstaller.utils.hooks import collect_data_files, collect_submodules, copy_metadata

# Modules are imported under computed names. Importing the one that is left out changes how Quark is imported.
hiddenimports = collect_submodules("quark_numba", filter=lambda name: name != "quark_numba.for_quark")

# The package takes objects of these, from applications that import them themselves.
excludedimports = ["cloudpickle", "dask", "distributed", "quark", "torch"]

# Compiled kernels are kept under digests of the sources, which frozen modules alone do not have.
module_collection_mode = {"quark_numba": "pyz+py"}

datas = collect_data_files("quark_numba", excludes=["**/__pycache__", "**/*.md"])
for name in ("llvmlite", "ml_dtypes", "numba", "numpy", "onnx", "onnx-ir"):  # cached models are kept under their versions
    datas += copy_metadata(name)
