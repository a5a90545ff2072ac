#!/usr/bin/env bash
# Makes an AArch64 Linux with the Python of Debian 13 and this project's dependencies of PyPI, and an emulator for it:
# make_environment.sh FOLDER. Its Python is FOLDER/root/usr/bin/python3; FOLDER/emulate runs any of its programs. Needs apt, and a
# Python with the ONNX Runtime of the tests, whose version it gets. It takes a minute and 1 GB. It stays, and is made anew when
# this file, the requirements or ONNX Runtime's version change.
set -euo pipefail

here=$(dirname "$(realpath "$0")")
folder=$(realpath -m "$1")
python=${PYTHON:-python3}
unpack=$here/../support/unpack_debian.sh

# pip would read the conditions of requirements for this machine.
requirements=$("$python" - "$here/../../pyproject.toml" << 'PYTHON'
import sys, tomllib
from importlib.metadata import version
from pip._vendor.packaging.requirements import Requirement

project = tomllib.load(open(sys.argv[1], "rb"))["project"]
for each in map(Requirement, project["dependencies"] + project["optional-dependencies"]["test"]):
    if each.marker is None or each.marker.evaluate({"platform_machine": "aarch64", "python_version": "3.13"}):
        each.marker = None
        print(each)
print("onnxruntime==" + version("onnxruntime"))
PYTHON
)
made_of=$(cat "$0" "$unpack" <(echo "$requirements") | sha256sum)
[ "$(cat "$folder/made_of" 2> /dev/null)" != "$made_of" ] || exit 0
rm -rf "$folder"

"$unpack" "$folder/parts" amd64 qemu-user
mv "$folder/parts/usr/bin/qemu-aarch64" "$folder"
rm -rf "$folder/parts"

# Its folder etc would hide this machine's.
"$unpack" "$folder/root" arm64 python3.13 libgomp1 libstdc++6
rm -r "$folder"/root/{etc,var}
ln -s usr/lib "$folder/root/lib"
site=$folder/root/usr/lib/python3/dist-packages
"$python" -m pip install -q --disable-pip-version-check --no-compile --only-binary=:all: --target "$site" --python-version 3.13 \
  --platform=manylinux{2014,_2_{17,27,28}}_aarch64 -r <(echo "$requirements")
ln -s "$site"/onnxruntime/capi/libonnxruntime.so.* "$folder/root/usr/lib/aarch64-linux-gnu/libonnxruntime.so.1"

# The emulated processor is one whose emulation is fast, unless QEMU_CPU names another. Python's child processes are run by the same
# script, because it is sys.executable.
cat > "$folder/emulate" << EMULATE
#!/bin/sh
export QEMU_CPU="\${QEMU_CPU-neoverse-n1}"
exec "$folder/qemu-aarch64" -L "$folder/root" "\$@"
EMULATE
cat > "$folder/root/usr/bin/python3" << PYTHON
#!/bin/sh
exec "$folder/emulate" -0 "\$0" "$folder/root/usr/bin/python3.13" "\$@"
PYTHON
chmod +x "$folder/emulate" "$folder/root/usr/bin/python3"
"$folder/root/usr/bin/python3" -c 'import sys, numpy, numba, onnxruntime; print(sys.version, numba.njit(lambda x: x + 1)(1))'
echo "$made_of" > "$folder/made_of"
