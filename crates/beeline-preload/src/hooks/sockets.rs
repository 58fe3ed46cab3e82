//! Making, naming and ending connections; options.

use beeline_sockets::{calls, life, meet, options};
use libc::{c_int, c_void, sockaddr, socklen_t};

use crate::real::hooks;

hooks! {
    fn socket: (domain: c_int, kind: c_int, protocol: c_int) -> c_int [] =>
        calls::socket(domain, kind, protocol);

    fn bind: (fd: c_int, address: *const sockaddr, length: socklen_t) -> c_int [fd] =>
        calls::bind(fd);

    fn listen: (fd: c_int, backlog: c_int) -> c_int [fd] =>
        calls::listen(fd, backlog);

    fn connect | __connect: (fd: c_int, address: *const sockaddr, length: socklen_t) -> c_int [fd] =>
        calls::connect(fd, address, length);

    fn accept: (fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int [fd] =>
        calls::accept4(fd, address, length, 0);

    fn accept4: (fd: c_int, address: *mut sockaddr, length: *mut socklen_t, flags: c_int) -> c_int [fd] =>
        calls::accept4(fd, address, length, flags);

    fn sockatmark: (fd: c_int) -> c_int [fd] => life::sockatmark(fd);

    fn getsockname: (fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int [] =>
        meet::getsockname(fd, address, length);

    fn getpeername: (fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int [] =>
        meet::getpeername(fd, address, length);

    fn shutdown: (fd: c_int, how: c_int) -> c_int [fd] => calls::shutdown(fd, how);

    fn getsockopt: (fd: c_int, level: c_int, name: c_int, value: *mut c_void, length: *mut socklen_t) -> c_int [] =>
        options::getsockopt(fd, level, name, value.cast(), length);

    fn setsockopt: (fd: c_int, level: c_int, name: c_int, value: *const c_void, length: socklen_t) -> c_int [fd] =>
        options::setsockopt(fd, level, name, value.cast(), length);
}
