#!/bin/bash
# Sets this checkout up on Debian 12 or 13 (Ubuntu 22.04 or newer): system packages, criu, .venv.
# As root or through sudo; repeatable; seconds when nothing is missing. `make setup` runs it. With `--full`,
# as `make test-full` runs it, also what only the slow proofs need.
set -euo pipefail

export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8
cd "$(dirname "$0")/.."

# what the tool runs, then what its tests and its demo need besides
packages=(
	fuse3 runc skopeo nftables golang-github-containers-common minisign
	systemd # its socket proxy forwards published ports
	ca-certificates procps iproute2 kmod
	gcc libc6-dev
	umoci debootstrap xz-utils attr acl man-db zsh fish
)
# servers that tests start themselves: their services must start neither now nor at the next boot
server_packages=(docker-registry nginx)
# another containerd, such as Docker's own package, must not be driven out by the distribution's
command -v containerd >/dev/null || server_packages+=(containerd)
# what a slow proof needs, which is skipped where it is not to be had
full_packages=(chromium nodejs qemu-system-x86 e2fsprogs)
full_servers=(redis-server postgresql)
criu_build_packages=(
	libprotobuf-dev libprotobuf-c-dev protobuf-c-compiler protobuf-compiler libnl-3-dev libnet1-dev
	libcap-dev libbsd-dev libnftables-dev libgnutls28-dev uuid-dev python3-protobuf
)
step=start
hint=""
log=$(mktemp -t coldstart-setup.XXXXXX)
scratch=""
policy=/usr/sbin/policy-rc.d  # what maintainer scripts ask before they start a service
policy_is_ours=no

finish() {
	local status=$?
	[ -z "$scratch" ] || rm -rf "$scratch"
	[ $policy_is_ours = no ] || "${as_root[@]}" rm -f $policy
	if [ $status -eq 0 ]; then rm -f "$log"; return; fi
	tail -n 15 "$log" >&2 || true
	echo "setup: failed at: $step (whole log: $log)" >&2
	echo "setup: ${hint:-mend what the log says} and run \`make setup\` again; finished steps are not repeated" >&2
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

say() { step=$1; echo "setup: $1" >&2; }

# Bounded in time and output: a build gone wrong must not fill the disk.
quietly() {  # SECONDS COMMAND...
	local seconds=$1
	shift
	echo "+ $*" >>"$log"
	# --foreground: Ctrl-C must reach the command, and sudo the terminal
	timeout --foreground --kill-after=10 "$seconds" "$@" </dev/null 2>&1 | head -c 32M >>"$log"
}

if [ "$(id -u)" = 0 ]; then
	as_root=()
elif command -v sudo >/dev/null; then
	as_root=(sudo env DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8)
	step="privileges"; hint="sudo must let you become root"
	sudo true
else
	step="privileges"; hint="become root or install sudo"
	exit 69
fi

version_at_least() { [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]; }

lists_updated=no
update_lists() {
	[ $lists_updated = no ] || return 0
	say "package lists (apt-get update)"
	hint="repair apt's sources"
	quietly 300 "${as_root[@]}" apt-get -o Acquire::Retries=2 -o DPkg::Lock::Timeout=120 update ||
		echo "setup: apt-get update met errors; going on with the lists there are" >&2
	lists_updated=yes
}

missing_of() {  # PACKAGE...: those not installed
	dpkg-query -W -f '${db:Status-Status} ${Package}\n' "$@" 2>/dev/null |
		sed -n 's/^installed //p' | sort -u >"$log.installed" || true
	printf '%s\n' "$@" | sort -u | comm -23 - "$log.installed"
	rm -f "$log.installed"
}

install_packages() {  # PACKAGE...
	local missing
	mapfile -t missing < <(missing_of "$@")
	[ ${#missing[@]} -gt 0 ] || return 0
	update_lists
	say "system packages: ${missing[*]}"
	hint="run \`apt-get install --no-install-recommends ${missing[*]}\` by hand, mend what it reports"
	# runc recommends the distribution's criu, which may be too old for the kernel
	quietly 900 "${as_root[@]}" apt-get -o Acquire::Retries=2 -o DPkg::Lock::Timeout=120 \
		install -y --no-install-recommends "${missing[@]}"
}

install_servers() {  # PACKAGE...: installed, and their services stay off, unless they were there already
	local missing package
	mapfile -t missing < <(missing_of "$@")
	[ ${#missing[@]} -gt 0 ] || return 0
	if [ ! -e $policy ]; then
		policy_is_ours=yes
		printf '#!/bin/sh\nexit 101\n' | "${as_root[@]}" tee $policy >/dev/null
		"${as_root[@]}" chmod 755 $policy
	fi
	install_packages "${missing[@]}"
	for package in "${missing[@]}"; do
		! command -v systemctl >/dev/null || quietly 60 "${as_root[@]}" systemctl disable "$package.service" ||
			echo "setup: the service of $package starts at the next boot: systemctl disable $package" >&2
	done
	[ $policy_is_ours = no ] || "${as_root[@]}" rm -f $policy
	policy_is_ours=no
}

# --- Python: the distribution's, 3.11 or newer, never one that a version manager put on PATH
find_python() {
	local candidate
	for candidate in /usr/bin/python3 /usr/bin/python3.13 /usr/bin/python3.12 /usr/bin/python3.11; do
		if [ -x $candidate ] && $candidate -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
			echo $candidate
			return
		fi
	done
}

# --- criu
# the oldest that this kernel allows: 3.17 does not know the vDSO of Linux 6.13, and 4.1 cannot dump a TCP
# socket from Linux 6.16 on, where SO_PASSCRED is refused on it
criu_oldest() {
	local kernel
	kernel=$(uname -r)
	if version_at_least "$kernel" 6.16; then echo 4.2
	elif version_at_least "$kernel" 6.13; then echo 4.1
	else echo 3.16; fi
}

criu_version() { "$1" --version 2>/dev/null | sed -n 's/^Version: *//p'; }

find_criu() { PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin" command -v criu || true; }

criu_serves() {  # PROGRAM: new enough for this kernel, and its own check passes
	local version
	[ -n "$1" ] || return 1
	version=$(criu_version "$1")
	[ -n "$version" ] && version_at_least "$version" "$(criu_oldest)" && quietly 60 "${as_root[@]}" "$1" check
}

criu_candidate() { apt-cache policy criu 2>/dev/null | sed -n 's/^ *Candidate: *//p'; }

# The source tarball of Debian 14's package (`forky`), through the archive that apt already uses. apt keeps
# state of its own in the scratch folder, so the host's sources and lists stay as they are.
build_criu() {
	install_packages make gcc libc6-dev pkg-config "${criu_build_packages[@]}"
	scratch=$(mktemp -d -t coldstart-criu.XXXXXX)
	local uri keyring=/usr/share/keyrings/debian-archive-keyring.gpg options
	say "criu: source of Debian 14's package"
	hint="install criu >= $(criu_oldest) from another source"
	[ -e $keyring ] || install_packages debian-archive-keyring
	uri=$(sh tools/apt-mirror.sh 2>>"$log") || { update_lists; uri=$(sh tools/apt-mirror.sh 2>>"$log"); }
	mkdir -p "$scratch/lists/partial"  # apt does not make it
	echo "deb-src [signed-by=$keyring] $uri forky main" >"$scratch/sources.list"
	options=(-o Dir::Etc::SourceList="$scratch/sources.list" -o Dir::Etc::SourceParts=-
		-o Dir::State::Lists="$scratch/lists" -o APT::Sandbox::User=root -o Acquire::Retries=2
		-o Acquire::Check-Valid-Until=false)  # a mirror may keep an older, still signed state of it
	quietly 300 apt-get "${options[@]}" update
	# only the tarball: mirrors may lack the .dsc of an older point release
	(cd "$scratch" && quietly 300 apt-get "${options[@]}" source --download-only --tar-only criu)
	quietly 60 tar -C "$scratch" -xf "$(echo "$scratch"/criu_*.orig.tar.*)"
	say "criu: build (half a minute)"
	hint="read the compiler's message"
	quietly 900 make -C "$(echo "$scratch"/criu-*/)" -j "$(nproc)" criu
	version_at_least "$(criu_version "$scratch"/criu-*/criu/criu)" "$(criu_oldest)" ||
		{ echo "the source is older than criu $(criu_oldest)" >>"$log"; exit 69; }
	say "criu: install to /usr/local/sbin"
	quietly 60 "${as_root[@]}" install -D -m 755 "$scratch"/criu-*/criu/criu /usr/local/sbin/criu
}

setup_criu() {
	criu_serves "$(find_criu)" && return
	update_lists
	if version_at_least "$(criu_candidate | sed 's/(none)//')" "$(criu_oldest)"; then
		install_packages criu
	else
		build_criu
	fi
	say "criu: check against this kernel ($(uname -r))"
	hint="see what \`criu check\` misses; in a plain chroot it always fails"
	criu_serves "$(find_criu)"
}

# --- .venv
venv_key() {  # what the virtual environment was made from
	{ "$python" --version; pwd; cat pyproject.toml constraints.txt; } | sha256sum | cut -d ' ' -f 1
}

setup_venv() {
	local key
	key=$(venv_key)
	if [ "$(cat .venv/coldstart-setup 2>/dev/null)" = "$key" ] && .venv/bin/python -c '' 2>/dev/null; then
		return
	fi
	say ".venv: Python packages ($("$python" --version))"
	hint="check the network and pip's settings (\`pip config list\`)"
	# an environment of another interpreter, or one copied from elsewhere, is made anew
	if [ "$(.venv/bin/python -c 'import sys; print(sys.prefix, "%d.%d" % sys.version_info[:2])' 2>/dev/null)" != \
		"$(pwd -P)/.venv $("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')" ]; then
		quietly 120 "$python" -m venv --clear .venv
	fi
	rm -f .venv/coldstart-setup
	# pip 23 of Debian 12 does not know --group
	.venv/bin/python - >.venv/dev-requirements.txt <<-'PYTHON'
	import tomllib
	with open("pyproject.toml", "rb") as file:
	    print("\n".join(tomllib.load(file)["dependency-groups"]["dev"]))
	PYTHON
	quietly 1200 .venv/bin/python -m pip install --disable-pip-version-check --no-input --compile \
		-c constraints.txt -r .venv/dev-requirements.txt -e '.[all]'
	quietly 60 .venv/bin/coldstart --version
	echo "$key" >.venv/coldstart-setup
}

command -v apt-get >/dev/null || { step="apt-get"; hint="use Debian 12, 13 or Ubuntu"; exit 69; }
install_packages "${packages[@]}" python3 python3-venv
install_servers "${server_packages[@]}"
if [ "${1:-}" = --full ]; then
	for package in "${full_packages[@]}"; do
		install_packages "$package" || echo "setup: no $package: the proofs that need it are skipped" >&2
	done
	for package in "${full_servers[@]}"; do
		install_servers "$package" || echo "setup: no $package: the proofs that need it are skipped" >&2
	done
fi
python=$(find_python)
if [ -z "$python" ]; then  # Ubuntu 22.04's python3 is 3.10
	install_packages python3.11 python3.11-venv
	python=$(find_python)
fi
setup_criu
setup_venv
# without byte code every start of the tool compiles it again; only what changed is compiled here
step="byte code"
quietly 120 .venv/bin/python -m compileall -q coldstart_cli ./*/coldstart_*
step="end"
echo "setup: ready: $(.venv/bin/python --version), criu $(criu_version "$(find_criu)"), $(runc --version | head -n 1)" >&2
