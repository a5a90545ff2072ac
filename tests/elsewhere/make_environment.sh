#!/usr/bin/env bash
# Makes what the tests of this folder need: make_environment.sh FOLDER. FOLDER/debian gets the ONNX Runtime of Debian, with headers,
# and all libraries that it needs, FOLDER/aarch64 an AArch64 Linux for qemu: its C and C++ libraries and ONNX Runtime's library of
# PyPI. Needs apt, root unless qemu-user and Debian's keys are installed, and a Python with the ONNX Runtime of the tests. It stays,
# and is made anew when this file or ONNX Runtime's version changes.
set -euo pipefail

folder=$(realpath -m "$1")
python=${PYTHON:-python3}
release=$("$python" -c 'import onnxruntime; print(onnxruntime.__version__)')
made_of=$(cat "$0" <(echo "$release") | sha256sum)
[ "$(cat "$folder/made_of" 2> /dev/null)" != "$made_of" ] || exit 0
rm -rf "$folder"
mkdir -p "$folder"/{apt/lists/partial,apt/cache/archives/partial,parts,debian,aarch64/proc}

keys=/usr/share/keyrings/debian-archive-keyring.gpg
if ! command -v qemu-aarch64 > /dev/null || ! [ -e "$keys" ]; then
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends qemu-user debian-archive-keyring
fi

# Debian 13, apart from what this machine has installed.
echo "deb [signed-by=$keys] http://deb.debian.org/debian trixie main" > "$folder/apt/sources"
touch "$folder/apt/status"
cat > "$folder/apt/configuration" << CONFIGURATION
Dir::Etc::sourcelist "$folder/apt/sources";
Dir::Etc::sourceparts "-";
Dir::State::status "$folder/apt/status";
Dir::State::lists "$folder/apt/lists";
Dir::Cache "$folder/apt/cache";
APT::Architecture "amd64";
APT::Architectures "amd64,arm64";
APT::Sandbox::User "";
Debug::NoLocking "true";
CONFIGURATION
export APT_CONFIG=$folder/apt/configuration
apt-get update -qq
apt-get install -qq -y --download-only --no-install-recommends libonnxruntime-dev
for each in "$folder"/apt/cache/archives/*.deb; do dpkg -x "$each" "$folder/debian"; done
(cd "$folder/parts" && apt-get download -qq {libc6,libgcc-s1,libstdc++6}:arm64)
for each in "$folder"/parts/*_arm64.deb; do dpkg -x "$each" "$folder/aarch64"; done
ln -sfn usr/lib "$folder/aarch64/lib"

"$python" -m pip download -q --disable-pip-version-check --no-deps --only-binary=:all: --python-version 3.11 \
  --platform=manylinux_2_{17,27,28}_aarch64 -d "$folder/parts" "onnxruntime==$release"
"$python" -m zipfile -e "$folder"/parts/onnxruntime-*.whl "$folder/parts/wheel"
cp "$folder"/parts/wheel/onnxruntime/capi/libonnxruntime.so.* "$folder/aarch64/usr/lib/aarch64-linux-gnu/libonnxruntime.so.1"

# Without the emulated processor's own, ONNX Runtime reads this machine's, and ends.
for i in 0 1; do
  printf '%s\t: %s\n' processor $i Features 'fp asimd aes pmull crc32 atomics fphp asimdhp asimdrdm asimddp' \
    'CPU implementer' 0x41 'CPU architecture' 8 'CPU variant' 0x3 'CPU part' 0xd0b 'CPU revision' 1
  echo
done > "$folder/aarch64/proc/cpuinfo"
rm -rf "$folder/parts" "$folder/apt"
echo "$made_of" > "$folder/made_of"
