# Prints what zsh completes at the end of a line, one match a line.
#   zsh -f completions.zsh FOLDER-OF-_kl LINE
# The line is typed into a zsh in a pseudo-terminal, whose compadd reports what it is given.
zmodload zsh/zpty
export REPORT=$(mktemp)
export FOLDER=$1

# Waits for the report's last line.
wait_for() {
    repeat 1200; do
        [[ $(tail -n 1 $REPORT) == $1 ]] && return
        sleep 0.05
    done
    print -u2 "no '$1' from the zsh in the pseudo-terminal within a minute"
    exit 1
}

zpty shell zsh -f -i
zpty -w shell "source ${0:A:h}/reporting.zsh"
wait_for ready
zpty -w -n shell "$2"$'\t'
wait_for done
zpty -d shell
sed -e 1d -e '$d' $REPORT | sort -u
rm $REPORT
