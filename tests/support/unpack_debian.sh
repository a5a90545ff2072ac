#!/usr/bin/env bash
# Unpacks packages of Debian 13, and all that they need: unpack_debian.sh FOLDER ARCHITECTURE PACKAGE... Nothing is installed, but
# Debian's keys if they are missing, which needs root.
set -euo pipefail

folder=$(realpath -m "$1")
architecture=$2
shift 2

keys=/usr/share/keyrings/debian-archive-keyring.gpg
if ! [ -e "$keys" ]; then
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends debian-archive-keyring
fi

# Apart from what this machine has installed.
apt=$(mktemp -d)
trap 'rm -rf "$apt"' EXIT
mkdir -p "$apt"/{lists/partial,cache/archives/partial} "$folder"
echo "deb [signed-by=$keys] http://deb.debian.org/debian trixie main" > "$apt/sources"
touch "$apt/status"
cat > "$apt/configuration" << CONFIGURATION
Dir::Etc::sourcelist "$apt/sources";
Dir::Etc::sourceparts "-";
Dir::State::status "$apt/status";
Dir::State::lists "$apt/lists";
Dir::Cache "$apt/cache";
APT::Architecture "$architecture";
APT::Architectures "$architecture";
APT::Sandbox::User "";
Debug::NoLocking "true";
CONFIGURATION
export APT_CONFIG=$apt/configuration
apt-get update -qq
apt-get install -qq -y --download-only --no-install-recommends "$@"
for each in "$apt"/cache/archives/*.deb; do dpkg -x "$each" "$folder"; done
