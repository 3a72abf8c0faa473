#!/bin/bash
# Runs a command in a fresh minimal Debian root with a fresh clone of this checkout:
#
#   tools/clean-root.sh [--reuse] RELEASE DIR COMMAND      e.g.  trixie /var/tmp/root 'make test'
#
# RELEASE is bookworm or trixie; DIR is made anew each time (--reuse: entered as the last run left it).
# The root is entered by pivot_root in mount and pid namespaces of its own, because criu refuses a plain
# chroot. All mounts and processes end with COMMAND. COLDSTART_CLEAN_DEADLINE (seconds, 1800) bounds it.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
checkout=$(dirname "$here")
bases=/var/tmp/coldstart-clean-roots
marker=.coldstart-clean-root

die() { echo "clean-root: $*" >&2; exit 1; }
say() { echo "clean-root: $*" >&2; }

bootstrap_base() {  # RELEASE: a tarball of the minimal root, made once
	local release=$1 tarball=$bases/$1.tar work=$bases/$1.work.$$
	[ -e "$tarball" ] && return
	say "debootstrap of $release (once)"
	mkdir -p "$work"
	if ! timeout 900 unshare --mount debootstrap --variant=minbase "$release" "$work/root" \
		"$("$here/apt-mirror.sh")" >"$work/log" 2>&1; then
		tail -n 5 "$work/log" >&2
		die "debootstrap failed; its log is $work/log"
	fi
	rm -rf "$work/root/var/cache/apt/archives/"*.deb
	tar -C "$work/root" --numeric-owner --xattrs -cf "$tarball.$$" .
	mv "$tarball.$$" "$tarball"
	rm -rf "$work"
}

configure_root() {  # RELEASE DIR: the archives, certificates, resolver and pip settings of this host
	local release=$1 root=$2 mirror security
	mirror=$("$here/apt-mirror.sh")
	security=$("$here/apt-mirror.sh" Debian-Security)
	cat >"$root/etc/apt/sources.list" <<-SOURCES
	deb $mirror $release main
	deb $mirror $release-updates main
	deb $security $release-security main
	SOURCES
	apt-config dump | grep -E '^Acquire::(https?|Check-)' >"$root/etc/apt/apt.conf.d/90host" || true
	cp -L /etc/resolv.conf "$root/etc/resolv.conf"
	echo clean >"$root/etc/hostname"
	printf '127.0.0.1 localhost clean\n::1 localhost\n' >"$root/etc/hosts"
	if [ -d /usr/local/share/ca-certificates ]; then
		mkdir -p "$root/usr/local/share/ca-certificates"
		cp -r /usr/local/share/ca-certificates/. "$root/usr/local/share/ca-certificates/"
	fi
	[ ! -f /etc/pip.conf ] || cp /etc/pip.conf "$root/etc/pip.conf"
}

copy_checkout() {  # DIR: committed files only, with the shared folder beside them as in CI
	local root=$1
	mkdir -p "$root/src"
	git -c safe.directory='*' clone --quiet --no-hardlinks "$checkout" "$root/src/main"
	[ ! -d "$checkout/../shared" ] || cp -r "$checkout/../shared" "$root/src/shared"
}

enter() {  # DIR COMMAND, already inside the new namespaces, as pid 1 of them
	local root=$1 command=$2 node
	mount --make-rprivate /
	mount --bind "$root" "$root"
	cd "$root"
	mount -t proc proc proc
	mount -t sysfs sysfs sys
	[ ! -d /sys/fs/cgroup ] || mount --rbind /sys/fs/cgroup sys/fs/cgroup
	[ ! -d /sys/fs/fuse/connections ] || mount -t fusectl fusectl sys/fs/fuse/connections
	mount -t tmpfs -o mode=755,size=64k dev dev
	for node in null zero full random urandom tty fuse kmsg; do
		[ ! -c /dev/$node ] || cp -a /dev/$node dev/
	done
	mkdir -p dev/pts dev/shm
	mount -t devpts -o newinstance,ptmxmode=666,mode=620,gid=5 devpts dev/pts
	ln -s pts/ptmx dev/ptmx
	ln -s /proc/self/fd dev/fd
	ln -s fd/0 dev/stdin; ln -s fd/1 dev/stdout; ln -s fd/2 dev/stderr
	mount -t tmpfs -o mode=1777 shm dev/shm
	mount -t tmpfs -o mode=755 run run
	mkdir -p run/lock .old-root
	pivot_root . .old-root
	cd /
	umount -l /.old-root
	rmdir /.old-root
	local status=0
	env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root \
		TERM="${TERM:-dumb}" LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive \
		bash -euo pipefail -c "
			if ! command -v make >/dev/null || ! command -v git >/dev/null; then
				{ apt-get update && apt-get install -y --no-install-recommends make git; } >/tmp/first.log 2>&1 ||
					{ tail -n 5 /tmp/first.log >&2; exit 1; }
			fi
			cd /src/main
			$command" </dev/null || status=$?
	exit "$status"
}

main() {
	local reuse=no
	[ "${1-}" != --reuse ] || { reuse=yes; shift; }
	[ $# -eq 3 ] || die "usage: tools/clean-root.sh [--reuse] RELEASE DIR COMMAND"
	local release=$1 root=$2 command=$3
	case $release in bookworm | trixie) ;; *) die "unknown release: $release" ;; esac
	[ "$(id -u)" = 0 ] || die "needs root; run it through sudo"
	case $root in /?*) ;; *) die "DIR must be an absolute path: $root" ;; esac
	if [ $reuse = no ]; then
		if [ -e "$root" ]; then
			[ -e "$root/$marker" ] || die "not a root made by this program: $root"
			! grep -q " $root/" /proc/self/mounts || die "something is mounted below $root"
			rm -rf --one-file-system "$root"
		fi
		mkdir -p "$bases"
		bootstrap_base "$release"
		mkdir -p "$root"
		touch "$root/$marker"
		tar -C "$root" --numeric-owner --xattrs -xf "$bases/$release.tar"
		configure_root "$release" "$root"
		copy_checkout "$root"
	fi
	[ -e "$root/$marker" ] || die "no such root: $root"
	local started=$SECONDS status=0
	timeout --kill-after=10 "${COLDSTART_CLEAN_DEADLINE:-1800}" \
		unshare --mount --pid --fork --kill-child --propagation private \
		bash "$0" --enter "$root" "$command" || status=$?
	say "$release: status $status after $((SECONDS - started)) s: $command"
	exit "$status"
}

if [ "${1-}" = --enter ]; then enter "$2" "$3"; else main "$@"; fi
