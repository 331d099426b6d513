#!/usr/bin/env bash
# A SLURM of its own for the tests: four nodes of four CPUs and two pretend GPUs each, all of them on this machine.
#
#   tests/slurm/cluster.sh start DIR && export SLURM_CONF=DIR/slurm.conf    (as root; Debian's slurm-wlm and munge)
#   tests/slurm/cluster.sh stop DIR
#
# No systemd, no cgroups, no database; keys, sockets, logs and process ids are below DIR, ports are free ones.
set -euo pipefail

n_nodes=4
command=${1:?start or stop}
dir=$(mkdir -p "${2:?a folder}" && cd "$2" && pwd)
export SLURM_CONF=$dir/slurm.conf
PATH=$PATH:/usr/sbin:/sbin

write_config() {
  local host ports node
  host=$(hostname -s)
  mapfile -t ports < <(python3 -c '
import socket, sys
sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(int(sys.argv[1]))]
print(*(one.getsockname()[1] for one in sockets), sep="\n")' $((n_nodes + 1)))
  # cred_expire is also how long a requeued job waits before it may start: two minutes, unless one says so.
  cat > "$SLURM_CONF" <<CONFIG
ClusterName=bayesnde-tests
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=${ports[0]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$dir/munge/socket,cred_expire=5
CredType=cred/munge
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool-%n
SlurmctldPidFile=$dir/slurmctld.pid
SlurmdPidFile=$dir/slurmd-%n.pid
SlurmctldLogFile=$dir/log/slurmctld
SlurmdLogFile=$dir/log/slurmd-%n
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1
ReturnToService=2
KillWait=5
GresTypes=gpu
CONFIG
  for node in $(seq "$n_nodes"); do
    echo "NodeName=n$node NodeHostname=$host NodeAddr=127.0.0.1 Port=${ports[node]} CPUs=4 RealMemory=1000 Gres=gpu:2"
  done >> "$SLURM_CONF"
  echo "PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP" >> "$SLURM_CONF"
  # Any character devices will do.
  printf "Name=gpu File=%s\n" /dev/null /dev/zero > "$dir/gres.conf"
  echo "CgroupAutomount=no" > "$dir/cgroup.conf"
}

start() {
  local node
  mkdir -p "$dir/munge" "$dir/state" "$dir/log"
  chmod 755 "$dir" "$dir/munge" "$dir/state" "$dir/log"
  (umask 077 && head -c 256 /dev/urandom > "$dir/munge/key")
  write_config
  munged --force --socket="$dir/munge/socket" --key-file="$dir/munge/key" --pid-file="$dir/munge/pid" \
    --seed-file="$dir/munge/seed" --log-file="$dir/log/munged"
  slurmctld -f "$SLURM_CONF"
  for node in $(seq "$n_nodes"); do
    mkdir -p "$dir/spool-n$node"
    slurmd -f "$SLURM_CONF" -N "n$node"
  done
  for _ in $(seq 100); do
    [ "$(sinfo --noheader --Node --states=idle 2> /dev/null | wc -l)" -eq "$n_nodes" ] && return
    sleep 0.2
  done
  echo "SLURM's nodes are not ready after 20 s; see $dir/log" >&2
  return 1
}

stop() {
  local file pid pids=()
  for file in "$dir"/slurmd-*.pid "$dir/slurmctld.pid" "$dir/munge/pid"; do
    [ ! -s "$file" ] || pids+=("$(cat "$file")")
  done
  [ ${#pids[@]} -eq 0 ] || kill "${pids[@]}" 2> /dev/null || true
  for pid in "${pids[@]}"; do
    for _ in $(seq 50); do # a process that has ended has no command line, even if nobody has asked after it
      [ -n "$(tr -d '\0' 2> /dev/null < "/proc/$pid/cmdline")" ] || break
      sleep 0.1
    done
  done
}

case $command in
  start) start || { stop; exit 1; } ;;
  stop) stop ;;
  *) echo "start or stop, not $command" >&2; exit 2 ;;
esac
