#!/bin/sh
# Prints the URI of an archive that apt is configured with here: `apt-mirror.sh [LABEL]`.
# The label defaults to the distribution's own archive (Debian, Ubuntu); Debian-Security is another.
set -eu
label=${1-}
if [ -z "$label" ]; then
	# shellcheck source=/dev/null
	case $(. /etc/os-release && echo "$ID") in ubuntu) label=Ubuntu ;; *) label=Debian ;; esac
fi
# The label is known only to a machine whose package lists were fetched: run `apt-get update` first.
uri=$(apt-get indextargets --format '$(REPO_URI)' 'Identifier: Packages' "Label: $label" | head -n 1)
[ -n "$uri" ] || { echo "apt-mirror: apt has no archive labelled $label here; run apt-get update" >&2; exit 1; }
echo "${uri%/}"
