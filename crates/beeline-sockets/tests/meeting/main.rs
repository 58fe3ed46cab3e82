//! Meeting as programs see it: this test program runs itself again as servers and clients, with the library or
//! without it, and asks the library's own statistics over which path they met.
//!
//! A *guest* is such a child ([`guest`]). Whatever it has to say it prints as lines behind `@`; it ends when its
//! standard input does. Guests wait for each other by those lines, never by time.

mod crowd;
mod guest;
mod hostile;
mod limits;
mod places;
mod rescue;
mod stage;

/// The entry of every guest; does nothing when the tests are run.
#[test]
#[ignore = "runs as a child of the other tests"]
fn guest_entry() {
    guest::run();
}
