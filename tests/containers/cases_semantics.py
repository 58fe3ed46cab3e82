"""What the kernel does, and what lanes between network namespaces do: the cases of `tests/semantics` whose servers are in another namespace."""

import pathlib

from pods import Pods
from world import BEELINE, case, note, shell


@case(1200)
def semantics_between_namespaces():
    """The kernel is the oracle: connections between namespaces behave as those of TCP."""
    pods = Pods()
    a, b = pods.pair()
    for pod, number in ((a, 1), (b, 2)):
        shell("ip", "-n", pod.name, "addr", "add", f"fd99::{number}/64", "dev", "eth0", "nodad")
    program = pathlib.Path(BEELINE).with_name("semantics")
    asked = a.run(program, "--library", program.with_name("libbeeline.so"), beeline=False,
                  BEELINE_TEST_ACROSS=f"/run/netns/{b.name} {b.address} fd99::2")
    output, _ = asked.process.communicate()
    wrong = [line for line in output.splitlines() if line and not line.startswith(("pass", "known"))]
    note(", ".join(output.splitlines()[-2:]))
    assert asked.process.returncode == 0, "\n".join(wrong)[-20000:]
    over_tcp, passed = (int(line.split()[0]) for line in output.splitlines()[-2:])
    # The agent hears of 64 listeners in a second, and each case has one of its own.
    assert over_tcp * 10 < passed, f"{over_tcp} of {passed} cases were not wholly over lanes"
