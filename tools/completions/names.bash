# $1: key, $2: default. The environment first, then the configuration, the strongest file last.
_coldstart_setting() {
  local variable="COLDSTART_${1^^}" value="$2" file line
  if [[ -n "${!variable-}" ]]; then
    printf '%s\n' "${!variable}"
    return
  fi
  for file in /etc/coldstart/config.toml /etc/coldstart/conf.d/*.toml \
    "${XDG_CONFIG_HOME:-$HOME/.config}/coldstart/config.toml" "${COLDSTART_CONFIG-}"; do
    [[ -f "$file" && -r "$file" ]] || continue
    while IFS= read -r line; do
      [[ "$line" == \[* ]] && break
      [[ "$line" =~ ^"$1"[[:space:]]*=[[:space:]]*[\"\']([^\"\']*)[\"\'] ]] && value="${BASH_REMATCH[1]}"
    done <"$file"
  done
  printf '%s\n' "$value"
}

_coldstart_state_folder() {
  if ((EUID == 0)); then
    _coldstart_setting state_dir /var/lib/coldstart
  else
    _coldstart_setting state_dir "${XDG_STATE_HOME:-$HOME/.local/state}/coldstart"
  fi
}

_coldstart_store_folder() {
  local store number
  for ((number = 1; number < COMP_CWORD; number++)); do
    [[ "${COMP_WORDS[number]}" == --store ]] && store="${COMP_WORDS[number + 1]}"
  done
  [[ -n "$store" ]] || store="$(_coldstart_setting store "$(_coldstart_state_folder)/store")"
  printf '%s\n' "${store#file://}"
}

# $1: the word so far
_coldstart_image_names() (
  shopt -s globstar nullglob
  folder="$(_coldstart_store_folder)/refs/"
  for file in "$folder"**; do
    [[ -f "$file" && "${file#"$folder"}" == "$1"* ]] && printf '%s\n' "${file#"$folder"}"
  done
)

_coldstart_snapshot_names() (
  shopt -s nullglob
  folder="$(_coldstart_state_folder)/snapshots/"
  for file in "$folder$1"*/; do
    file="${file%/}"
    printf '%s\n' "${file#"$folder"}"
  done
)

_coldstart_variants() (
  shopt -s nullglob
  for file in "$(_coldstart_state_folder)"/snapshots/*/"$1"*/; do
    file="${file%/}"
    printf '%s\n' "${file##*/}"
  done
)

_coldstart_mountpoints() {
  local point kind
  while read -r _ _ _ _ point _ kind; do
    [[ "$kind" == *"- fuse.coldstart "* || "$kind" == *"- overlay coldstart "* ]] || continue
    printf -v point '%b' "$point"
    # below an overlay of ours lies the mount that it covers
    [[ "$point" == "$1"* && "$point" != */mounts/*/lower ]] && printf '%s\n' "$point"
  done </proc/self/mountinfo
}

_coldstart_source_dirs() {
  local kind path
  if [[ "$1" == *:* ]]; then
    kind="${1%%:*}:"
    while IFS= read -r path; do
      printf '%s\n' "$kind$path"
    done < <(compgen -d -- "${1#"$kind"}")
  else
    compgen -W "oci: dir:" -- "$1"
  fi
}
