//! Numbers of channels and requests.

/// One attempt of one channel to have a connection. Events of earlier attempts are ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ChannelId {
    /// Position of the channel.
    pub(crate) channel: u32,
    pub(crate) attempt: u32,
}

/// Number of a request. It is not used again for another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestId {
    pub(super) place: u32,
    /// Number of requests that had this place before.
    pub(super) generation: u32,
}
