#!/bin/sh
# Slurm's Prolog: writes down which job has which GPUs, for the exporter of this node. The self-contained package puts it where the
# lines below say; from a checkout, copy this folder there. In slurm.conf, on all nodes:
#
#   Prolog=/opt/rankscope/share/slurm/prolog.sh
#   Epilog=/opt/rankscope/share/slurm/epilog.sh
#   PrologFlags=Alloc        # when the job gets the node, not when its first step starts
#
# or call it from the script that is there already. It needs no program but mkdir, mv and rm, waits for nothing, and always ends
# well: no node is drained, and no job requeued, because somebody could not be told about it.

trap 'exit 0' EXIT HUP INT TERM
PATH=/usr/sbin:/usr/bin:/sbin:/bin # Slurm gives none
umask 022

folder=${RANKSCOPE_JOBS_DIR:-/run/rankscope/jobs}
case ${SLURM_JOB_ID:-} in
    '' | *[!0-9]*) exit 0 ;; # not called by Slurm
esac

# One line each, whatever an administrator named an account.
line() {
    case $2 in
        '') ;;
        *'
'*) ;;
        *) printf '%s=%s\n' "$1" "$2" ;;
    esac
}

[ -d "$folder" ] || mkdir -p "$folder" || exit 0
# Slurm is here: from now on a GPU that no file names is held by nobody.
[ -e "$folder/.slurm" ] || printf '' >"$folder/.slurm"

new=$folder/.job-$SLURM_JOB_ID.$$
boot=
{ read -r boot </proc/sys/kernel/random/boot_id; } 2>/dev/null
if {
    line SLURM_JOB_ID "$SLURM_JOB_ID" &&
        # Names the cgroups of the job since Slurm 26.05.
        line SLURM_JOB_SLUID "${SLURM_JOB_SLUID:-}" &&
        line SLURM_JOB_USER "${SLURM_JOB_USER:-}" &&
        line SLURM_JOB_UID "${SLURM_JOB_UID:-}" &&
        line SLURM_JOB_ACCOUNT "${SLURM_JOB_ACCOUNT:-}" &&
        line SLURM_JOB_PARTITION "${SLURM_JOB_PARTITION:-}" &&
        # Numbers are those of /dev/nvidia*. Which of the variables is set depends on the kind of GRES: gpu, mps, shard, MIG.
        line SLURM_JOB_GPUS "${SLURM_JOB_GPUS:-}" &&
        line CUDA_VISIBLE_DEVICES "${CUDA_VISIBLE_DEVICES:-}" &&
        line GPU_DEVICE_ORDINAL "${GPU_DEVICE_ORDINAL:-}" &&
        # A file that survives a reboot speaks of nobody.
        line BOOT_ID "$boot"
} >"$new"; then
    mv -f "$new" "$folder/job-$SLURM_JOB_ID"
else
    rm -f "$new"
fi
exit 0
