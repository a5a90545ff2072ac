#!/usr/bin/env bash
# Makes the environments in which the tests of this folder run: make_environment.sh FOLDER. FOLDER/gpu and FOLDER/openvino have a
# build of ONNX Runtime with other execution providers, whose hardware and libraries are not needed. FOLDER/genai has ONNX Runtime
# GenAI with the plain build. Each has this repository. They stay, and are made anew when this file changes.
set -euo pipefail

folder=$(realpath -m "$1")
root=$(realpath "$(dirname "$0")/../..")
python=${PYTHON:-python3}
made_of=$(sha256sum < "$0")
if [ "$(cat "$folder/made_of" 2> /dev/null)" != "$made_of" ]; then
  rm -rf "$folder"
  for build in gpu==1.31.1 openvino==1.24.1 genai==0.18.0; do
    "$python" -m venv "$folder/${build%==*}"
    "$folder/${build%==*}/bin/pip" install --quiet "onnxruntime-$build"
  done
  echo "$made_of" > "$folder/made_of"
fi
# Tests whose build is missing would be skipped.
has_provider() {
  echo "import onnxruntime; assert '$1ExecutionProvider' in onnxruntime.get_available_providers()"
}
for build in gpu openvino genai; do
  bin=$folder/$build/bin
  "$bin/pip" install --quiet --editable "$root" pytest
  case $build in
    gpu) check=$(has_provider CUDA) ;;
    openvino) check=$(has_provider OpenVINO) ;;
    genai) check="import onnxruntime_genai" ;;
  esac
  "$bin/python" -c "$check"
done
