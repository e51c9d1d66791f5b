"""`cystore completion`: a script with which a shell completes commands, options, settings and paths.

The script is made from the parser of this version, and contains everything: a press of the key starts no Python.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

from cystore.cli.host.grammar import Argument, Node, nodes, settings
from cystore.operate.command import OK, Command
from cystore.operate.output import write_line

# {names}: which words are a command; {options}, {values}, {words}: cases by command.
BASH = r"""# Completion of cystore for bash: source it, or put it into /etc/bash_completion.d or
# ~/.local/share/bash-completion/completions/cystore.
_cystore_values() {
    case $1 in
        file) COMPREPLY=($(compgen -f -- "$current")); compopt -o filenames ;;
        folder) COMPREPLY=($(compgen -d -- "$current")); compopt -o filenames ;;
        setting)
            COMPREPLY=($(compgen -W "$_cystore_settings" -S "$2" -- "$current"))
            [[ -z $2 ]] || compopt -o nospace ;;
        choice) shift; COMPREPLY=($(compgen -W "$*" -- "$current")) ;;
        *) COMPREPLY=() ;;
    esac
}
_cystore_settings="{settings}"
_cystore() {
    local IFS=$' \t\n' current=${COMP_WORDS[COMP_CWORD]} command= next i=1 place=0 kind
    while ((i < COMP_CWORD)); do
        next="${command:+$command }${COMP_WORDS[i]}"
        case $next in
            {names}) command=$next; i=$((i + 1)) ;;
            *) break ;;
        esac
    done
    # bash makes three words of NAME=VALUE.
    if [[ $current == "=" ]]; then
        next=${COMP_WORDS[COMP_CWORD-1]} current=
    elif ((COMP_CWORD > 1)) && [[ ${COMP_WORDS[COMP_CWORD-1]} == "=" ]]; then
        next=${COMP_WORDS[COMP_CWORD-2]}
    else
        next=
    fi
    case $next in
        "") ;;
{setting_values}
        --*) _cystore_values file; return ;;
        *) COMPREPLY=(); return ;;
    esac
    case "$command ${COMP_WORDS[COMP_CWORD-1]}" in
{values}
    esac
    for ((; i < COMP_CWORD; i++)); do
        case "$command ${COMP_WORDS[i]}" in
            {valued}) i=$((i + 1)) ;;
            *" -"*) ;;
            *) [[ ${COMP_WORDS[i]} == "=" ]] && i=$((i + 1)) || place=$((place + 1)) ;;
        esac
    done
    local options= words= kind=
    case $command in
{options}
    esac
    if [[ $current == -* ]]; then
        COMPREPLY=($(compgen -W "$options" -- "$current"))
        return
    fi
    case "$command $place" in
{words}
    esac
    _cystore_values $kind
    if ((place == 0)) && [[ -n $words ]]; then
        COMPREPLY+=($(compgen -W "$words" -- "$current"))
    fi
}
complete -F _cystore cystore
"""

ZSH = r"""#compdef cystore
# Completion of cystore for zsh: put it as `_cystore` into a folder of $fpath, or source it after compinit.
_cystore_values() {
    case $1 in
        file) _files ;;
        folder) _files -/ ;;
        setting) compadd ${2:+-S$2} -- ${=_cystore_settings} ;;
        choice) shift; compadd -- "$@" ;;
    esac
}
_cystore_settings="{settings}"
_cystore() {
    local command= next kind
    local -i i=2 place=0
    while ((i < CURRENT)); do
        next="${command:+$command }${words[i]}"
        case $next in
            {names}) command=$next; i=$((i + 1)) ;;
            *) break ;;
        esac
    done
    local setting=${words[CURRENT-1]} current=${words[CURRENT]}
    if [[ $setting == --set && $current == *=* ]]; then
        compset -P '*='
        case ${current%%=*} in
{setting_values}
        esac
        return 1
    fi
    if [[ $current == --*=* ]]; then
        setting=${current%%=*}
        compset -P '*='
    fi
    case "$command $setting" in
{values}
    esac
    for ((; i < CURRENT; i++)); do
        case "$command ${words[i]}" in
            {valued}) i=$((i + 1)) ;;
            *" -"*) ;;
            *) place=$((place + 1)) ;;
        esac
    done
    local -a options commands
    case $command in
{options}
    esac
    if [[ $current == -* ]]; then
        _describe -o option options
        return
    fi
    kind=
    case "$command $place" in
{words}
    esac
    if ((place == 0 && $#commands)); then
        _describe command commands
    fi
    _cystore_values ${=kind}
}
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    _cystore "$@"
else
    compdef _cystore cystore
fi
"""

FISH = r"""# Completion of cystore for fish: put it into ~/.config/fish/completions/cystore.fish.
function __cystore_is
    # Whether the line is of this command, and, with a number, whether so many arguments stand before.
    set -l command
    set -l place 0
    set -l words (commandline -opc)[2..]
    set -l inside 1
    while set -q words[1]
        set -l next (string join -- ' ' $command $words[1])
        if test $inside = 1; and contains -- $next $__cystore_names
            set command $next
        else
            set inside 0
            if contains -- "$command $words[1]" $__cystore_valued
                set -e words[1]
            else if not string match -q -- '-*' $words[1]
                set place (math $place + 1)
            end
        end
        set -q words[1]; and set -e words[1]
    end
    test "$command" = "$argv[1]"; or return 1
    test (count $argv) = 1; or test $place = $argv[2]; or begin
        test "$argv[3]" = more; and test $place -gt $argv[2]
    end
end
function __cystore_settings
    set -l current (commandline -ct)
    switch $current
{setting_values}
        case '*'
            for name in {settings}
                echo $name=
            end
    end
end
set -g __cystore_names {names}
set -g __cystore_valued {valued}
complete -c cystore -f
{options}
"""


def script(shell: str, program: argparse.ArgumentParser) -> str:
    """The script for a shell."""
    template, parts = SHELLS[shell]
    for name, value in parts(nodes(program)).items():
        template = template.replace("{" + name + "}", value)
    return template


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _name(node: Node) -> str:
    return " ".join(node.path)


def _valued(node: Node) -> list[str]:
    """The options of a command that take a value, behind its name."""
    return [
        f"{_name(node)} {name}" for option in node.options if option.kind != "none" for name in option.names
    ]


def _value(argument: Argument) -> str:
    """The call that completes a value."""
    if argument.kind == "setting":
        return "setting" if "--unset" in argument.names else "setting ="
    return " ".join([argument.kind, *argument.choices])


def _posix(found: list[Node], options: Callable[[Node], str], settings_case: str) -> dict[str, str]:
    """The parts that bash and zsh have in common."""
    values = [
        f"        {'|'.join(_quoted(f'{_name(node)} {name}') for name in option.names)}) "
        f"_cystore_values {_value(option)}; return ;;"
        for node in found
        for option in node.options
        if option.kind != "none"
    ]
    words = [
        f"        {_quoted(_name(node) + ' ')}{'*' if one.many else place}) kind={_quoted(_value(one))} ;;"
        for node in found
        for place, one in enumerate(node.positionals)
    ]
    return {
        "settings": " ".join(settings()),
        "names": "|".join(_quoted(_name(node)) for node in found if node.path),
        "setting_values": "\n".join(
            f"{settings_case}{name}) _cystore_values choice {' '.join(choices)}; return ;;"
            for name, choices in settings().items()
            if choices
        ),
        "values": "\n".join(values),
        "valued": "|".join(_quoted(name) for node in found for name in _valued(node)),
        "options": "\n".join(f"        {_quoted(_name(node))}) {options(node)} ;;" for node in found),
        "words": "\n".join(words),
    }


def _bash(found: list[Node]) -> dict[str, str]:
    def options(node: Node) -> str:
        names = " ".join(name for option in node.options for name in option.names)
        return f"options={_quoted(names)} words={_quoted(' '.join(name for name, _ in node.children))}"

    return _posix(found, options, " " * 8)


def _zsh(found: list[Node]) -> dict[str, str]:
    def described(rows: list[tuple[str, str]]) -> str:
        return " ".join(_quoted(f"{name}:{text}".rstrip(":")) for name, text in rows)

    def options(node: Node) -> str:
        rows = [(name, option.help) for option in node.options for name in option.names]
        return f"options=({described(rows)}); commands=({described(list(node.children))})"

    return _posix(found, options, " " * 12)


def _fish(found: list[Node]) -> dict[str, str]:
    def quoted(text: str) -> str:
        return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"

    def values(argument: Argument) -> str:
        if "--unset" in argument.names:
            return f" -x -a {quoted(' '.join(settings()))}"
        return {
            "none": "",
            "text": " -x",
            "file": " -r -F",
            "folder": " -x -a '(__fish_complete_directories)'",
            "setting": " -x -a '(__cystore_settings)'",
            "choice": f" -x -a {quoted(' '.join(argument.choices))}",
        }[argument.kind]

    lines = []
    for node in found:
        name = quoted(_name(node))
        for child, text in node.children:
            lines.append(
                f"complete -c cystore -n {quoted(f'__cystore_is {name} 0')} -a {child} -d {quoted(text)}"
            )
        for option in node.options:
            names = "".join(f" -l {n[2:]}" if n.startswith("--") else f" -s {n[1:]}" for n in option.names)
            here = quoted(f"__cystore_is {name}")
            lines.append(f"complete -c cystore -n {here}{names}{values(option)} -d {quoted(option.help)}")
        for place, one in enumerate(node.positionals):
            if one.kind in ("text", "none"):
                continue
            at = f"__cystore_is {name} {place}" + (" more" if one.many else "")
            lines.append(f"complete -c cystore -n {quoted(at)}{values(one)}")
    return {
        "setting_values": "\n".join(
            f"        case '{name}=*'\n            printf '%s\\n' {' '.join(f'{name}={choice}' for choice in choices)}"
            for name, choices in settings().items()
            if choices
        ),
        "settings": " ".join(settings()),
        "names": " ".join(quoted(_name(node)) for node in found if node.path),
        "valued": " ".join(quoted(name) for node in found for name in _valued(node)),
        "options": "\n".join(lines),
    }


SHELLS: dict[str, tuple[str, Callable[[list[Node]], dict[str, str]]]] = {
    "bash": (BASH, _bash),
    "zsh": (ZSH, _zsh),
    "fish": (FISH, _fish),
}


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=sorted(SHELLS), help="the shell that reads the script")


def _run(args: argparse.Namespace) -> int:
    write_line(script(args.shell, args.program).rstrip("\n"))
    return OK


COMMAND = Command(
    name="completion",
    summary="a script with which bash, zsh or fish completes commands, options, settings and paths",
    description="Writes the script for a shell. Its first lines say where the shell looks for it.",
    examples=(
        'eval "$(cystore completion bash)"',
        "cystore completion fish > ~/.config/fish/completions/cystore.fish",
    ),
    add_arguments=_add_arguments,
    run=_run,
    of_store=False,
)
