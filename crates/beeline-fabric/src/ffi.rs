//! The functions of `shim.c`, and the structures that cross to it: the mirror of its head, nothing more.
//!
//! libfabric's own structures stay opaque here. The sizes of the shared ones are compared at the first use
//! ([`layouts_agree`]).

use std::ffi::{c_char, c_int, c_void};

pub const TEXT_BYTES: usize = 128;
pub const DATA_BYTES: usize = 256;

/// Structures of libfabric, known by address only.
macro_rules! opaque {
    ($($name:ident)*) => {$(
        #[repr(C)]
        pub struct $name {
            _private: [u8; 0],
        }
    )*};
}
opaque! { FiInfo Fid FidFabric FidDomain FidEq FidCq FidPep FidEp FidMr }

pub type Text = [c_char; TEXT_BYTES];

#[repr(C)]
pub struct Port {
    pub address: libc::sockaddr_storage,
    pub max_msg_size: u64,
    pub inject_size: u64,
    pub tx_size: u64,
    pub rx_size: u64,
    pub endpoints_max: u64,
    pub link_speed: u64,
    pub address_bytes: u32,
    pub link_state: u32,
    pub mr_virt_addr: u32,
    pub mr_prov_key: u32,
    pub mr_local: u32,
    pub send_after_write: u32,
    pub pci_known: u32,
    pub pci_domain: u32,
    pub pci_bus: u32,
    pub pci_device: u32,
    pub pci_function: u32,
    pub iwarp: u32,
    pub provider: Text,
    pub fabric: Text,
    pub domain: Text,
    pub device: Text,
    pub layer: Text,
}

pub const EVENT_REQUEST: u32 = 1;
pub const EVENT_CONNECTED: u32 = 2;
pub const EVENT_SHUTDOWN: u32 = 3;
pub const EVENT_FAILED: u32 = 4;

#[repr(C)]
pub struct Event {
    pub fid: *mut Fid,
    pub info: *mut FiInfo,
    pub peer: libc::sockaddr_storage,
    pub peer_bytes: u32,
    pub kind: u32,
    pub error: i32,
    pub provider_error: i32,
    pub data_bytes: u32,
    pub data: [u8; DATA_BYTES],
    pub text: Text,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Completion {
    pub context: u64,
    pub bytes: u64,
}

#[repr(C)]
pub struct Failure {
    pub context: u64,
    pub error: i32,
    pub provider_error: i32,
    pub text: Text,
}

pub const ACCESS_LOCAL_SOURCE: u32 = 1;
pub const ACCESS_LOCAL_TARGET: u32 = 2;
pub const ACCESS_REMOTE_READ: u32 = 4;
pub const ACCESS_REMOTE_WRITE: u32 = 8;
pub const ACCESS_MESSAGES: u32 = 16;

pub const FLAG_INJECT: u32 = 8;

unsafe extern "C" {
    pub fn bf_getinfo(provider: *const c_char, out: *mut *mut FiInfo) -> c_int;
    pub fn bf_set_address(info: *mut FiInfo, target: bool, address: *const c_void, bytes: usize) -> c_int;
    pub fn bf_next(info: *const FiInfo) -> *mut FiInfo;
    pub fn bf_dup(info: *const FiInfo) -> *mut FiInfo;
    pub fn bf_free(info: *mut FiInfo);
    pub fn bf_describe(info: *const FiInfo, port: *mut Port);
    pub fn bf_error_text(error: c_int, text: *mut c_char, bytes: usize);
    pub fn bf_close(fid: *mut Fid) -> c_int;
    pub fn bf_fabric(info: *mut FiInfo, fabric: *mut *mut FidFabric) -> c_int;
    pub fn bf_domain(fabric: *mut FidFabric, info: *mut FiInfo, domain: *mut *mut FidDomain) -> c_int;
    pub fn bf_eq(fabric: *mut FidFabric, eq: *mut *mut FidEq, fd: *mut c_int) -> c_int;
    pub fn bf_cq(domain: *mut FidDomain, entries: usize, cq: *mut *mut FidCq, fd: *mut c_int) -> c_int;
    pub fn bf_trywait(fabric: *mut FidFabric, eq: *mut FidEq, cq: *mut FidCq) -> c_int;
    pub fn bf_listen(
        fabric: *mut FidFabric,
        info: *mut FiInfo,
        eq: *mut FidEq,
        pep: *mut *mut FidPep,
        address: *mut libc::sockaddr_storage,
        address_bytes: *mut u32,
    ) -> c_int;
    pub fn bf_reject(pep: *mut FidPep, request: *mut FiInfo, data: *const c_void, bytes: usize) -> c_int;
    pub fn bf_endpoint(
        domain: *mut FidDomain,
        info: *mut FiInfo,
        eq: *mut FidEq,
        cq: *mut FidCq,
        tx_size: usize,
        rx_size: usize,
        ep: *mut *mut FidEp,
    ) -> c_int;
    pub fn bf_data_max(fid: *mut Fid) -> usize;
    pub fn bf_connect(ep: *mut FidEp, info: *mut FiInfo, data: *const c_void, bytes: usize) -> c_int;
    pub fn bf_accept(ep: *mut FidEp, data: *const c_void, bytes: usize) -> c_int;
    pub fn bf_shutdown(ep: *mut FidEp) -> c_int;
    pub fn bf_event(eq: *mut FidEq, event: *mut Event) -> c_int;
    pub fn bf_completions(cq: *mut FidCq, out: *mut Completion, count: usize) -> c_int;
    pub fn bf_failure(cq: *mut FidCq, failure: *mut Failure) -> c_int;
    pub fn bf_register(
        domain: *mut FidDomain,
        base: *mut c_void,
        bytes: usize,
        access: u32,
        key: u64,
        mr: *mut *mut FidMr,
        key_out: *mut u64,
        descriptor: *mut *mut c_void,
    ) -> c_int;
    pub fn bf_recv(ep: *mut FidEp, base: *mut c_void, bytes: usize, descriptor: *mut c_void, context: u64) -> c_int;
    pub fn bf_send(
        ep: *mut FidEp,
        base: *const c_void,
        bytes: usize,
        descriptor: *mut c_void,
        context: u64,
        flags: u32,
    ) -> c_int;
    pub fn bf_write(
        ep: *mut FidEp,
        base: *const c_void,
        bytes: usize,
        descriptor: *mut c_void,
        remote: u64,
        key: u64,
        context: u64,
        flags: u32,
    ) -> c_int;
    pub fn bf_read(
        ep: *mut FidEp,
        base: *mut c_void,
        bytes: usize,
        descriptor: *mut c_void,
        remote: u64,
        key: u64,
        context: u64,
        flags: u32,
    ) -> c_int;
    pub fn bf_size_of_port() -> usize;
    pub fn bf_size_of_event() -> usize;
    pub fn bf_size_of_failure() -> usize;
}

/// Whether `shim.c` was compiled with the structures that stand here.
pub fn layouts_agree() -> bool {
    // SAFETY: the three functions take nothing and return a constant.
    let sizes = unsafe { [bf_size_of_port(), bf_size_of_event(), bf_size_of_failure()] };
    sizes == [size_of::<Port>(), size_of::<Event>(), size_of::<Failure>()]
}

/// The characters of `text` up to its NUL, or all of them when it has none.
pub fn text(text: &Text) -> String {
    let bytes: Vec<u8> = text.iter().take_while(|&&c| c != 0).map(|&c| c.cast_unsigned()).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}
