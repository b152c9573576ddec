//! Options of a client.

use std::fmt;
use std::time::Duration;

/// Options of a client. The defaults suit a cluster in one data center.
#[derive(Clone)]
pub struct ClientOptions {
    /// User name. If only a password is set, the user is `default`.
    pub username: Option<String>,
    /// Password.
    pub password: Option<String>,
    /// Number of the database.
    pub database: u8,
    /// Time after which a request without a reply fails. Servers hold requests for up to five
    /// seconds, for example while a record arrives from another server.
    pub deadline: Duration,
    /// Time for connecting and logging in, per attempt.
    pub connect_timeout: Duration,
    /// Time after which a connection that owes replies and sends nothing is closed. Longer than the
    /// time for which servers hold a request, and shorter than `deadline`, so that a request that may
    /// be repeated has time left on another connection.
    pub silence_max: Duration,
    /// Connections to each server. Requests of one key use the same connection.
    pub connections_per_server: u8,
    /// Bytes of requests that may be unanswered per server. Further requests wait.
    pub queue_bytes_max: usize,
    /// Most bytes of one reply. A connection with a longer one is closed.
    pub reply_bytes_max: usize,
    /// Set if values are read at both servers while their slots move, instead of waiting until
    /// they have arrived at the new owner. Only servers that replicate their logs support it. Off by
    /// default: it costs the old owner one more request for each such read, so it helps only if both
    /// servers have processor time to spare.
    pub two_sided_reads: bool,
}

const SILENCE_MAX: Duration = Duration::from_secs(7);
const DEADLINE: Duration = Duration::from_secs(10);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
const _: () = assert!(SILENCE_MAX.as_millis() + CONNECT_TIMEOUT.as_millis() < DEADLINE.as_millis());

impl Default for ClientOptions {
    fn default() -> ClientOptions {
        ClientOptions {
            username: None,
            password: None,
            database: 0,
            deadline: DEADLINE,
            connect_timeout: CONNECT_TIMEOUT,
            silence_max: SILENCE_MAX,
            connections_per_server: 1,
            queue_bytes_max: 8 << 20,
            reply_bytes_max: 64 << 20,
            two_sided_reads: false,
        }
    }
}

impl fmt::Debug for ClientOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let password = self.password.as_ref().map(|_| "(hidden)");
        f.debug_struct("ClientOptions")
            .field("username", &self.username)
            .field("password", &password)
            .field("database", &self.database)
            .field("deadline", &self.deadline)
            .field("connect_timeout", &self.connect_timeout)
            .field("silence_max", &self.silence_max)
            .field("connections_per_server", &self.connections_per_server)
            .field("queue_bytes_max", &self.queue_bytes_max)
            .field("reply_bytes_max", &self.reply_bytes_max)
            .field("two_sided_reads", &self.two_sided_reads)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_not_printed() {
        let options = ClientOptions { password: Some("secret".into()), ..Default::default() };
        assert!(!format!("{options:?}").contains("secret"));
    }
}
