#!/usr/bin/env bash
# Makes the environment in which the tests of this folder run: make_environment.sh FOLDER. It has Quark, PyTorch's build for the
# CPU, without CUDA's libraries, ONNX Runtime, and this repository. It stays, and is made anew when this file changes.
set -euo pipefail

folder=$(realpath -m "$1")
root=$(realpath "$(dirname "$0")/../..")
python=${PYTHON:-python3}
made_of=$(sha256sum < "$0")
if [ "$(cat "$folder/made_of" 2> /dev/null)" != "$made_of" ]; then
  rm -rf "$folder"
  "$python" -m venv "$folder"
  # Builds for Linux without +cpu bring gigabytes of CUDA's libraries. PIP_EXTRA_INDEX_URL may name an index that has this one.
  "$folder/bin/pip" install --quiet torch==2.13.0+cpu
  "$folder/bin/pip" install --quiet amd-quark==0.13
  echo "$made_of" > "$folder/made_of"
fi
"$folder/bin/pip" install --quiet --editable "$root[onnxruntime]" pytest hypothesis
