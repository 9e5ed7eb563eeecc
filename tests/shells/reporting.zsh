# Read by the zsh in the pseudo-terminal of completions.zsh.
fpath=($FOLDER $fpath)
autoload -Uz compinit
compinit -u -D

# Also writes the matches to $REPORT.
compadd() {
    # Calls that only fill an array.
    if [[ ${@[1,(i)(-|--)]} == *-(O|A|D)\ * ]]; then
        builtin compadd "$@"
        return
    fi
    local -a matches
    builtin compadd -A matches "$@"
    (( $#matches )) && print -rl -- $matches >>$REPORT
    builtin compadd "$@"
}

report() {
    _main_complete
    print done >>$REPORT
}
zle -C report complete-word report
bindkey '^I' report
print ready >>$REPORT
