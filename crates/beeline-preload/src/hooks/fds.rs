//! What fd numbers lead to.

use beeline_sockets::life;
use libc::{c_int, c_uint, c_ulong};

use super::streams;
use crate::real::hooks;

// fcntl and ioctl are variadic in C. An argument that is an integer or a pointer arrives where a fixed third
// one would, by the conventions of all machines that are supported.
hooks! {
    fn close | __close: (fd: c_int) -> c_int [] => life::close(fd);

    fn close_range: (first: c_uint, last: c_uint, flags: c_int) -> c_int [] => life::close_range(first, last, flags);

    fn closefrom: (lowest: c_int) -> c_int [] => life::closefrom(lowest);

    fn dup: (fd: c_int) -> c_int [] => life::dup(fd);

    fn dup2 | __dup2: (from: c_int, to: c_int) -> c_int [] =>
        streams::with_stream(from, to, || life::dup2(from, to));

    fn dup3: (from: c_int, to: c_int, flags: c_int) -> c_int [] =>
        streams::with_stream(from, to, || life::dup3(from, to, flags));

    fn fcntl | fcntl64 | __fcntl: (fd: c_int, command: c_int, argument: usize) -> c_int [] =>
        life::fcntl(fd, command, argument);

    fn ioctl: (fd: c_int, request: c_ulong, argument: usize) -> c_int [] => life::ioctl(fd, request, argument);
}
