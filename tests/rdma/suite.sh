#!/usr/bin/env bash
# What `make test-rdma` runs inside the guests: the test binaries of beeline-fabric over the verbs provider.
#
#   suite.sh one BINARY...               one guest: every binary on the first rail, then once more on the second
#   suite.sh two HOSTS                   two guests: the two roles of the binary, on each rail, each way
#   suite.sh numa CONNECTIONS PACKAGES   where the ports stand, and which one each CPU takes
set -uo pipefail
what=$1
shift
export BEELINE_FABRIC_PROVIDER=verbs BEELINE_FABRIC_PATIENCE=240 RUST_BACKTRACE=1
read -r -a addresses <<<"$RDMA_ADDRESSES"
failed=0

run() {
    echo "-- $BEELINE_FABRIC_ADDRESS: $(basename "$1") ${*:2}"
    timeout 1000 "$@" || { echo "-- failed: status $?"; failed=1; }
}

case $what in
    one)
        for BEELINE_FABRIC_ADDRESS in "${addresses[@]}"; do
            export BEELINE_FABRIC_ADDRESS
            # One at a time: an emulated machine with two CPUs is slow enough.
            for binary in "$@"; do run "$binary" --test-threads 1; done
        done
        ;;
    two)
        for rail in "${!addresses[@]}"; do
            export BEELINE_FABRIC_ADDRESS=${addresses[$rail]}
            for far in 1 2; do
                export BEELINE_FABRIC_ROLE=near BEELINE_FABRIC_MEET=$RDMA_SHARED/meet-$rail-$far
                [ "$RDMA_GUEST" = "$far" ] && BEELINE_FABRIC_ROLE=far
                run "$1" --exact "the_${BEELINE_FABRIC_ROLE}_host"
                rdma_barrier "$rail-$far"
            done
        done
        ;;
    numa)
        export BEELINE_FABRIC_ADDRESS=${addresses[0]} BEELINE_FABRIC_NODES="${addresses[0]}=0 ${addresses[1]}=1"
        run "$1" --exact a_port_stands_at_the_numa_node_of_its_hardware
        run "$2" --ignored --exact each_cpu_takes_the_port_of_its_own_package
        ;;
esac
exit $failed
