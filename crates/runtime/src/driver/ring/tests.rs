//! Tests of the ring on a pair of sockets, with the kernel results that can be provoked.

use super::*;
use rustix::net::{self, AddressFamily, SocketFlags, SocketType};
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

/// Returns a ring with this many provided buffers, and both ends of a connection. Returns `None`
/// if the system refuses io_uring.
fn start(buffers: usize) -> Option<(Ring, UnixStream, UnixStream)> {
    if let Err(error) = crate::driver::uring::probe() {
        eprintln!("SKIPPED: io_uring cannot be used here: {error}");
        return None;
    }
    let mut ring = Ring::new().expect("it was just tried");
    ring.enable().expect("it was just tried");
    ring.provide(buffers);
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let (ours, theirs) =
        net::socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).expect("two sockets");
    let theirs = UnixStream::from(theirs);
    theirs.set_nonblocking(false).expect("a socket");
    Some((ring, UnixStream::from(ours), theirs))
}

impl Ring {
    /// Waits for completions, and returns them in order.
    fn next(&mut self) -> Vec<Completion> {
        let mut completions = Vec::new();
        for _ in 0..1_000 {
            self.wait(Some(Duration::from_millis(10))).expect("the ring works");
            self.take(&mut completions);
            if !completions.is_empty() {
                return completions;
            }
        }
        panic!("nothing happens");
    }
}

fn received(completion: &Completion) -> &[u8] {
    match &completion.outcome {
        CompletionResult::Received(bytes) => bytes,
        other => panic!("expected bytes, got {other:?}"),
    }
}

#[test]
fn one_receive_brings_bytes_again_and_again_and_then_the_end() {
    let Some((mut ring, ours, mut theirs)) = start(2) else { return };
    ring.receive(ours.as_fd(), 7);
    for round in 0..10_000u32 {
        theirs.write_all(&round.to_le_bytes()).expect("there is room");
        let completions = ring.next();
        assert_eq!(completions.len(), 1);
        assert_eq!(received(&completions[0]), round.to_le_bytes());
        assert!(!completions[0].is_last, "round {round}");
        ring.give(completions.into_iter().next().map(buffer_of).unwrap_or_default());
    }
    drop(theirs);
    let end = Completion {
        slot: 7,
        operation: RingOperation::Receive,
        outcome: CompletionResult::Received(Vec::new()),
        is_last: true,
    };
    assert_eq!(ring.next(), [end]);
    assert_eq!(ring.under_way, 0);
}

fn buffer_of(completion: Completion) -> Vec<u8> {
    match completion.outcome {
        CompletionResult::Received(bytes) | CompletionResult::Sent(_, bytes) => bytes,
        CompletionResult::Ready(_) | CompletionResult::Failed(..) => Vec::new(),
    }
}

#[test]
fn without_buffers_a_receive_ends_and_can_be_begun_again_without_losing_a_byte() {
    let Some((mut ring, ours, mut theirs)) = start(2) else { return };
    let sent: Vec<u8> = (0..5 * BUFFER_BYTES).map(|at| (at % 251) as u8).collect();
    theirs.write_all(&sent).expect("there is room");
    ring.receive(ours.as_fd(), 0);
    let (mut got, mut refusals) = (Vec::new(), 0);
    while got.len() < sent.len() {
        for completion in ring.next() {
            match completion.outcome {
                CompletionResult::Received(bytes) => got.extend(bytes),
                CompletionResult::Failed(Errno::NOBUFS, _) => {
                    refusals += 1;
                    assert!(completion.is_last);
                    ring.receive(ours.as_fd(), 0);
                }
                other => panic!("{other:?}"),
            }
        }
    }
    assert!(got == sent, "bytes were lost or mixed up");
    assert!(refusals > 0, "two buffers cannot take five times their size at once");
}

#[test]
fn a_send_that_does_not_fit_goes_on_by_itself_until_all_of_it_has_left() {
    let Some((mut ring, ours, mut theirs)) = start(1) else { return };
    let sent: Vec<u8> = (0..4 << 20).map(|at| (at % 251) as u8).collect();
    ring.send(ours.as_fd(), 3, sent.clone());
    ring.submit().expect("the ring works");
    let mut completions = Vec::new();
    ring.take(&mut completions);
    assert!(completions.is_empty(), "a socket takes no 4 MiB");
    let reader = std::thread::spawn(move || {
        let mut got = vec![0; 4 << 20];
        theirs.read_exact(&mut got).map(|()| got)
    });
    let completions = ring.next();
    assert!(matches!(&completions[0].outcome, CompletionResult::Sent(count, bytes)
        if *count == sent.len() && *bytes == sent));
    assert!(reader.join().expect("the reader ends").expect("it reads") == sent);
}

#[test]
fn a_cancelled_operation_has_one_last_completion() {
    let Some((mut ring, ours, _theirs)) = start(1) else { return };
    ring.receive(ours.as_fd(), 0);
    ring.send(ours.as_fd(), 0, vec![1; 4 << 20]);
    ring.submit().expect("the ring works");
    for operation in [RingOperation::Receive, RingOperation::Send] {
        ring.cancel(operation, 0);
        let completions = ring.next();
        assert_eq!((completions[0].operation, completions[0].is_last), (operation, true));
    }
    // Bytes that had left before the cancellation are reported as a short send.
    assert_eq!(ring.under_way, 0);
    assert!(ring.lent.sending[0].is_empty(), "the buffer came back");
}

#[test]
fn a_broken_peer_is_an_error_and_a_half_closed_one_is_not() {
    let Some((mut ring, ours, theirs)) = start(1) else { return };
    ring.watch(ours.as_fd(), 0);
    theirs.shutdown(std::net::Shutdown::Write).expect("a connected socket");
    let CompletionResult::Ready(flags) = &ring.next()[0].outcome else {
        panic!("a watch tells flags")
    };
    assert!(!flags.intersects(PollFlags::ERR | PollFlags::HUP), "{flags:?}");
    drop(theirs);
    let CompletionResult::Ready(flags) = &ring.next()[0].outcome else {
        panic!("a watch tells flags")
    };
    assert!(flags.intersects(PollFlags::ERR | PollFlags::HUP), "{flags:?}");
    ring.send(ours.as_fd(), 0, vec![1]);
    let broken = ring.next().into_iter().find(|done| done.operation == RingOperation::Send);
    assert!(matches!(
        broken.map(|done| done.outcome),
        Some(CompletionResult::Failed(Errno::PIPE, _))
    ));
}

/// Produces more completions and more operations than their queues can contain.
#[test]
fn queues_that_are_full_lose_nothing() {
    let Some((mut ring, ours, _theirs)) = start(1) else { return };
    let many = 3 * COMPLETIONS;
    for slot in 0..many {
        // The socket is writable, so this completes at once.
        ring.wait_for_room(ours.as_fd(), slot);
    }
    assert!(ring.has_submissions());
    let mut seen = vec![0; many as usize];
    let mut has_overflowed = false;
    while ring.under_way > 0 {
        ring.submit().expect("the ring works");
        has_overflowed |= ring.ring.submission().cq_overflow();
        let mut completions = Vec::new();
        ring.take(&mut completions);
        completions.iter().for_each(|done| seen[done.slot as usize] += 1);
    }
    assert!(seen.iter().all(|&times| times == 1));
    assert!(has_overflowed, "the kernel had to keep some of them for later");
}

#[test]
fn a_ring_that_is_dropped_in_the_middle_of_everything_takes_its_memory_back() {
    let Some((mut ring, ours, theirs)) = start(4) else { return };
    ring.receive(ours.as_fd(), 0);
    ring.send(ours.as_fd(), 0, vec![1; 8 << 20]);
    ring.watch(ours.as_fd(), 0);
    ring.submit().expect("the ring works");
    drop((ring, theirs, ours));
}

/// Reference implementation: the same bytes through system calls.
#[test]
fn random_traffic_arrives_as_with_plain_calls() {
    let Some((mut ring, ours, mut theirs)) = start(3) else { return };
    let mut random = fastrand::Rng::with_seed(11);
    ring.receive(ours.as_fd(), 0);
    let (mut sent, mut got) = (Vec::new(), Vec::new());
    for _ in 0..3_000 {
        let count = random.usize(1..40_000);
        let bytes: Vec<u8> = std::iter::repeat_with(|| random.u8(..)).take(count).collect();
        theirs.write_all(&bytes).expect("there is room");
        sent.extend_from_slice(&bytes);
        while got.len() < sent.len() {
            for completion in ring.next() {
                if completion.is_last {
                    ring.receive(ours.as_fd(), 0);
                }
                let bytes = buffer_of(completion);
                got.extend_from_slice(&bytes);
                ring.give(bytes);
            }
        }
        assert!(got == sent);
        (got, sent) = (Vec::new(), Vec::new());
    }
}
