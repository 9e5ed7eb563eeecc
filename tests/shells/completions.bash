# Prints what bash completes at the end of a line, one match a line.
#   bash completions.bash SCRIPT LINE
source "$1"
read -ra COMP_WORDS <<<"$2"
[[ $2 != *' ' ]] || COMP_WORDS+=("")
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
# compopt works only while a key is pressed.
compopt() { :; }
_kl kl "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
printf '%s\n' "${COMPREPLY[@]}"
