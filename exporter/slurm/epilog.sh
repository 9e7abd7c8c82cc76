#!/bin/sh
# Slurm's Epilog: the job is over, nobody has its GPUs any more. See prolog.sh.

trap 'exit 0' EXIT HUP INT TERM
PATH=/usr/sbin:/usr/bin:/sbin:/bin # Slurm gives none

folder=${RANKSCOPE_JOBS_DIR:-/run/rankscope/jobs}
case ${SLURM_JOB_ID:-} in
    '' | *[!0-9]*) exit 0 ;; # not called by Slurm
esac
# Also what a prolog that was killed left.
rm -f "$folder/job-$SLURM_JOB_ID" "$folder/.job-$SLURM_JOB_ID."*
exit 0
