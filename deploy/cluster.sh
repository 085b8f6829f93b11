#!/usr/bin/env bash
# Three name servers (n1 n2 n3) and three brokers (b1 b2 b3) on this machine.
#
#   deploy/cluster.sh up                        write settings, start, wait for leaders, print the table
#   deploy/cluster.sh status [--json]           processes and leaders; 10 when something is missing
#   deploy/cluster.sh kill NODE [--signal S]    KILL (default), STOP, CONT or TERM
#   deploy/cluster.sh start NODE|all            start what is not running
#   deploy/cluster.sh restart NODE|all          TERM, then start
#   deploy/cluster.sh rolling-restart           all nodes, one by one, leaders last; waits until each is in sync
#   deploy/cluster.sh logs [NODE] [-f]          last lines of the logs
#   deploy/cluster.sh endpoints                 addresses for clients, brokers' APIs and name servers, as NAME=value
#   deploy/cluster.sh demo [FILE] [--hold]      the demonstration (make demo FILE=...); --hold: leave it running
#   deploy/cluster.sh down [--purge]            stop everything; --purge removes the folder, too
#
# Options: --dir DIR        folder of the cluster (default ./cluster-data)
#          --port-base N    first of 60 ports, or "auto" for a free range (default: RocketMQ's ports, + 1000 per node)
#          --timers NAME    lan (default) or test (wider, for loaded machines)
#          --set KEY=VALUE  a further setting of the brokers; may be repeated
#          --bin DIR        folder of the binaries (default $CARGO_TARGET_DIR/debug)
#          --wait SECONDS   how long up, start and restart (per node: rolling-restart) wait for leaders (default 60; 0: not at all)
# Options except --dir belong to `up` of a new folder and are kept in it.
#
# A process is known by its recorded pid and start time, never by its name.
# Exit status: 0 done, 1 failed, 2 wrong use, 3 not found, 4 no leader, 10 answered, but unhealthy.
set -euo pipefail

readonly NAME_NODES="n1 n2 n3" BROKER_NODES="b1 b2 b3" GROUP=broker-a CLUSTER=local
readonly DONE=0 FAILED=1 USAGE=2 NOT_FOUND=3 UNAVAILABLE=4 UNHEALTHY=10
# Entries that a member in sync may lack under load.
readonly LAG_MAX=64

dir=./cluster-data port_base="" timers="" bin="" wait_s=60
sets=()
json=false hold=false follow=false purge=false signal=KILL file=""

say() { printf '%s\n' "$*"; }
fail() { local code=$1; shift; printf 'error: %s\n' "$*" >&2; exit "$code"; }
usage() { sed -n '2,25s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2; exit $USAGE; }

# ---- processes -------------------------------------------------------------------------------------------

# Field 22 of /proc/PID/stat; the name in field 2 may contain blanks and brackets, so count from its last ')'.
start_time() {
  local stat fields
  { stat=$(<"/proc/$1/stat"); } 2>/dev/null || return 1
  read -ra fields <<<"${stat##*) }"
  [ "${fields[0]}" != Z ] || return 1
  printf '%s' "${fields[19]}"
}

process_state() { # letter of /proc/PID/stat: R S D T ...
  local stat
  { stat=$(<"/proc/$1/stat"); } 2>/dev/null || return 1
  stat=${stat##*) }
  printf '%s' "${stat%% *}"
}

# Prints the pid of a node when the recorded process still lives.
pid_of() {
  local pid started
  [ -f "$dir/$1/pid" ] || return 1
  read -r pid started <"$dir/$1/pid" || return 1
  [ "$(start_time "$pid")" = "$started" ] || return 1
  printf '%s' "$pid"
}

alive() { pid_of "$1" >/dev/null; }

# ---- ports and settings ----------------------------------------------------------------------------------

number_of() { printf '%s' "${1:1}"; }

# port_of NODE WHAT; WHAT: client console api raft metrics
port_of() {
  local i=$(($(number_of "$1") - 1)) kind=${1:0:1} offset
  if [ -z "$PORT_BASE" ]; then
    case $kind$2 in
      napi) offset=9876 ;; nraft) offset=9878 ;; nmetrics) offset=9879 ;;
      bclient) offset=8081 ;; bconsole) offset=8082 ;; bapi) offset=10911 ;; braft) offset=10912 ;; bmetrics) offset=5557 ;;
    esac
    printf '%s' $((offset + 1000 * i))
  else
    case $kind$2 in
      napi) offset=10 ;; nraft) offset=11 ;; nmetrics) offset=12 ;;
      bclient) offset=0 ;; bconsole) offset=1 ;; bapi) offset=2 ;; braft) offset=3 ;; bmetrics) offset=4 ;;
    esac
    printf '%s' $((PORT_BASE + 20 * i + offset))
  fi
}

address() { printf '127.0.0.1:%s' "$(port_of "$1" "$2")"; }

# joined SEPARATOR WHAT NODE...: addresses of several nodes
joined() {
  local separator=$1 what=$2 out="" node
  shift 2
  for node in "$@"; do out+=${out:+$separator}$(address "$node" "$what"); done
  printf '%s' "$out"
}

listening() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

free_port_base() {
  local base port tries
  for tries in $(seq 1 50); do
    base=$((20000 + RANDOM % 190 * 60))
    for port in $(seq "$base" $((base + 59))); do
      if listening "$port"; then continue 2; fi
    done
    printf '%s' "$base"
    return 0
  done
  fail $FAILED "no free range of 60 ports between 20000 and 31400 found in $tries tries"
}

name_settings() {
  local n separator=""
  printf 'cluster = "%s"\nnode = "%s"\ndata = "%s"\n' "$CLUSTER" "$1" "$dir/$1/data"
  printf 'api_listen = "%s"\nraft_listen = "%s"\nmetrics_listen = "%s"\n\n' \
    "$(address "$1" api)" "$(address "$1" raft)" "$(address "$1" metrics)"
  printf '[name]\nmembers = ['
  for n in $NAME_NODES; do
    printf '%s\n  { node = "%s", raft = "%s", api = "%s" }' "$separator" "$n" "$(address "$n" raft)" "$(address "$n" api)"
    separator=,
  done
  printf ',\n]\n\n[timers]\nprofile = "%s"\n' "$TIMERS"
}

broker_settings() {
  local b separator=""
  printf 'cluster = "%s"\nnode = "%s"\ndata = "%s"\nadvertise = "127.0.0.1"\n' "$CLUSTER" "$1" "$dir/$1/data"
  printf 'client_listen = "%s"\nadmin_listen = "%s"\napi_listen = "%s"\nraft_listen = "%s"\nmetrics_listen = "%s"\n\n' \
    "$(address "$1" client)" "$(address "$1" console)" "$(address "$1" api)" "$(address "$1" raft)" "$(address "$1" metrics)"
  # shellcheck disable=SC2086 # the lists of nodes are words
  printf '[name]\nmembers = ["%s"]\n\n' "$(joined '", "' api $NAME_NODES)"
  printf '[[broker.group]]\nname = "%s"\nmembers = [' "$GROUP"
  for b in $BROKER_NODES; do
    printf '%s\n  { node = "%s", raft = "%s", api = "%s", client = "%s" }' "$separator" "$b" \
      "$(address "$b" raft)" "$(address "$b" api)" "$(address "$b" client)"
    separator=,
  done
  printf ',\n]\n\n[timers]\nprofile = "%s"\n' "$TIMERS"
}

binary_folder() {
  local candidate
  for candidate in "$bin" "${CARGO_TARGET_DIR:+$CARGO_TARGET_DIR/debug}" \
    "${XDG_CACHE_HOME:-$HOME/.cache}/raftmq/target/debug" "$(dirname "${BASH_SOURCE[0]}")/../target/debug"; do
    if [ -n "$candidate" ] && [ -x "$candidate/mqbroker" ]; then (cd "$candidate" && pwd); return 0; fi
  done
  fail $NOT_FOUND "no binaries found (mqbroker); build them with 'make build' or name their folder with --bin"
}

create() {
  local node parent
  parent=$(dirname "$dir")
  [ -d "$parent" ] || fail $NOT_FOUND "folder $parent does not exist"
  if [ -d "$dir" ] && [ -n "$(ls -A "$dir")" ]; then
    fail $FAILED "$dir is neither empty nor the folder of a cluster"
  fi
  BIN=$(binary_folder)
  mkdir -p "$dir"
  dir=$(cd "$dir" && pwd)
  PORT_BASE=$port_base TIMERS=${timers:-lan}
  if [ "$PORT_BASE" = auto ]; then PORT_BASE=$(free_port_base); fi
  for node in $NAME_NODES $BROKER_NODES; do mkdir -p "$dir/$node"; done
  for node in $NAME_NODES; do name_settings "$node" >"$dir/$node/config.toml"; done
  for node in $BROKER_NODES; do broker_settings "$node" >"$dir/$node/config.toml"; done
  {
    printf 'PORT_BASE=%q\nTIMERS=%q\nBIN=%q\nBROKER_SETS=(' "$PORT_BASE" "$TIMERS" "$BIN"
    if [ ${#sets[@]} -gt 0 ]; then printf '%q ' "${sets[@]}"; fi
    printf ')\n'
  } >"$dir/cluster.env.tmp"
  mv "$dir/cluster.env.tmp" "$dir/cluster.env"
}

load() {
  [ -f "$dir/cluster.env" ] || fail $NOT_FOUND "no cluster in $dir (deploy/cluster.sh up --dir $dir makes one)"
  dir=$(cd "$dir" && pwd)
  # shellcheck source=/dev/null
  . "$dir/cluster.env"
  if [ -n "$bin" ]; then BIN=$(binary_folder); fi
}

# Prints the nodes that NODE means.
resolve() {
  case " $NAME_NODES $BROKER_NODES all " in
    *" ${1:-none} "*) if [ "$1" = all ]; then printf '%s' "$NAME_NODES $BROKER_NODES"; else printf '%s' "$1"; fi ;;
    *) fail $NOT_FOUND "no node '${1:-}'; there are: $NAME_NODES $BROKER_NODES" ;;
  esac
}

# ---- start, stop -----------------------------------------------------------------------------------------

launch() {
  local node=$1 program=mqbroker pid started pair arguments=()
  if alive "$node"; then return 0; fi
  case $node in
    n*) program=mqnamesrv ;;
    b*) for pair in ${BROKER_SETS[@]+"${BROKER_SETS[@]}"}; do arguments+=(--set "$pair"); done ;;
  esac
  rm -f "$dir/$node/pid"
  printf -- '---- %s: start\n' "$(date -u +%FT%TZ)" >>"$dir/$node/log"
  setsid nohup "$BIN/$program" --config "$dir/$node/config.toml" ${arguments[@]+"${arguments[@]}"} \
    </dev/null >>"$dir/$node/log" 2>&1 &
  pid=$!
  if ! started=$(start_time "$pid"); then
    early_exit "$node"
    return 1
  fi
  printf '%s %s\n' "$pid" "$started" >"$dir/$node/pid.tmp"
  mv "$dir/$node/pid.tmp" "$dir/$node/pid"
}

early_exit() {
  printf 'error: %s stopped right after its start; the end of %s:\n' "$1" "$dir/$1/log" >&2
  tail -n 15 "$dir/$1/log" | sed 's/^/  | /' >&2
}

# Names the nodes of a list whose processes are gone, and shows their logs.
report_dead() {
  local node dead=0
  for node in "$@"; do
    if ! alive "$node"; then early_exit "$node"; dead=1; fi
  done
  return $dead
}

mqadmin() {
  # shellcheck disable=SC2086 # a list of words
  "$BIN/mqadmin" --namesrv "$(joined , api $NAME_NODES)" "$@"
}

# True when both Raft groups have leaders and the broker group is registered with all of its members.
healthy() { mqadmin status --json >"$dir/status.json" 2>"$dir/status.err"; }

await_leaders() {
  local end=$((SECONDS + wait_s))
  [ "$wait_s" -gt 0 ] || return 0
  until healthy; do
    report_dead "$@" || exit $FAILED
    if [ $SECONDS -ge $end ]; then
      tail -n 5 "$dir/status.err" | sed 's/^/  | /' >&2
      fail $UNAVAILABLE "no healthy cluster within $wait_s s; see: deploy/cluster.sh status --dir $dir"
    fi
    sleep 0.1
  done
}

# signal_node NODE SIGNAL; a process that ended in between is not an error
signal_node() {
  local pid
  pid=$(pid_of "$1") || return 0
  kill -s "$2" "$pid" 2>/dev/null || ! alive "$1"
}

# Asks the named nodes to end, wakes stopped ones, and kills what is still there after 15 s.
stop_nodes() {
  local node end=$((SECONDS + 15)) left
  for node in "$@"; do signal_node "$node" TERM; signal_node "$node" CONT; done
  while :; do
    left=""
    for node in "$@"; do if alive "$node"; then left+=" $node"; fi; done
    if [ -z "$left" ]; then break; fi
    if [ $SECONDS -ge $end ]; then
      say "killing$left: still there 15 s after SIGTERM"
      for node in $left; do signal_node "$node" KILL; done
      end=$((SECONDS + 15))
    fi
    sleep 0.05
  done
  for node in "$@"; do rm -f "$dir/$node/pid"; done
}

# ---- commands --------------------------------------------------------------------------------------------

command_up() {
  local node
  if [ -f "$dir/cluster.env" ]; then load; else create; load; fi
  for node in $NAME_NODES $BROKER_NODES; do launch "$node" || exit $FAILED; done
  # shellcheck disable=SC2086 # the lists of nodes are words
  await_leaders $NAME_NODES $BROKER_NODES
  if [ "$wait_s" -gt 0 ]; then show; fi
}

show() {
  local node pid state
  printf '%-5s %-8s %-8s %s\n' node pid state address
  for node in $NAME_NODES $BROKER_NODES; do
    state=dead pid=-
    if pid=$(pid_of "$node"); then
      state=running
      if [ "$(process_state "$pid")" = T ]; then state=stopped; fi
    else
      pid=-
    fi
    case $node in
      n*) printf '%-5s %-8s %-8s registry %s\n' "$node" "$pid" "$state" "$(address "$node" api)" ;;
      b*) printf '%-5s %-8s %-8s clients %s  api %s\n' "$node" "$pid" "$state" "$(address "$node" client)" "$(address "$node" api)" ;;
    esac
  done
  if mqadmin status; then return 0; else return $?; fi
}

show_json() {
  local node pid separator="" status=0 cluster
  cluster=$(mqadmin status --json 2>/dev/null) || status=$?
  printf '{"nodes":['
  for node in $NAME_NODES $BROKER_NODES; do
    if pid=$(pid_of "$node"); then
      printf '%s{"node":"%s","pid":%s,"state":"%s"}' "$separator" "$node" "$pid" \
        "$(if [ "$(process_state "$pid")" = T ]; then printf stopped; else printf running; fi)"
    else
      printf '%s{"node":"%s","pid":null,"state":"dead"}' "$separator" "$node"
    fi
    separator=,
  done
  printf '],"cluster":%s}\n' "${cluster:-null}"
  return $status
}

command_status() {
  local node status=0
  load
  if $json; then show_json || status=$?; else show || status=$?; fi
  for node in $NAME_NODES $BROKER_NODES; do
    if ! alive "$node" && [ $status -eq 0 ]; then status=$UNHEALTHY; fi
  done
  case $status in 0 | $UNAVAILABLE | $UNHEALTHY) return $status ;; *) return $FAILED ;; esac
}

command_kill() {
  local nodes node
  load
  nodes=$(resolve "$1")
  for node in $nodes; do
    if ! alive "$node"; then
      if [ "$1" = all ]; then continue; fi
      fail $NOT_FOUND "$node is not running"
    fi
    signal_node "$node" "$signal" || fail $FAILED "cannot send SIG$signal to $node"
    say "$node: SIG$signal sent"
  done
  # A killed process is there for some ms more: whoever starts the node again at once must not take it for alive.
  if [ "$signal" = KILL ]; then
    for node in $nodes; do
      for _ in {1..500}; do
        alive "$node" || break
        sleep 0.02
      done
    done
  fi
}

command_start() {
  local nodes node
  load
  nodes=$(resolve "$1")
  for node in $nodes; do launch "$node" || exit $FAILED; done
  # shellcheck disable=SC2086 # a list of words
  await_leaders $nodes
}

command_restart() {
  local nodes
  load
  nodes=$(resolve "$1")
  # shellcheck disable=SC2086 # a list of words
  stop_nodes $nodes
  command_start "$1"
}

# Lines "node lag leads" (leads: yes or no) of the members named like LETTER, by their own word.
# Columns of `mqadmin status`, two blanks or more apart: GROUP NODE STATE TERM LAST COMMITTED APPLIED LAG ...
members_of() {
  mqadmin status 2>/dev/null | awk -F '  +' -v letter="$1" '
    NR > 1 && substr($2, 1, 1) == letter { print $2, $8, $3 ~ /\*/ ? "yes" : "no" }'
}

# True when the cluster is healthy and no member of NODE's group lacks more than a few entries that are just on their way.
in_sync() {
  local node lag leads
  healthy || return 1
  members_of "${1:0:1}" >"$dir/members"
  [ "$(wc -l <"$dir/members")" -eq 3 ] || return 1
  while read -r node lag leads; do
    case $lag in "" | *[!0-9]*) return 1 ;; esac
    [ "$lag" -le $LAG_MAX ] || return 1
  done <"$dir/members"
}

await_sync() {
  local end=$((SECONDS + wait_s))
  until in_sync "$1"; do
    report_dead "$1" || exit $FAILED
    if [ $SECONDS -ge $end ]; then fail $UNAVAILABLE "$1 is not in sync within $wait_s s; nothing else was restarted"; fi
    sleep 0.1
  done
}

leader_among() { members_of "$1" | awk '$3 == "yes" { print $1 }'; }

# The next one is taken only when all are in sync: at most one member of a group is away at any time.
rolling_restart() {
  local letter=$1 left=" $2 " node leader
  while [ -n "${left// /}" ]; do
    leader=$(leader_among "$letter")
    for node in $left; do [ "$node" = "$leader" ] || break; done
    await_sync "$node"
    say "$node: restart"
    stop_nodes "$node"
    launch "$node" || exit $FAILED
    await_sync "$node"
    left=${left/ $node / }
  done
}

command_rolling_restart() {
  load
  [ "$wait_s" -gt 0 ] || fail $USAGE "rolling-restart cannot do without waiting"
  rolling_restart n "$NAME_NODES"
  rolling_restart b "$BROKER_NODES"
}

command_logs() {
  local nodes node files=()
  load
  nodes=$(resolve "${1:-all}")
  for node in $nodes; do files+=("$dir/$node/log"); done
  if $follow; then exec tail -n 20 -F "${files[@]}"; fi
  tail -n 20 "${files[@]}"
}

command_endpoints() {
  load
  # shellcheck disable=SC2086 # the lists of nodes are words
  printf 'CLIENTS=%s\nBROKERS=%s\nNAMES=%s\nBIN=%s\n' \
    "$(joined , client $BROKER_NODES)" "$(joined , api $BROKER_NODES)" "$(joined , api $NAME_NODES)" "$BIN"
}

command_down() {
  if [ ! -d "$dir" ]; then return 0; fi
  load
  # shellcheck disable=SC2086 # the lists of nodes are words
  stop_nodes $NAME_NODES $BROKER_NODES
  if $purge; then rm -rf "$dir"; fi
}

command_demo() {
  local arguments=(--script "$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/cluster.sh")
  if [ "$dir" = ./cluster-data ]; then dir=./demo-data; fi
  if $json; then arguments+=(--json); fi
  if $hold; then arguments+=(--hold); fi
  if [ -n "$port_base" ]; then arguments+=(--port-base "$port_base"); fi
  if [ -n "$timers" ]; then arguments+=(--timers "$timers"); fi
  bin=$(binary_folder)
  exec "$bin/mqjepsen" demo --dir "$dir" --bin "$bin" "${arguments[@]}" ${file:+--file "$file"}
}

# ---- arguments -------------------------------------------------------------------------------------------

[ $# -ge 1 ] || usage
command=$1 node=""
shift
value() { [ $# -ge 2 ] || fail $USAGE "$1 needs a value"; printf '%s' "$2"; }
while [ $# -gt 0 ]; do
  case $1 in
    --dir) dir=$(value "$@"); shift ;;
    --port-base) port_base=$(value "$@"); shift ;;
    --timers) timers=$(value "$@"); shift ;;
    --set) sets+=("$(value "$@")"); shift ;;
    --bin) bin=$(value "$@"); shift ;;
    --wait) wait_s=$(value "$@"); shift ;;
    --signal) signal=$(value "$@"); signal=${signal#SIG}; shift ;;
    --json) json=true ;;
    --hold) hold=true ;;
    --purge) purge=true ;;
    -f | --follow) follow=true ;;
    -h | --help) usage ;;
    -*) fail $USAGE "unknown option '$1' (deploy/cluster.sh --help)" ;;
    *) if [ -n "$node" ]; then fail $USAGE "one argument too many: '$1'"; fi; node=$1 ;;
  esac
  shift
done
case $port_base in
  "" | auto) ;;
  *[!0-9]*) fail $USAGE "--port-base takes a number or auto, not '$port_base'" ;;
  *) if [ "$port_base" -lt 1024 ] || [ "$port_base" -gt 65000 ]; then fail $USAGE "--port-base must be between 1024 and 65000, not $port_base"; fi ;;
esac
case $signal in KILL | STOP | CONT | TERM) ;; *) fail $USAGE "--signal takes KILL, STOP, CONT or TERM, not '$signal'" ;; esac
case $timers in "" | lan | test) ;; *) fail $USAGE "--timers takes lan or test, not '$timers'" ;; esac
case $wait_s in "" | *[!0-9]*) fail $USAGE "--wait takes seconds, not '$wait_s'" ;; esac

case $command in
  kill | start | restart) if [ -z "$node" ]; then fail $USAGE "$command needs a node: $NAME_NODES $BROKER_NODES"; fi ;;
  demo) file=$node ;;
  logs) ;;
  *) if [ -n "$node" ]; then fail $USAGE "$command takes no argument, got '$node'"; fi ;;
esac
case $command in
  up) command_up ;;
  down) command_down ;;
  status) command_status ;;
  kill) command_kill "$node" ;;
  start) command_start "$node" ;;
  restart) command_restart "$node" ;;
  rolling-restart) command_rolling_restart ;;
  logs) command_logs "$node" ;;
  endpoints) command_endpoints ;;
  demo) command_demo ;;
  -h | --help | help) usage ;;
  *) fail $USAGE "unknown command '$command' (deploy/cluster.sh --help)" ;;
esac
exit $DONE
