//! What a message costs whose control data tells something else than descriptors: no system call beside that which
//! receives it.

use super::asleep::counts;
use super::*;

cases! { datagrams:
    what_has_no_room_is_cut
    room_that_is_nowhere_is_left_alone;
}

#[test]
fn who_is_told_where_a_datagram_came_to_asks_for_nothing() {
    for call in ["recvmsg", "recvmmsg"] {
        let summary = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("datagrams-{call}"));
        let mut command = Command::new("strace");
        command.args(["-f", "-c", "-U", "name,calls", "-o"]).arg(&summary);
        command.arg("-E").arg(format!("LD_PRELOAD={}", library().display()));
        let status = command.arg(guest("datagrams")).args(["receive", call]).status().expect("strace runs");
        assert!(status.success());
        let calls = counts(&summary);
        let of = |name: &str| calls.get(name).copied().unwrap_or(0);
        assert!(of("recvmsg") + of("recvmmsg") >= 1000 && of("getsockopt") < 100, "{call}: {calls:?}");
    }
}
