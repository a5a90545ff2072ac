#!/usr/bin/env bash
# Makes what tests of this folder need: make_environment.sh FOLDER. FOLDER gets the NVIDIA assembler of PTX, ptxas, from PyPI, for
# Linux. It stays, and is made anew when this file changes.
set -euo pipefail

folder=$(realpath -m "$1")
made_of=$(sha256sum < "$0")
[ "$(cat "$folder/made_of" 2> /dev/null)" != "$made_of" ] || exit 0
rm -rf "$folder"
mkdir -p "$folder"
"${PYTHON:-python3}" -m pip download -q --disable-pip-version-check --no-deps -d "$folder" "nvidia-cuda-nvcc>=13"
"${PYTHON:-python3}" -m zipfile -e "$folder"/nvidia_cuda_nvcc-*.whl "$folder"
rm "$folder"/nvidia_cuda_nvcc-*.whl
chmod +x "$folder"/nvidia/*/bin/ptxas
echo "$made_of" > "$folder/made_of"
