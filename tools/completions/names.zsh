# $1: key, $2: default. The environment first, then the configuration, the strongest file last.
_coldstart_setting() {
  local variable="COLDSTART_${(U)1}" value="$2" file line
  if [[ -n "${(P)variable}" ]]; then
    print -r -- "${(P)variable}"
    return
  fi
  for file in /etc/coldstart/config.toml /etc/coldstart/conf.d/*.toml(N) \
    "${XDG_CONFIG_HOME:-$HOME/.config}/coldstart/config.toml" "${COLDSTART_CONFIG}"; do
    [[ -f "$file" && -r "$file" ]] || continue
    while IFS= read -r line; do
      [[ "$line" == \[* ]] && break
      [[ "$line" =~ "^$1 *= *[\"']" ]] && value="${${line#*[\"\']}%%[\"\']*}"
    done <"$file"
  done
  print -r -- "$value"
}

_coldstart_state_folder() {
  if (( EUID == 0 )); then
    _coldstart_setting state_dir /var/lib/coldstart
  else
    _coldstart_setting state_dir "${XDG_STATE_HOME:-$HOME/.local/state}/coldstart"
  fi
}

_coldstart_image_names() {
  local store="${(Q)opt_args[--store]}"
  [[ -n "$store" ]] || store="$(_coldstart_setting store "$(_coldstart_state_folder)/store")"
  local folder="${store#file://}/refs/"
  local -a names=("$folder"**/*(.N))
  names=("${(@)names#"$folder"}")
  compadd -a -- names
}

_coldstart_snapshot_names() {
  local -a names=("$(_coldstart_state_folder)"/snapshots/*(/N:t))
  compadd -a -- names
}

_coldstart_variants() {
  local -a names=("$(_coldstart_state_folder)"/snapshots/*/*(/N:t))
  compadd -a -- names
}

_coldstart_mountpoints() {
  local point kind
  local -a points
  while read -r _ _ _ _ point _ kind; do
    [[ "$kind" == *"- fuse.coldstart "* || "$kind" == *"- overlay coldstart "* ]] && points+=("${(g::)point}")
  done </proc/self/mountinfo
  points=("${(@)points:#*/mounts/*/lower}") # below an overlay of ours lies the mount that it covers
  compadd -a -- points
}

_coldstart_source_dirs() {
  if compset -P '*:'; then
    _files -/
  else
    compadd -S '' -- oci: dir:
  fi
}
