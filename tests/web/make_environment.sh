#!/usr/bin/env bash
# Makes the environment in which the tests of this folder run: make_environment.sh FOLDER. It gets the packages of examples/web and
# a library that drives browsers, from npm. Node, npm and Chromium are installed by apt where they are missing, which needs root.
# The folder stays, and is made anew when this file or the list of packages changes.
set -euo pipefail

folder=$(realpath -m "$1")
packages=$(dirname "$0")/../../examples/web/package.json
made_of=$(cat "$0" "$packages" | sha256sum)
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
cp "$packages" "$folder"
npm install --silent --ignore-scripts --no-audit --no-fund --prefix "$folder" 'playwright-core@>=1.56'
echo "$made_of" > "$folder/made_of"
