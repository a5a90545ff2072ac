#!/usr/bin/env bash
# Runs all tests, or the named ones, with Windows' builds under Wine: tests/windows/run.sh FOLDER [PYTEST ARGUMENT...]. FOLDER
# has the environment. If it is missing, make_environment.sh makes it. The environment stays, and keeps compiled kernels.
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
# Processes that a test leaves running end with the tests.
trap 'WINEPREFIX="$folder/prefix" wineserver -k || true' EXIT
"$folder/wpy" -m pytest -p no:cacheprovider "$@" 9>&-
