#!/usr/bin/env bash
# Makes what the tests of this folder need: make_environment.sh FOLDER. FOLDER gets the ONNX Runtime of Debian, with headers, and all
# libraries that it needs. Needs apt. It stays, and is made anew when this file or the script that unpacks changes.
set -euo pipefail

folder=$(realpath -m "$1")
unpack=$(dirname "$(realpath "$0")")/../support/unpack_debian.sh
made_of=$(cat "$0" "$unpack" | sha256sum)
[ "$(cat "$folder/made_of" 2> /dev/null)" != "$made_of" ] || exit 0
rm -rf "$folder"
"$unpack" "$folder" amd64 libonnxruntime-dev
echo "$made_of" > "$folder/made_of"
