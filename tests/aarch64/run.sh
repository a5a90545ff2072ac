#!/usr/bin/env bash
# Runs all tests, or the named ones, on an emulated AArch64 processor: tests/aarch64/run.sh FOLDER [PYTEST ARGUMENT...]. FOLDER has
# the environment. If it is missing, make_environment.sh makes it. The environment stays, and keeps compiled kernels. QEMU_CPU names
# the processor: neoverse-n1 (the default), cortex-a53 without arithmetic in float16, max with SVE, or another one of qemu's.
set -euo pipefail

here=$(dirname "$(realpath "$0")")
folder=$(realpath -m "$1")
shift
"$here/make_environment.sh" "$folder"

root=$(realpath "$here/../..")
cd "$root"
export PYTHONPATH=$root NUMBA_CACHE_DIR=$folder/kernels
exec "$folder/root/usr/bin/python3" -m pytest -p no:cacheprovider "$@"
