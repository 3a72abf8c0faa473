
# readline breaks words at colons, which image names and sources hold: join them before, cut them after
_coldstart() {
  local -a joined=()
  local number word position=0 colon
  for number in "${!COMP_WORDS[@]}"; do
    word="${COMP_WORDS[number]}"
    if ((number > 1)) && [[ ("$word" == :* || "${joined[-1]}" == *:) && "$COMP_LINE" == *"${joined[-1]}$word"* ]]; then
      joined[-1]+="$word"
    else
      joined+=("$word")
    fi
    ((number != COMP_CWORD)) || position=$((${#joined[@]} - 1))
  done
  local -a COMP_WORDS=("${joined[@]}")
  local COMP_CWORD=$position
  _shtab_coldstart "$@"
  # after the kind of a source comes its path, at once
  if [[ "${COMPREPLY[0]-}" == *: ]]; then compopt -o nospace 2>/dev/null || :; fi
  word="${COMP_WORDS[COMP_CWORD]}"
  if [[ "$word" == *:* && "$COMP_WORDBREAKS" == *:* ]]; then
    colon="${word%"${word##*:}"}"
    for number in "${!COMPREPLY[@]}"; do
      COMPREPLY[number]="${COMPREPLY[number]#"$colon"}"
    done
  fi
}

complete -o bashdefault -F _coldstart coldstart
