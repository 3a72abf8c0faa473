#!/bin/bash
# tests/gpu/carry.sh: what tests/gpu/run.sh needs on a bare machine, in tests/gpu/carried: criu and runc of this machine with
# their libraries, and wheels for Python 3.11 to 3.13. 64 MiB at most. Run it where `make setup` has run and packages can
# be fetched; the other machine needs a C library that is not older than this one's.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
carried="$here/carried"
limit=$((64 << 20))
packages=(typer rich tomli-w blake3 nvidia-ml-py psutil PyYAML pytest pytest-timeout hypothesis)
export PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin"

rm -rf "$carried"
mkdir -p "$carried/bin" "$carried/lib" "$carried/programs" "$carried/wheels"

carry_program() {  # NAME: the program, the libraries that no machine is sure to have, and a wrapper that finds them
	local program library
	program=$(command -v "$1") || { echo "carry.sh: program is missing: $1 (make setup)" >&2; exit 69; }
	cp -L "$program" "$carried/programs/$1"
	while read -r library; do
		case "$(basename "$library")" in
		# the C library must be the machine's own
		ld-linux*|libc.so*|libm.so*|libdl.so*|libpthread.so*|librt.so*|libresolv.so*) ;;
		*) cp -L "$library" "$carried/lib/" ;;
		esac
	done < <(ldd "$program" 2>/dev/null | sed -n 's/.*=> \(\/[^ ]*\).*/\1/p')
	cat >"$carried/bin/$1" <<'WRAPPER'
#!/bin/sh
carried=$(dirname "$(dirname "$(readlink -f "$0")")")
LD_LIBRARY_PATH="$carried/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" exec "$carried/programs/$(basename "$0")" "$@"
WRAPPER
	chmod 755 "$carried/bin/$1"
}

carry_program criu
carry_program runc
for version in 3.11 3.12 3.13; do
	timeout 300 "$root/.venv/bin/python" -m pip download --quiet --disable-pip-version-check --dest "$carried/wheels" \
		--only-binary=:all: --implementation cp --python-version "$version" \
		--platform manylinux2014_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux_2_28_x86_64 "${packages[@]}"
done
size=$(du -sb "$carried" | cut -f 1)
[ "$size" -le $limit ] || { echo "carry.sh: $size bytes, more than $limit: $carried" >&2; exit 1; }
echo "$carried: $size bytes"
