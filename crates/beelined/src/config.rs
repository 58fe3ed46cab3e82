//! What the administrator has written: `/etc/beeline/beelined.toml`.
