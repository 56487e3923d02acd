#!/bin/sh
# Reports of an agent to Holdfast, and its questions to people. Needs sh, printf, cat, sleep, and
# cksum or md5sum for a question without an id.
#
#   agent progress PERCENT [MESSAGE]     agent log MESSAGE
#   agent step NAME [RESULT-AS-JSON]     agent ask QUESTION [ID]    prints the answer as JSON
#
# It exits with 2 for what it cannot report, and with 1 if a question is refused.
# Each is one line of JSON in the file `events` of the exchange; see docs/how-to/agents.md.

exchange=${HOLDFAST_EXCHANGE:-/run/exchange}

# Prints the first 2,000 characters of a text as a JSON string. Control characters become spaces.
quote() {
    text=$(printf '%.2000s' "$1")
    escaped=
    while head=${text%%[\"\\[:cntrl:]]*}; [ "$head" != "$text" ]; do
        text=${text#"$head"}
        rest=${text#?}
        case $text in
        '"'*) escaped=$escaped$head'\"' ;;
        \\*) escaped=$escaped$head'\\' ;;
        *) escaped="$escaped$head " ;;
        esac
        text=$rest
    done
    escaped=$escaped$text
    printf '"%s"' "$escaped"
}

name_question() {
    sum=$(printf '%s' "$1" | { cksum || md5sum; } 2>/dev/null) || fail 'give an id: there is no cksum'
    printf 'q%s' "${sum%% *}"
}

report() {
    printf '%s\n' "$1" >>"$exchange/events"
}

fail() {
    printf 'agent: %s\n' "$1" >&2
    exit 2
}

usage() {
    printf 'usage: agent progress PERCENT [MESSAGE] | log MESSAGE | step NAME [JSON] | ask QUESTION [ID]\n' >&2
    exit 2
}

[ $# -ge 2 ] || usage
case $1 in
progress)
    percent=$2
    case $percent in
    *[!0-9]* | '') fail "progress is a whole number from 0, not $2" ;;
    esac
    # A leading 0 would make it octal, and many digits no number of the shell.
    while [ "${percent#0}" != "$percent" ]; do percent=${percent#0}; done
    case $percent in
    '') done=0 ;;
    ?) done=0.0$percent ;;
    ??) done=0.$percent ;;
    *) done=1 ;;
    esac
    report "{\"progress\": $done, \"message\": $(quote "${3:-}")}"
    ;;
log)
    report "{\"log\": $(quote "$2")}"
    ;;
step)
    report "{\"step\": $(quote "$2"), \"result\": ${3:-null}}"
    ;;
ask)
    [ -n "$2" ] || fail 'a question must not be empty'
    # By default an id of the question itself: after a retry its answer reaches no other question.
    if [ $# -ge 3 ]; then id=$3; else id=$(name_question "$2") || exit; fi
    case $id in
    '' | [.-]* | *[!A-Za-z0-9._-]*) fail "an id has letters, digits, '.', '_' and '-', not $id" ;;
    esac
    [ ${#id} -le 64 ] || fail 'an id has 64 characters at most'
    report "{\"ask\": $(quote "$id"), \"question\": $(quote "$2")}"
    while [ ! -f "$exchange/answers/$id" ]; do
        sleep 1
    done
    answer=$(cat "$exchange/answers/$id")
    case $answer in
    '{"refused":'*)
        printf 'agent: the question is refused: %s\n' "$answer" >&2
        exit 1
        ;;
    esac
    printf '%s\n' "$answer"
    ;;
*)
    usage
    ;;
esac
