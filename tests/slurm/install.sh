#!/usr/bin/env bash
# What tests/slurm needs besides the development install: Debian's Slurm and ssh (no service is
# started), SkyPilot and uv in the Python environment that is active, and the clouds' libraries, so
# that tests of what clouds say are run and not skipped. Run as root, on Debian.
set -euo pipefail

apt-get update -qq
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
  slurm-wlm munge openssh-server openssh-client rsync netcat-openbsd
# torch is installed already and stays as it is; pip, unlike uv, leaves it alone.
pip install --quiet 'skypilot[slurm]==0.14.1' uv 'boto3>=1.34' 'moto[ec2]>=5.0' \
  'google-cloud-compute>=1.20'
