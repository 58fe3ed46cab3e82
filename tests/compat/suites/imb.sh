#!/usr/bin/env bash
# title: Intel MPI Benchmarks (PyPI's impi-rt 2021.15.0), over TCP
# seconds: 200
# Intel's MPI over its TCP provider.
set -euo pipefail
source=$CACHE/imb
benchmarks=(PingPong PingPing Sendrecv Exchange Allreduce Reduce Reduce_scatter Allgather Gather Scatter Alltoall Bcast Barrier)

prepare() {
    "$(dirname "$0")/../../../ci/impi.sh" "$source/impi"
}

# A benchmark passes when the program ends well and comes to its last words.
run() {
    # Libraries and providers lie in one directory.
    local libraries=$source/impi/lib
    export I_MPI_ROOT=$source/impi PATH=$source/impi/bin:$PATH LD_LIBRARY_PATH=$libraries
    export I_MPI_FABRICS=ofi FI_PROVIDER=tcp FI_PROVIDER_PATH=$libraries FI_TCP_IFACE=lo I_MPI_HYDRA_IFACE=lo
    export I_MPI_HYDRA_BOOTSTRAP=fork I_MPI_PIN=0 I_MPI_THREAD_YIELD=2
    local command=(mpiexec.hydra -n 2 IMB-MPI1 -iter 50 -time 1 -msglog 0:20 "$1")
    if [ "$MODE" = beeline ]; then command=("$BEELINE" run --quiet -- "${command[@]}"); fi
    if "${command[@]}" >"$WORK/output" && grep -q 'All processes entering MPI_Finalize' "$WORK/output"; then
        echo "pass $1"
    else
        echo "fail $1"
    fi >"$OUTCOMES"
    cat "$WORK/output" >&2
}

case "$1" in
    prepare) prepare ;;
    units) printf '%s\n' "${benchmarks[@]}" ;;
    run) run "$2" ;;
esac
