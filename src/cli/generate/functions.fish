# The command, which is the first argument of kl. Without one, returns 0 and prints nothing.
function __fish_kl_needs_command
    set -l words (commandline -opc)
    if set -q words[2]; and not string match -q -- '-*' $words[2]
        echo $words[2]
        return 1
    end
end

function __fish_kl_using_subcommand
    set -l command (__fish_kl_needs_command)
    test -n "$command"; and contains -- $command $argv
end

# Folders, and files whose names end so.
function __fish_kl_files -a ending
    set -l word (commandline -ct | string replace -r -- '^-[^=]*=' '')
    complete -C "__fish_kl_no_such_command $word" | string match -r "^.*(?:/|\.$ending)(?:\t.*)?\$"
end

