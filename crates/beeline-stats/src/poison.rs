//! What a peer did that no correct peer does. Each costs that peer its connection and nothing else.

closed_list! {
    /// An impossible value from a peer. The connection it came over is reset, counted, and forgotten.
    pub enum Poison {
        CursorBeyondRing = "cursor_beyond_ring": "A cursor claims more bytes than the ring can hold.",
        HeadBeyondTail = "head_beyond_tail": "The reader's cursor has passed the writer's.",
        BadBellByte = "bad_bell_byte": "Something else than a doorbell came over the anchor, or more doorbells than a peer rings.",
        HelloSilent = "hello_silent": "The client connected to the door and said nothing until others needed its place.",
        HelloShort = "hello_short": "The hello does not have the length of a hello.",
        HelloMagic = "hello_magic": "The hello does not begin with its magic number.",
        HelloFlags = "hello_flags": "The hello has unknown flags set.",
        HelloReserved = "hello_reserved": "A reserved field of the hello is not zero.",
        HelloRingBytes = "hello_ring_bytes": "The hello names a ring size that is not allowed.",
        HelloSize = "hello_size": "The lane does not have the size that the hello says or the ring size demands.",
        HelloNoLane = "hello_no_lane": "No descriptor came with a hello that needs one.",
        HelloExtraFds = "hello_extra_fds": "More descriptors came with the hello than belong to it.",
        HelloNotTmpfs = "hello_not_tmpfs": "The lane is not plain shared memory.",
        HelloSeals = "hello_seals": "The lane can still be shrunk, grown or unsealed.",
        HelloLaneUnknown = "hello_lane_unknown": "The hello refers to a lane that was never shared.",
        HelloUnnamed = "hello_unnamed": "The client's anchor has no name, so it has reserved no address.",
        HelloNameMismatch = "hello_name_mismatch": "The name of the client's anchor is no connection to this listener.",
        HelloAddressForeign = "hello_address_foreign": "The client claims an address that is not its own.",
    }
}
