#!/bin/bash
# tests/gpu/run.sh [--stand-in]: the tests marked `gpu`, then GPU servers captured and restored, with a table at the end.
# For a machine with an NVIDIA GPU, its driver (570 or newer, or 555 with cuda-checkpoint), root and Python 3.11 or newer.
# Nothing is fetched: what is missing of criu, runc and Python packages comes from tests/gpu/carried (tests/gpu/carry.sh).
# Ends within five minutes, and then or when it is told to stop (TERM, INT, HUP) ends all that it started; each row of
# the table is printed as soon as it is known. Logs go to $OUT, or to tests/gpu/out. With --stand-in the caller has set
# the stand-ins up.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
carried="$here/carried"
out=${OUT:-$here/out}
tests_seconds=${GPU_TESTS_SECONDS:-130}
report_seconds=${GPU_REPORT_SECONDS:-130}

fail() { echo "run.sh: $1" >&2; exit "${2:-69}"; }

stand_in=no
case "${1:-}" in
"") ;;
-h | --help) sed -n '2,/^set /{/^#/s/^# \?//p}' "$0"; exit 0 ;;
--stand-in) stand_in=yes; export GPU_STAND_IN=1 ;;
*) fail "unknown argument: $1" 2 ;;
esac
[ "$(id -u)" = 0 ] || fail "needs root: sudo $0" 77
[ $stand_in = yes ] || [ -e /dev/nvidiactl ] || fail "no NVIDIA driver here: /dev/nvidiactl does not exist"

mkdir -p "$out"
work=$(mktemp -d)
running=
trap 'rm -rf --one-file-system "$work"' EXIT
stop() {
	trap '' TERM INT HUP
	if [ -n "$running" ]; then
		kill -TERM "$running" 2>/dev/null || true
		wait "$running" || true
	fi
	exit 143
}
trap stop TERM INT HUP
# not in the foreground: bash would hear of a signal only when it has ended
contained() {
	"$python" "$here/contained.py" "$@" &
	running=$!
	local ended=0
	wait "$running" || ended=$?
	running=
	return $ended
}

# what the machine has comes first; the carried programs stand in for what is missing
export PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin:$carried/bin"
for program in criu runc; do
	command -v "$program" >/dev/null || fail "program is missing: $program (tests/gpu/carry.sh carries it)"
done

python=""
for candidate in ${GPU_PYTHON:-} "$root/.venv/bin/python" python3.13 python3.12 python3.11 python3; do
	if command -v "$candidate" >/dev/null && "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
		python=$(command -v "$candidate")
		break
	fi
done
[ -n "$python" ] || fail "Python 3.11 or newer is missing"

export PYTHONPATH="$root:$root/commands:$root/pool:$root/host:$root/health:$root/fs:$root/snapshot:$root/launch"
export PYTHONDONTWRITEBYTECODE=1
if ! "$python" -c 'import pytest, hypothesis, pytest_timeout, typer, rich, tomli_w, blake3, pynvml, psutil, yaml' 2>/dev/null; then
	[ -d "$carried/wheels" ] || fail "Python packages are missing (tests/gpu/carry.sh carries them)"
	"$python" "$here/unpack_wheels.py" "$carried/wheels" "$work/site"
	export PYTHONPATH="$PYTHONPATH:$work/site"
fi

status=0
echo "== tests marked gpu ($("$python" --version), $(criu --version | head -n 1), $(runc --version | head -n 1))"
selected=("$here")
[ $stand_in = yes ] || selected+=("$root/tests/host/test_gpu.py")
contained "$tests_seconds" "$out/tests.txt" "$python" -m pytest -q -m gpu -p no:cacheprovider --rootdir "$root" \
	-c "$root/pyproject.toml" --basetemp "$work/tests" "${selected[@]}" || status=1
tail -n 15 "$out/tests.txt"

echo "== GPU servers, captured and restored"
contained "$report_seconds" "$out/report.txt" --echo "$python" "$here/report.py" "$work" 2>"$out/report-errors.txt" || status=1
[ $status = 0 ] || { tail -n 15 "$out/report-errors.txt" >&2; echo "run.sh: something failed: see $out" >&2; }
exit $status
