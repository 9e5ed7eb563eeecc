# Prints what zsh completes at the end of a line, one match a line.
#   zsh -f completions.zsh FOLDER-OF-_kl LINE
# The line is typed into a zsh in a pseudo-terminal, whose compadd reports what it is given.
zmodload zsh/zpty
export REPORT=$(mktemp)
export FOLDER=$1
zpty shell zsh -f -i
zpty -w shell "source ${0:A:h}/reporting.zsh"
until [[ -s $REPORT ]]; do sleep 0.05; done
zpty -w -n shell "$2"$'\t'
until [[ $(tail -n 1 $REPORT) == done ]]; do sleep 0.05; done
zpty -d shell
sed -e 1d -e '$d' $REPORT | sort -u
rm $REPORT
