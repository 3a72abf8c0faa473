#!/bin/bash
# Builds the server's image as an OCI layout, tag `latest`: build-image.sh OUTPUT
#
# A minimal Debian root from the archive that apt uses here, Python packages of exact versions, the server.
# Nothing is done while OUTPUT was made from the same inputs. The root of the last build stays in
# OUTPUT.base.tar, so that only the first build runs debootstrap.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
tools=$here/../../tools
umask 022
server_files=(server.py batching.py metrics.py ocr_reader.py)

die() { echo "build-image: $*" >&2; exit 1; }
say() { echo "build-image: $*" >&2; }

quietly() {  # SECONDS COMMAND...
	local seconds=$1
	shift
	echo "+ $*" >>"$work/log"
	if ! timeout --kill-after=10 "$seconds" "$@" </dev/null 2>&1 | head -c 16M >>"$work/log"; then
		tail -n 8 "$work/log" >&2
		cp "$work/log" "$output.log"
		die "failed: $* (whole log: $output.log)"
	fi
}

# RapidOCR has no release for Python 3.13, so the image is Debian 12's whatever the host is
suite_here() { ( . /etc/os-release; [ "$ID" = debian ] && echo bookworm || echo "$VERSION_CODENAME" ); }

bootstrap() {  # ROOT: from the kept tarball where there is one
	local root=$1 base=$output.base.tar key
	key=$(echo "$suite $architecture $base_version")
	if [ "$(cat "$output.base.key" 2>/dev/null)" != "$key" ] || [ ! -s "$base" ]; then
		say "Debian root ($suite, by debootstrap)"
		local mirror
		mirror=$(sh "$tools/apt-mirror.sh" 2>/dev/null) || { quietly 300 apt-get update; mirror=$(sh "$tools/apt-mirror.sh"); }
		quietly 900 debootstrap --variant=minbase --include=python3 "$suite" "$root" "$mirror"
		rm -rf "$root"/var/cache/apt/* "$root"/var/lib/apt/lists/* "$root"/var/log/* \
			"$root"/usr/share/{doc,man,info,locale,lintian} "$root"/etc/{resolv.conf,hostname}
		rm -f "$output.base.key"
		tar -C "$root" --numeric-owner --xattrs -cf "$work/base.tar" .
		mv "$work/base.tar" "$base"
		echo "$key" >"$output.base.key"
	else
		tar -C "$root" --numeric-owner --xattrs -xf "$base"
	fi
}

install_packages() {  # ROOT: wheels for the image's Python, whichever Python runs pip here
	local root=$1 version target platform platforms=()
	version=$(chroot "$root" /usr/bin/python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')
	target=/usr/local/lib/python$version/dist-packages
	for platform in manylinux_2_28 manylinux_2_27 manylinux2014 manylinux_2_17; do
		platforms+=(--platform "${platform}_$(uname -m)")
	done
	say "Python packages (Python $version)"
	quietly 600 "${PIP:-$here/../../.venv/bin/pip}" install --disable-pip-version-check --no-input --quiet \
		--no-deps --no-compile --only-binary=:all: --implementation cp --python-version "$version" \
		--abi "cp${version/./}" --abi abi3 --abi none "${platforms[@]}" \
		--target "$root$target" -r "$here/requirements.txt"
	rm -rf "$root$target/bin"
	# compiled by the Python that will read it; not by time, which umoci rounds to whole seconds
	quietly 300 chroot "$root" /usr/bin/python3 -m compileall -q -j 2 --invalidation-mode unchecked-hash \
		"$target" || true
}

pack() {  # ROOT LAYOUT
	local root=$1 layout=$2
	say "OCI image"
	quietly 60 umoci init --layout "$layout"
	quietly 60 umoci new --image "$layout:latest"
	quietly 600 umoci insert --image "$layout:latest" "$root" /
	quietly 60 umoci config --image "$layout:latest" --clear config.entrypoint --clear config.cmd \
		--config.entrypoint /usr/bin/python3 --config.entrypoint /srv/ocr/server.py \
		--config.workingdir /srv/ocr --architecture "$architecture" --os linux \
		--config.env PATH=/usr/local/bin:/usr/bin:/bin --config.env LC_ALL=C.UTF-8 \
		--config.env PYTHONUNBUFFERED=1 --config.env PYTHONDONTWRITEBYTECODE=1
	quietly 60 umoci gc --layout "$layout"
}

build() {  # inside mount and pid namespaces of its own: what is killed leaves no mount and no process
	local root=$work/root
	mkdir "$root"
	bootstrap "$root"
	install_packages "$root"
	for file in "${server_files[@]}"; do install -D -m 644 "$here/$file" "$root/srv/ocr/$file"; done
	pack "$root" "$work/layout"
	rm -rf "$output" "$output.inputs"
	mv "$work/layout" "$output"
	echo "$inputs" >"$output.inputs"
}

main() {
	[ $# -eq 1 ] || die "usage: build-image.sh OUTPUT"
	[ "$(id -u)" = 0 ] || die "needs root; run it through sudo"
	mkdir -p "$(dirname "$1")"
	output=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
	work=$output.work
	suite=$(suite_here)
	architecture=$(dpkg --print-architecture)
	base_version=1  # raise it when the list of what the root holds changes
	inputs=$(cd "$here" && { echo "$suite $architecture"; cat build-image.sh requirements.txt "${server_files[@]}"; } |
		sha256sum | cut -d ' ' -f 1)
	if [ "${COLDSTART_BUILD_INSIDE-}" = yes ]; then
		build
		return
	fi
	exec 9>"$output.lock"
	flock --wait 1200 9 || die "another build holds $output.lock"
	if [ "$(cat "$output.inputs" 2>/dev/null)" = "$inputs" ] && [ -f "$output/index.json" ]; then
		say "up to date: $output"
		return
	fi
	rm -rf --one-file-system "$work"  # of a build that was killed
	mkdir "$work"
	COLDSTART_BUILD_INSIDE=yes setpriv --pdeathsig KILL unshare --mount --pid --fork --kill-child --mount-proc \
		--propagation private bash "$0" "$output"
	rm -rf --one-file-system "$work"
	say "$output: $(du -sm "$output" | cut -f 1) MB"
}

main "$@"
