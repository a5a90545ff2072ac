#!/usr/bin/env bash
# Runs the tests, or those that are named, with Windows' builds under Wine: tests/windows/run.sh FOLDER [PYTEST ARGUMENT...].
# FOLDER is the environment, which is made if it is not there (make_environment.sh), and stays. Compiled kernels are kept in it.
set -euo pipefail

here=$(dirname "$(realpath "$0")")
folder=$(realpath -m "$1")
shift
mkdir -p "$folder"
exec 9> "$folder/lock"
flock 9
"$here/make_environment.sh" "$folder" 9>&-

windows_path() { echo "Z:${1//\//\\}"; }
root=$(realpath "$here/../..")
cd "$root"
export PYTHONPATH NUMBA_CACHE_DIR
PYTHONPATH=$(windows_path "$root")
NUMBA_CACHE_DIR=$(windows_path "$folder/kernels")
# Whatever a test leaves running ends with the tests.
trap 'WINEPREFIX="$folder/prefix" wineserver -k || true' EXIT
"$folder/wpy" -m pytest -p no:cacheprovider "$@" 9>&-
