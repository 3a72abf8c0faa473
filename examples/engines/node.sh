#!/bin/bash
# From an image of containerd on this host to a replica that comes back from a snapshot:
#
#     node.sh NAMESPACE REFERENCE SPEC
#
# containerd keeps pulling and holding images; coldstart indexes them once and starts them with runc. The
# specification names the image `NAME` that is made here: the last part of the reference, without its tag.
set -euo pipefail

if [ $# -ne 3 ]; then
	echo "usage: $0 NAMESPACE REFERENCE SPEC" >&2
	exit 2
fi

namespace=$1 reference=$2 spec=$3
name=${reference##*/}
name=${name%%[:@]*}
scratch=$(mktemp -d -t coldstart-node.XXXXXX)
trap 'rm -rf "$scratch"' EXIT

# only what changed is packed again; the same image gives the same index
ctr --namespace "$namespace" images export --platform "linux/$(dpkg --print-architecture)" \
	"$scratch/image.tar" "$reference"
coldstart image index "oci-archive:$scratch/image.tar" --name "$name"

# cold, once: ready, captured, verified; then from the snapshot
coldstart launch "$spec" --detach --snapshot-when-ready
coldstart launch "$spec" --stop
coldstart launch "$spec" --detach --no-fallback
