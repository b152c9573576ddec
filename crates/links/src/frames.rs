//! Frames at the front of received bytes.

use serde::Serialize;
use wire::Corrupt;
use wire::frame::{self, FrameTooLong, HEADER_BYTES, Header, MESSAGE_BYTES_MAX, PAYLOAD_BYTES_MAX};
use wire::handshake::{HANDSHAKE_BYTES_MAX, HandshakeMessage};

/// Longest frames that a connection accepts in one of its states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameLimits {
    message_bytes: usize,
    payload_bytes: usize,
}

impl FrameLimits {
    /// Frames of a peer that is not proven.
    pub(crate) const HANDSHAKE: FrameLimits =
        FrameLimits { message_bytes: HANDSHAKE_BYTES_MAX, payload_bytes: 0 };
    /// Frames between a coordinator and its servers and operators.
    pub(crate) const CONTROL: FrameLimits =
        FrameLimits { message_bytes: MESSAGE_BYTES_MAX, payload_bytes: 0 };
    /// Frames between servers.
    pub(crate) const BUS: FrameLimits =
        FrameLimits { message_bytes: MESSAGE_BYTES_MAX, payload_bytes: PAYLOAD_BYTES_MAX };
}

/// The frame at the front of the received bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NextFrame {
    /// Nothing can be decided before this many bytes have been received.
    Incomplete { wanted_bytes: usize },
    /// All bytes of the frame have been received.
    Complete(Header),
}

/// Finds the frame at the front of `bytes`.
///
/// # Errors
/// The bytes are no frame, or the frame is longer than `limits`.
pub(crate) fn next_frame(bytes: &[u8], limits: FrameLimits) -> Result<NextFrame, Corrupt> {
    let Some(header) = bytes.first_chunk::<HEADER_BYTES>() else {
        return Ok(NextFrame::Incomplete { wanted_bytes: HEADER_BYTES });
    };
    let header = Header::parse(header)?;
    if header.message_bytes > limits.message_bytes || header.payload_bytes > limits.payload_bytes {
        return Err(Corrupt::Invalid { what: "length of frame" });
    }
    match bytes.len() < header.frame_bytes() {
        true => Ok(NextFrame::Incomplete { wanted_bytes: header.frame_bytes() }),
        false => Ok(NextFrame::Complete(header)),
    }
}

/// Returns a frame without payload.
///
/// # Errors
/// The message is too long for a frame.
pub fn encoded(message: &impl Serialize) -> Result<Vec<u8>, FrameTooLong> {
    let mut bytes = Vec::new();
    frame::encode(message, 0, &mut bytes)?;
    Ok(bytes)
}

/// Returns the frame of a handshake message.
#[expect(clippy::expect_used, reason = "the longest handshake message has 96 bytes")]
pub(crate) fn encoded_handshake(message: &HandshakeMessage) -> Vec<u8> {
    encoded(message).expect("a handshake message fits into a frame")
}

/// Returns the sign of life: an empty frame.
#[expect(clippy::expect_used, reason = "an empty message has no bytes")]
pub(crate) fn sign_of_life() -> Vec<u8> {
    encoded(&()).expect("an empty message fits into a frame")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(message_bytes: usize, payload_bytes: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        frame::encode(&vec![(); 0], 0, &mut bytes).expect("an empty list fits into a frame");
        bytes[4..8].copy_from_slice(&(message_bytes as u32).to_le_bytes());
        bytes[8..12].copy_from_slice(&(payload_bytes as u32).to_le_bytes());
        bytes.truncate(HEADER_BYTES);
        bytes.resize(HEADER_BYTES + message_bytes + payload_bytes, 0);
        bytes
    }

    #[test]
    fn a_frame_is_complete_with_its_last_byte() {
        let bytes = frame(10, 20);
        for length in 0..bytes.len() {
            let wanted_bytes = if length < HEADER_BYTES { HEADER_BYTES } else { bytes.len() };
            let next = next_frame(&bytes[..length], FrameLimits::BUS);
            assert_eq!(next, Ok(NextFrame::Incomplete { wanted_bytes }), "{length}");
        }
        let next = next_frame(&bytes, FrameLimits::BUS);
        assert!(matches!(next, Ok(NextFrame::Complete(header)) if header.payload_bytes == 20));
    }

    #[test]
    fn a_frame_above_a_limit_is_refused_by_its_header_alone() {
        let refused = |message_bytes, payload_bytes, limits| {
            let bytes = frame(message_bytes, payload_bytes);
            next_frame(&bytes[..HEADER_BYTES], limits).is_err()
        };
        for (message_bytes, payload_bytes, limits) in [
            (HANDSHAKE_BYTES_MAX, 0, FrameLimits::HANDSHAKE),
            (MESSAGE_BYTES_MAX, 0, FrameLimits::CONTROL),
            (MESSAGE_BYTES_MAX, PAYLOAD_BYTES_MAX, FrameLimits::BUS),
        ] {
            assert!(!refused(message_bytes, payload_bytes, limits));
            assert!(refused(message_bytes + 1, payload_bytes, limits));
            assert!(refused(message_bytes, payload_bytes + 1, limits));
        }
    }
}
