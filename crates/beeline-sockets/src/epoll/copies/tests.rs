//! Copies without processes: what a child has of a fork is a duplicate of an end.

use super::*;
use beeline_shm::Fd;

/// Before the first fork of each test.
const MADE: u32 = 7;

/// A fork of this number: what its child has.
fn fork(copies: &Copies, number: u32) -> Fd {
    copies.begin_fork(number, true);
    let writing = copies.writing.load(Relaxed);
    let child = Fd::own(kernel::duplicate(writing, 0, true).unwrap());
    copies.end_fork();
    child
}

/// As if the last look had been long ago.
fn are_gone(copies: &Copies, since: u32, made: u32) -> bool {
    copies.looked.store(ticks().wrapping_sub(2 * LOOK_TICKS), Relaxed);
    copies.are_gone_since(since, made)
}

/// As [`are_gone`]. The child of another test's fork may have what is open here, for a moment.
fn come_to_be_gone(copies: &Copies, since: u32, made: u32) -> bool {
    let is_so = || {
        std::thread::yield_now();
        are_gone(copies, since, made)
    };
    (0..100_000).any(|_| is_so())
}

#[test]
fn copies_are_compared_by_their_numbers_whatever_they_are() {
    assert!(is_after(1, 0) && !is_after(0, 0) && !is_after(3, 7));
    assert!(is_after(0, u32::MAX) && !is_after(u32::MAX, 0));
}

#[test]
fn a_copy_is_gone_when_nobody_has_its_end() {
    let copies = Copies::new();
    let child = fork(&copies, MADE + 1);
    let grandchild = Fd::own(kernel::duplicate(child.get(), 0, true).unwrap());
    assert!(!are_gone(&copies, MADE, MADE + 1));
    // What was made after it no copy has.
    assert!(come_to_be_gone(&copies, MADE + 1, MADE + 1));
    drop(child);
    assert!(!are_gone(&copies, MADE, MADE + 1));
    drop(grandchild);
    assert!(come_to_be_gone(&copies, MADE, MADE + 1));
    // A fork that is counted and did not come by here.
    assert!(!are_gone(&copies, MADE, MADE + 2));
}

#[test]
fn one_of_several_copies_does_not_tell_of_the_others() {
    let copies = Copies::new();
    let first = fork(&copies, MADE + 1);
    let second = fork(&copies, MADE + 2);
    drop(first);
    assert!(!are_gone(&copies, MADE, MADE + 2));
    let third = fork(&copies, MADE + 3);
    drop(second);
    assert!(!are_gone(&copies, MADE, MADE + 3));
    drop(third);
    assert!(come_to_be_gone(&copies, MADE, MADE + 3));
}

#[test]
fn pipes_are_looked_at_now_and_then() {
    let copies = Copies::new();
    drop(fork(&copies, MADE + 1));
    copies.looked.store(ticks(), Relaxed);
    assert!(!copies.are_gone_since(MADE, MADE + 1));
}

#[test]
fn a_copy_that_was_told_of_is_lost() {
    let copies = Copies::new();
    let child = fork(&copies, MADE + 1);
    let args = [child.get() as usize, c"!".as_ptr() as usize, 1, 0, 0, 0];
    // SAFETY: a byte of a string.
    assert_eq!(unsafe { sys::call(libc::SYS_write, args) }, Ok(1));
    drop(child);
    drop(fork(&copies, MADE + 2));
    assert!(!are_gone(&copies, MADE, MADE + 2));
    // For what was made before it, and for that alone.
    assert!(come_to_be_gone(&copies, MADE + 1, MADE + 2));
}

#[test]
fn a_child_tells_those_before_it() {
    let parent = Copies::new();
    parent.begin_fork(MADE + 1, true);
    // As the parent's memory was copied, with its table of descriptors.
    let child = Copies::new();
    let number_of = |end: i32| hidden::hidden_twin(end).unwrap();
    child.followed[0].number.store(MADE + 1, Relaxed);
    child.followed[0].reading.store(number_of(parent.followed[0].reading.load(Relaxed)), Relaxed);
    child.writing.store(number_of(parent.writing.load(Relaxed)), Relaxed);
    parent.end_fork();
    child.begin_in_child(MADE + 1);
    assert!(!child.before[0].told.load(Relaxed));
    assert!(!are_gone(&child, MADE, MADE + 1), "its parent has what it had");
    assert!(come_to_be_gone(&child, MADE + 1, MADE + 1));
    child.tell();
    // The next fork closes both ends.
    drop(fork(&child, MADE + 2));
    assert_eq!(child.before[0].writing.load(Relaxed), NONE);
    assert_eq!(child.before[0].reading.load(Relaxed), NONE);
    assert!(!are_gone(&parent, MADE, MADE + 1));
    assert!(come_to_be_gone(&parent, MADE + 1, MADE + 1));
}

#[test]
fn more_copies_than_there_are_places_are_lost() {
    let copies = Copies::new();
    let numbers = MADE + 1..=MADE + PLACES as u32;
    let children: Vec<_> = numbers.map(|number| fork(&copies, number)).collect();
    let last = MADE + PLACES as u32 + 1;
    copies.begin_fork(last, true);
    assert_eq!(copies.writing.load(Relaxed), NONE);
    copies.end_fork();
    drop(children);
    assert!(!are_gone(&copies, last - 1, last));
    assert!(come_to_be_gone(&copies, last, last));
    // Places are free again for what is made from now on.
    drop(fork(&copies, last + 1));
    assert!(come_to_be_gone(&copies, last, last + 1));
}

#[test]
fn forks_in_quick_succession_are_not_followed() {
    let copies = Copies::new();
    let last = MADE + FORKS_MAX + 1;
    for number in MADE + 1..last {
        drop(fork(&copies, number));
    }
    // They may have taken long, on a machine that is busy.
    copies.began_ns.store(kernel::now_ns(), Relaxed);
    copies.forks.store(FORKS_MAX, Relaxed);
    copies.begin_fork(last, true);
    assert!(!are_gone(&copies, last - 1, last));
    copies.began_ns.store(0, Relaxed);
    drop(fork(&copies, last + 1));
    assert!(come_to_be_gone(&copies, last, last + 1));
}

#[test]
fn a_fork_in_the_middle_of_another_one_loses_both() {
    let copies = Copies::new();
    copies.begin_fork(MADE + 1, true);
    copies.begin_fork(MADE + 2, true);
    copies.end_fork();
    copies.end_fork();
    assert!(!are_gone(&copies, MADE, MADE + 2));
    assert!(!are_gone(&copies, MADE + 1, MADE + 2));
}

#[test]
fn a_fork_without_any_set_is_lost_to_one_that_is_being_made() {
    let copies = Copies::new();
    copies.begin_fork(MADE + 1, false);
    copies.end_fork();
    assert!(!are_gone(&copies, MADE, MADE + 1));
    assert!(come_to_be_gone(&copies, MADE + 1, MADE + 1));
}

#[test]
fn a_copy_with_the_same_table_is_lost_and_leaves_its_ends_open() {
    let copies = Copies::new();
    let first = fork(&copies, MADE + 1);
    copies.begin_fork(MADE + 2, true);
    copies.lose_sharer(MADE + 2);
    let readings = || copies.followed.iter().map(|followed| followed.reading.load(Relaxed)).filter(|end| *end != NONE);
    let [reading] = readings().collect::<Vec<_>>()[..] else { panic!("the end of the first alone is left") };
    drop(first);
    // As the child finds it.
    copies.begin_in_child(MADE + 2);
    assert_eq!(readings().count(), 0);
    assert_eq!(kernel::is_close_on_exec(reading), Ok(true), "it is open in the parent");
    hidden::close_hidden(reading);
    assert!(!are_gone(&copies, MADE, MADE + 2));
}
