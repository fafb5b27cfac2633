#!/usr/bin/env bash
# What a rented machine runs: "bootstrap.sh install" once, then "bootstrap.sh agent" on every node,
# or "bootstrap.sh controller" on the one that a run's controller lives on.
#
# Beside it lie code.tar.gz and requirements.txt. The environment says the rest, nothing secret in
# it: SAILOR_DIGEST names the code, SAILOR_NODES the cluster's nodes by rank, SAILOR_PYTHON an
# interpreter that has the requirements already (empty: they are installed), SAILOR_ZONE,
# SAILOR_MACHINE_TYPE, SAILOR_SLOTS and SAILOR_CONTROLLER are the agent's arguments, SAILOR_NOTICES
# the cloud whose word of a preemption it watches for (empty: none). The run's keys lie in the folder
# beside this one. SkyPilot adds SKYPILOT_NODE_RANK and SKYPILOT_NODE_IPS. A controller's machine is
# told SAILOR_RUN, SAILOR_DOOR (the port of its door) and SAILOR_KEEPS_S instead of an agent's words.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# The user's own home: on Slurm, SkyPilot gives each cluster another one, and what is installed
# should serve the next cluster too.
home=$(getent passwd "$(id -un)" | cut -d: -f6)
place=$home/.cache/sailor/$SAILOR_DIGEST

install() {
  mkdir -p "$place"
  # Nodes may share a home: one installs, the others wait.
  exec 9>"$place/.lock"
  flock 9
  [ -f "$place/.complete" ] && return
  rm -rf "$place/src" "$place/venv"
  mkdir "$place/src"
  tar -xzf "$here/code.tar.gz" -C "$place/src"
  if [ -z "${SAILOR_PYTHON:-}" ]; then
    make_environment
    "$place/venv/bin/python" -m pip install --quiet -r "$here/requirements.txt"
  fi
  touch "$place/.complete"
}

make_environment() {
  local python
  for python in python3.13 python3.12 python3.11 python3; do
    if "$python" -c 'import sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      "$python" -m venv "$place/venv"
      return
    fi
  done
  # SkyPilot has brought uv; it fetches a Python where there is none new enough.
  "$(command -v uv || echo "$HOME/.local/bin/uv")" venv --seed --python 3.11 "$place/venv"
}

# Waits until a process of this shell has ended, whatever the shell is told meanwhile; sets code.
wait_out() {
  code=0
  while kill -0 "$1" 2>/dev/null; do
    code=0
    wait "$1" || code=$?
  done
}

agent() {
  local nodes rank=$SKYPILOT_NODE_RANK node address python
  read -ra nodes <<<"$SAILOR_NODES"
  node=${nodes[$rank]}
  address=$(sed -n "$((rank + 1))p" <<<"$SKYPILOT_NODE_IPS")
  python=${SAILOR_PYTHON:-$place/venv/bin/python}
  # A machine that is told to go says so to the agent itself; this shell waits for it to leave.
  trap : TERM
  PYTHONPATH=$place/src "$python" -m sailor.runtime.agent \
    --node "$node" --zone "$SAILOR_ZONE" --machine-type "$SAILOR_MACHINE_TYPE" \
    --slots "$SAILOR_SLOTS" --controller "$SAILOR_CONTROLLER" --identity "$here/../identity" \
    --host "$address" ${SAILOR_NOTICES:+--notices-of "$SAILOR_NOTICES"} &
  local code
  wait_out "$!"
  echo "agent of $node ended with $code"
  # Always 0: an agent that failed must not take the cluster's other machines with it.
}

controller() {
  local address python
  address=$(sed -n 1p <<<"$SKYPILOT_NODE_IPS")
  python=${SAILOR_PYTHON:-$place/venv/bin/python}
  # A machine that is told to go tells the door, which has the run saved; this shell waits for it.
  trap : TERM
  # SkyPilot, which rents the machines from there, keeps what it knows in the user's own home.
  HOME=$home PATH=$(dirname "$python"):$PATH PYTHONPATH=$place/src "$python" -m actions.hosted door \
    "$here/../house" "$SAILOR_RUN" --identity "$here/../identity" --host "$address" \
    --port "$SAILOR_DOOR" --address "$address" --keeps-s "$SAILOR_KEEPS_S" &
  local code
  wait_out "$!"
  echo "the door was shut with $code"
}

"$1"
