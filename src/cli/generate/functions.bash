# bash takes a word such as --model=a.gguf apart. Finds the flag before the equals sign.
_kl_equals_sign() {
    if [[ "${prev}" == "=" ]]; then
        prev="${COMP_WORDS[COMP_CWORD - 2]}"
    elif [[ "${cur}" == "=" ]]; then
        cur=""
        prev="${COMP_WORDS[COMP_CWORD - 1]}"
    fi
}

# Completes folders, and files whose names end so.
_kl_files() {
    local IFS=$'\n'
    compopt +o default +o bashdefault -o filenames 2>/dev/null
    COMPREPLY=($(compgen -d -- "${cur}"; compgen -f -X "!*.$1" -- "${cur}"))
}

# Completes an argument that is not a flag; files, if this finds nothing.
_kl_argument() {
    case "$1" in
        kl) compopt +o default +o bashdefault 2>/dev/null ;;
        kl__subcmd__help) COMPREPLY=($(compgen -W "${opts}" -- "${cur}")) ;;
        kl__subcmd__report) _kl_files kls ;;
    esac
}

