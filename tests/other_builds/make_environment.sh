#!/usr/bin/env bash
# Makes the environments in which the tests of this folder run: make_environment.sh FOLDER. FOLDER/gpu and FOLDER/openvino have a
# build of ONNX Runtime with other execution providers, whose hardware and libraries are not needed, and this repository. They
# stay, and are made anew when this file changes.
set -euo pipefail

folder=$(realpath -m "$1")
root=$(realpath "$(dirname "$0")/../..")
python=${PYTHON:-python3}
made_of=$(sha256sum < "$0")
if [ "$(cat "$folder/made_of" 2> /dev/null)" != "$made_of" ]; then
  rm -rf "$folder"
  for build in gpu==1.31.1 openvino==1.24.1; do
    "$python" -m venv "$folder/${build%==*}"
    "$folder/${build%==*}/bin/pip" install --quiet "onnxruntime-$build"
  done
  echo "$made_of" > "$folder/made_of"
fi
for build in gpu=CUDA openvino=OpenVINO; do
  bin=$folder/${build%=*}/bin
  "$bin/pip" install --quiet --editable "$root" pytest
  # The tests would be skipped with ONNX Runtime's plain build.
  "$bin/python" -c "import onnxruntime; assert '${build#*=}ExecutionProvider' in onnxruntime.get_available_providers()"
done
