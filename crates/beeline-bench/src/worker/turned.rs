//! A stream while which something is turned: the sender sends on, and both ends note where they are when the conductor
//! asks.
//!
//! 1. Neither end stops for a question: a thread of its own waits for it, and reads the clock, the bytes so far and the
//!    process's CPU time. So what lies between two questions is all that happened between them.
//! 2. The conductor asks the server first: after the sender's last answer there is nothing more to ask, and the sender
//!    ends.
//! 3. Bytes are looked at as in every stream, and at the end the receiver tells how many came.

use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::resource::UsageWho;

use super::events::{Event, Outcome, tell, wait_for_word};
use super::itself::{cpu_seconds, move_on, open};
use super::stream::Inflow;
use crate::socket::{Listener, Pattern, send, send_all};
use crate::worker::args::WorkerArgs;

/// What is told when bytes flow, and after each question.
pub const FLOWING: &str = "flowing";
pub const NOTED: &str = "noted";
const GLANCE: Duration = Duration::from_millis(1);

/// Where an end was.
#[derive(Clone, Copy, Debug)]
struct Mark {
    at: Instant,
    bytes: u64,
    cpu_seconds: f64,
}

/// What an end shares with the thread that answers for it.
#[derive(Default)]
struct Place {
    bytes: AtomicU64,
    is_over: AtomicBool,
    marks: Mutex<Vec<Mark>>,
}

impl Place {
    /// Answers so many questions, in a thread of its own. A thread that is not waited for: where the stream fails, the
    /// process ends.
    fn answer(questions: usize) -> Arc<Place> {
        let place = Arc::new(Place::default());
        let own = Arc::clone(&place);
        std::thread::spawn(move || {
            let result = own.answer_all(questions);
            own.is_over.store(true, Ordering::Release);
            result
        });
        place
    }

    fn answer_all(&self, questions: usize) -> Result<()> {
        while self.bytes.load(Ordering::Relaxed) == 0 {
            std::thread::sleep(GLANCE);
        }
        tell(&Event::At { point: FLOWING.into() })?;
        for _ in 0..questions {
            ensure!(wait_for_word()?, "the conductor is gone");
            self.note()?;
            tell(&Event::At { point: NOTED.into() })?;
        }
        Ok(())
    }

    fn note(&self) -> Result<()> {
        let bytes = self.bytes.load(Ordering::Relaxed);
        let mark = Mark { at: Instant::now(), bytes, cpu_seconds: cpu_seconds(UsageWho::RUSAGE_SELF)? };
        self.marks.lock().unwrap_or_else(|broken| broken.into_inner()).push(mark);
        Ok(())
    }

    /// What happened between the first and the second question, the third and the fourth, and so on.
    fn outcome(&self, questions: usize) -> Result<Outcome> {
        let marks = self.marks.lock().unwrap_or_else(|broken| broken.into_inner());
        ensure!(marks.len() == questions, "the stream ended after {} of {questions} questions", marks.len());
        let mut outcome = Outcome::default();
        for (phase, two) in marks.chunks_exact(2).enumerate() {
            let [from, until] = [two[0], two[1]];
            let mut put = |name: &str, value: f64| outcome.values.insert(format!("{name}_{phase}"), value);
            put("bytes", (until.bytes - from.bytes) as f64);
            put("seconds", (until.at - from.at).as_secs_f64());
            put("cpu", until.cpu_seconds - from.cpu_seconds);
        }
        Ok(outcome)
    }
}

pub fn serve(args: &WorkerArgs, listener: &Listener) -> Result<Outcome> {
    let stream = listener.accept()?;
    let mut inflow = Inflow::new(args);
    let place = Place::answer(args.questions);
    while inflow.receive(&stream)? != Some(0) {
        place.bytes.store(inflow.total(), Ordering::Relaxed);
    }
    send(&stream, &inflow.total().to_ne_bytes())?;
    place.outcome(args.questions)
}

pub fn drive(args: &WorkerArgs, address: &str) -> Result<Outcome> {
    let stream = open(args, address)?;
    move_on(args)?;
    drive_on(args, &stream)
}

fn drive_on(args: &WorkerArgs, stream: &TcpStream) -> Result<Outcome> {
    let pattern = Pattern::new(args.message_bytes);
    let place = Place::answer(args.questions);
    let mut sent = 0u64;
    while !place.is_over.load(Ordering::Acquire) {
        send_all(stream, pattern.message())?;
        sent += args.message_bytes as u64;
        place.bytes.store(sent, Ordering::Relaxed);
    }
    stream.shutdown(Shutdown::Write)?;
    let mut answer = [0; 8];
    std::io::Read::read_exact(&mut &*stream, &mut answer).context("the receiver did not say how much came")?;
    let received = u64::from_ne_bytes(answer);
    ensure!(received == sent, "{sent} bytes were sent and {received} received");
    place.outcome(args.questions)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_between_two_questions_is_told() {
        let place = Place::default();
        for bytes in [100, 300, 1000, 5000] {
            place.bytes.store(bytes, Ordering::Relaxed);
            place.note().unwrap();
        }
        let outcome = place.outcome(4).unwrap();
        assert_eq!((outcome.values["bytes_0"], outcome.values["bytes_1"]), (200.0, 4000.0));
        assert!(outcome.values["seconds_1"] >= 0.0 && outcome.values["cpu_0"] >= 0.0);
        assert!(place.outcome(6).unwrap_err().to_string().contains("4 of 6"));
    }
}
