#!/bin/sh
# SOCI's two programs into .bench/bin: Debian 14's package, which needs nothing of Debian 14's but the C library that
# Debian 12 has, through the archive that apt uses already. apt's own sources and lists stay as they are.
set -eu
cd "$(dirname "$0")/.."
scratch=$(mktemp -d -t coldstart-soci.XXXXXX)
trap 'rm -rf "$scratch"' EXIT
mkdir -p "$scratch/lists/partial" .bench/bin
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
echo "deb [signed-by=$keyring] $(sh tools/apt-mirror.sh) forky main" >"$scratch/sources.list"
apt() {
	timeout 300 apt-get -o Dir::Etc::SourceList="$scratch/sources.list" -o Dir::Etc::SourceParts=- \
		-o Dir::State::Lists="$scratch/lists" -o Dir::Cache="$scratch" -o APT::Sandbox::User=root \
		-o Acquire::Check-Valid-Until=false -q "$@"
}
apt update
(cd "$scratch" && apt download soci-snapshotter)
dpkg -x "$scratch"/soci-snapshotter_*.deb "$scratch/root"
cp "$scratch/root/usr/bin/soci" "$scratch/root/usr/bin/soci-snapshotter-grpc" .bench/bin/
.bench/bin/soci --version
