//! What a process counts.

closed_list! {
    /// What a process counts about itself since it started (or since its `fork`).
    pub enum Counter {
        ConnectionsAcceleratedClient = "connections_accelerated_client": "Connections made over a lane.",
        ConnectionsAcceleratedServer = "connections_accelerated_server": "Connections accepted over a lane.",
        ConnectionsFallenBackClient = "connections_fallen_back_client": "Connections made over TCP.",
        ConnectionsFallenBackServer = "connections_fallen_back_server": "Connections accepted over TCP.",
        ConnectionsBridgedClient = "connections_bridged_client": "Of the connections made over a lane, those to another host.",
        ConnectionsBridgedServer = "connections_bridged_server": "Of the connections accepted over a lane, those from another host.",
        ConnectionsClosed = "connections_closed": "Accelerated connections that have been closed.",
        LateFallbacks = "late_fallbacks": "Connections begun again over TCP because the door died before the hello was taken.",
        Poisoned = "poisoned": "Connections reset because the peer did something impossible.",
        DoorsOpened = "doors_opened": "Doors opened beside listeners.",
        DoorsShut = "doors_shut": "Doors shut again.",
        LanesCreated = "lanes_created": "Lanes made and mapped.",
        LanesReused = "lanes_reused": "Connections that took a lane used before, with no new mapping.",
        ConnectionsAgain = "connections_again": "Connections made over ends that were kept of one before, as clients.",
        HiddenFds = "hidden_fds": "Descriptors that Beeline holds for itself at the moment.",
        BytesSent = "bytes_sent": "Bytes sent by connections that have been closed.",
        BytesReceived = "bytes_received": "Bytes received by connections that have been closed.",
        DoorbellsSent = "doorbells_sent": "Doorbells sent to wake a peer, by connections that have been closed.",
        DoorbellsDrained = "doorbells_drained": "Doorbells taken off an anchor, by connections that have been closed.",
        Sleeps = "sleeps": "Times a call slept in the kernel until a lane had news.",
        SpinsPaid = "spins_paid": "Times a bounded spin ended with news, which saved a sleep.",
        SpinsFailed = "spins_failed": "Times a bounded spin ended with nothing.",
        Turns = "turns": "Times a sender of long messages let a receiver on its own CPU read before it went on.",
        Fetched = "fetched": "Long messages, or parts of them, that were copied once, from the sender's memory to the receiver's.",
        FetchesRefused = "fetches_refused": "Times that could not be done, and the ring carried them.",
        EpollKernelLooks = "epoll_kernel_looks": "Times an epoll wait asked the kernel although lanes had events.",
        SignalsDeferred = "signals_deferred": "Signals held back until a critical section had ended.",
        ConnectionsTakenOver = "connections_taken_over": "Accelerated connections taken over from another program.",
        Forks = "forks": "Times the process forked with Beeline loaded.",
        Relays = "relays": "Connections handed to a relay, because a holder cannot use lanes.",
        SettingsRefused = "settings_refused": "Values set from outside that were impossible, and taken back.",
        SpinsSpared = "spins_spared": "Times a call spun for a moment only, although more might have paid, because others need the CPU.",
    }
}
