//! Frames, the unit of transfer on a bus connection in both directions.
//!
//! | offset | bytes | field |
//! | --- | --- | --- |
//! | 0 | 4 | magic `BLST` |
//! | 4 | 4 | length of the message |
//! | 8 | 4 | length of the payload |
//! | 12 | 4 | CRC-32C of the first 12 bytes and the message |
//! | 16 | | the message (postcard encoding of a `serde` enum), then the payload as raw bytes |
//!
//! The frame's checksum does not cover the payload, because its entries have checksums.

use crate::batch::RUN_HEADER_BYTES;
use crate::{Corrupt, checksum::crc32c_of_two};
use serde::{Serialize, de::DeserializeOwned};
use std::fmt;
use types::limits::{COMPLETION_BYTES_MAX, DATABASES, RECORD_BYTES_MAX};

/// Bytes of a frame header.
pub const HEADER_BYTES: usize = 16;
/// Maximum bytes of a message. An assertion next to each message with a list checks that it fits.
pub const MESSAGE_BYTES_MAX: usize = (1 << 20) + (64 << 10);
/// Maximum bytes of a payload. The reply to a pull contains at least all records of one hash,
/// which is one record of maximum size per database.
pub const PAYLOAD_BYTES_MAX: usize = 64 << 20;

const _: () = assert!(
    DATABASES * (RECORD_BYTES_MAX + RUN_HEADER_BYTES) + 2 * COMPLETION_BYTES_MAX
        <= PAYLOAD_BYTES_MAX
);

const MAGIC: [u8; 4] = *b"BLST";

/// A frame header with valid magic and lengths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Bytes of the message that follows.
    pub message_bytes: usize,
    /// Bytes of the payload that follows the message.
    pub payload_bytes: usize,
    crc: u32,
    checked: [u8; 12],
}

impl Header {
    /// Decodes a header and checks magic and lengths.
    pub fn parse(bytes: &[u8; HEADER_BYTES]) -> Result<Header, Corrupt> {
        let number = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let message_bytes = number(4) as usize;
        let payload_bytes = number(8) as usize;
        if bytes[..4] != MAGIC {
            return Err(Corrupt::Invalid { what: "magic of frame" });
        }
        if message_bytes > MESSAGE_BYTES_MAX || payload_bytes > PAYLOAD_BYTES_MAX {
            return Err(Corrupt::Invalid { what: "length of frame" });
        }
        let mut checked = [0; 12];
        checked.copy_from_slice(&bytes[..12]);
        Ok(Header { message_bytes, payload_bytes, crc: number(12), checked })
    }

    /// Decodes the message that followed this header and checks the checksum of both.
    pub fn message<M: DeserializeOwned>(&self, bytes: &[u8]) -> Result<M, Corrupt> {
        if crc32c_of_two(&self.checked, bytes) != self.crc {
            return Err(Corrupt::Checksum { what: "frame" });
        }
        match postcard::take_from_bytes(bytes) {
            Ok((message, [])) => Ok(message),
            Ok(_) | Err(_) => Err(Corrupt::Invalid { what: "message" }),
        }
    }

    /// Returns the bytes of header, message and payload together.
    pub fn frame_bytes(&self) -> usize {
        HEADER_BYTES + self.message_bytes + self.payload_bytes
    }
}

/// An error: a message or its payload exceeds the limit at which receivers reject the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameTooLong {
    /// Bytes of the message.
    pub message_bytes: usize,
    /// Bytes of the payload.
    pub payload_bytes: usize,
}

impl fmt::Display for FrameTooLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FrameTooLong { message_bytes, payload_bytes } = self;
        write!(
            f,
            "a frame has at most {MESSAGE_BYTES_MAX} bytes of message and {PAYLOAD_BYTES_MAX} of \
             payload, this one would have {message_bytes} and {payload_bytes}"
        )
    }
}

impl std::error::Error for FrameTooLong {}

/// Appends header and message to `out`; the caller sends `payload_bytes` bytes of payload after
/// them. On an error, `out` is unchanged.
pub fn encode<M: Serialize>(
    message: &M,
    payload_bytes: usize,
    out: &mut Vec<u8>,
) -> Result<(), FrameTooLong> {
    let start = out.len();
    out.extend_from_slice(&[0; HEADER_BYTES]);
    #[expect(clippy::expect_used, reason = "serializing plain data into a Vec cannot fail")]
    postcard::to_io(message, &mut *out).expect("plain data can be serialized");
    let message_bytes = out.len() - start - HEADER_BYTES;
    if message_bytes > MESSAGE_BYTES_MAX || payload_bytes > PAYLOAD_BYTES_MAX {
        out.truncate(start);
        return Err(FrameTooLong { message_bytes, payload_bytes });
    }
    let (header, message) = out[start..].split_at_mut(HEADER_BYTES);
    header[..4].copy_from_slice(&MAGIC);
    header[4..8].copy_from_slice(&(message_bytes as u32).to_le_bytes());
    header[8..12].copy_from_slice(&(payload_bytes as u32).to_le_bytes());
    let crc = crc32c_of_two(&header[..12], message);
    header[12..].copy_from_slice(&crc.to_le_bytes());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> Result<Vec<u32>, Corrupt> {
        let short = Corrupt::Short { what: "frame" };
        let (header, rest) = bytes.split_first_chunk().ok_or(short)?;
        let header = Header::parse(header)?;
        header.message(rest.get(..header.message_bytes).ok_or(short)?)
    }

    #[test]
    fn frames_come_back_and_every_flipped_bit_is_noticed() {
        let message: Vec<u32> = vec![1, 2, 300_000];
        let mut bytes = Vec::new();
        assert_eq!(encode(&message, 77, &mut bytes), Ok(()));
        assert_eq!(read(&bytes), Ok(message));
        for bit in 0..bytes.len() * 8 {
            let mut changed = bytes.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(read(&changed).is_err(), "bit {bit} can change unnoticed");
        }
        for length in 0..bytes.len() {
            assert!(read(&bytes[..length]).is_err());
        }
    }

    #[test]
    fn frames_above_the_limits_are_refused_and_leave_nothing() {
        let mut bytes = vec![7; 3];
        for (message_bytes, payload_bytes) in
            [(MESSAGE_BYTES_MAX, PAYLOAD_BYTES_MAX + 1), (MESSAGE_BYTES_MAX + 1, PAYLOAD_BYTES_MAX)]
        {
            // The length of the text takes three bytes.
            let text = "x".repeat(message_bytes - 3);
            let refused = encode(&text, payload_bytes, &mut bytes);
            assert_eq!(refused, Err(FrameTooLong { message_bytes, payload_bytes }));
            assert_eq!(bytes, [7; 3]);
        }
        let text = "x".repeat(MESSAGE_BYTES_MAX - 3);
        assert_eq!(encode(&text, PAYLOAD_BYTES_MAX, &mut bytes), Ok(()));
        assert_eq!(bytes.len(), 3 + HEADER_BYTES + MESSAGE_BYTES_MAX);
    }
}
