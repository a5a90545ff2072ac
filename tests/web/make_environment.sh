#!/usr/bin/env bash
# Makes the environment in which the tests of this folder run: make_environment.sh FOLDER. It gets ONNX Runtime Web and a library
# that drives browsers, of npm. Node, npm and Chromium are installed by apt where they are missing, which needs root. The folder
# stays, and is made anew when this file changes.
set -euo pipefail

folder=$(realpath -m "$1")
made_of=$(sha256sum < "$0")
missing=()
command -v npm > /dev/null || missing+=(nodejs npm)
command -v chromium > /dev/null || missing+=(chromium)
if [ ${#missing[@]} != 0 ]; then
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}"
fi
[ "$(cat "$folder/made_of" 2> /dev/null)" != "$made_of" ] || exit 0
rm -rf "$folder"
mkdir -p "$folder"
npm install --silent --ignore-scripts --no-audit --no-fund --prefix "$folder" 'onnxruntime-web@>=1.30' 'playwright-core@>=1.56'
echo "$made_of" > "$folder/made_of"
