//! Errors. Each variant says what the caller may do next.

/// The error of a request. It says whether the request can have had an effect.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClientError {
    /// The request has had no effect, and will have none. The caller may send it again.
    #[error("not executed: {0}")]
    NotExecuted(FailureCause),
    /// The request may have been executed, once. Only the caller can decide whether to repeat it:
    /// read the key first, or use versions.
    #[error("may have been executed: {0}")]
    MaybeExecuted(FailureCause),
    /// The server has refused the request with this text, which begins with an error code. The
    /// request has had no effect, and would be refused again.
    #[error("refused: {0}")]
    Refused(String),
    /// The server has executed the request, but its reply has another form than the command's.
    #[error("unexpected reply: {0}")]
    UnexpectedReply(String),
}

/// The reason why a request has not got a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FailureCause {
    /// The deadline has passed.
    #[error("the deadline has passed")]
    Deadline,
    /// The connection was lost after the request was handed to it.
    #[error("the connection was lost")]
    ConnectionLost,
    /// A write with a condition was repeated after its connection was lost, and the condition did
    /// not hold any more. Either the first attempt or another client has written the key.
    #[error("the version has changed, maybe by an earlier attempt of the same request")]
    VersionChanged,
    /// No server can be reached.
    #[error("no server can be reached")]
    Unreachable,
    /// The server that the request was meant for has left the cluster.
    #[error("the server has left the cluster")]
    ServerGone,
    /// The client does not support the command, because its connections are shared.
    #[error("the command would change the state of a shared connection")]
    Unsupported,
    /// The client was closed.
    #[error("the client was closed")]
    Closed,
}

impl ClientError {
    /// Returns whether the deadline has passed.
    pub fn is_deadline(&self) -> bool {
        matches!(
            self,
            ClientError::NotExecuted(FailureCause::Deadline)
                | ClientError::MaybeExecuted(FailureCause::Deadline)
        )
    }
}
