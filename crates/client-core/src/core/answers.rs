//! Replies of servers, and the decision that follows from each.

use super::channel::PipelineEntry;
use super::ids::{ChannelId, RequestId};
use super::requests::{OpenRequest, RequestPart};
use super::routes::{MapReply, ServerAddress, ServerIndex, parse_moved};
use super::{ChannelFailure, ClientCore, ClientEffect};
use crate::error::{ClientError, FailureCause};
use crate::request::{RepeatRule, RequestRoute};
use planted::Bug;
use resp::{Reply, Value};
use std::time::Duration;
use types::Instant;

/// Most bytes of a server's error text that the client keeps.
const TEXT_BYTES_MAX: usize = 1024;

/// Redirections that a request follows at once. After more of them it pauses, because the servers
/// do not agree yet.
const PROMPT_REDIRECTIONS: u32 = 4;

/// Time until a server that has no valid map is asked again.
const MAP_REFUSED_PAUSE: Duration = Duration::from_secs(1);

/// The meaning of an error reply.
enum ErrorMeaning {
    /// Another server owns the slot.
    Moved,
    /// The same request may succeed later, here or at another server. It was not executed.
    Later,
    Refused,
}

impl ErrorMeaning {
    fn of(text: &[u8]) -> ErrorMeaning {
        let code = text.split(|byte| *byte == b' ').next().unwrap_or_default();
        match code {
            b"MOVED" if parse_moved(text).is_some() => ErrorMeaning::Moved,
            b"TRYAGAIN" | b"CLUSTERDOWN" | b"LOADING" => ErrorMeaning::Later,
            _ => ErrorMeaning::Refused,
        }
    }
}

impl<T> ClientCore<T> {
    /// Takes all complete replies off the front of the input.
    pub(super) fn received(
        &mut self,
        now: Instant,
        id: ChannelId,
        input: &mut &[u8],
        out: &mut Vec<ClientEffect<T>>,
    ) {
        // A reply may end the channel.
        while let Some(at) = self.current(id) {
            let Some(open) = self.channels[at].open() else { return };
            if open.is_ready {
                open.heard = now;
                open.is_suspect = false;
            }
            let reply = match open.parser.next(input) {
                Ok(Some(received)) => received.reply,
                Ok(None) => break,
                Err(_) => return self.fail(now, at, ChannelFailure::Lost, out),
            };
            if matches!(reply, Reply::Push(_)) {
                continue;
            }
            match open.pipeline.pop_front() {
                Some(PipelineEntry::Request(request)) => {
                    self.answered(now, at, request, reply, out);
                }
                Some(PipelineEntry::Copy(request)) => {
                    self.copied(now, request, Some(&reply), out);
                }
                Some(PipelineEntry::Login) => self.logged_in(now, at, &reply, out),
                Some(PipelineEntry::Map) => self.map_received(now, at, &reply, out),
                // A server that refuses connections says so before it closes them.
                None => self.logged_in(now, at, &reply, out),
            }
        }
        let Some(at) = self.current(id) else { return };
        let channel = &self.channels[at];
        if channel.is_ready() && !channel.waiting.is_empty() {
            out.push(ClientEffect::Write { channel: id });
        }
    }

    fn logged_in(
        &mut self,
        now: Instant,
        at: usize,
        reply: &Reply<'_>,
        out: &mut Vec<ClientEffect<T>>,
    ) {
        let id = self.id_of(at);
        let Some(open) = self.channels[at].open() else { return };
        if open.is_ready {
            // The server has sent a reply to no request.
            return self.fail(now, at, ChannelFailure::Lost, out);
        }
        if let Reply::Error(text) = reply {
            let is_full = text.starts_with(b"ERR max number of clients");
            let failure = match is_full {
                true => ChannelFailure::Lost,
                false => ChannelFailure::Refused(printable(text)),
            };
            return self.fail(now, at, failure, out);
        }
        let is_complete = open.control.is_empty() && open.pipeline.is_empty();
        if !is_complete {
            return;
        }
        open.is_ready = true;
        self.channels[at].failures = 0;
        let is_first = !std::mem::replace(&mut self.is_proven, true);
        if is_first || self.map.is_wanted || self.map.is_doubted {
            self.want_map(now, out);
        }
        out.push(ClientEffect::Write { channel: id });
    }

    fn answered(
        &mut self,
        now: Instant,
        at: usize,
        id: RequestId,
        reply: Reply<'_>,
        out: &mut Vec<ClientEffect<T>>,
    ) {
        if self.not_here(now, id, &reply, out) {
            return;
        }
        let Some(request) = self.requests.get_mut(id) else { return };
        let Reply::Error(text) = reply else {
            let outcome = match is_explained_by_itself(request, &reply) {
                true => Err(ClientError::MaybeExecuted(FailureCause::VersionChanged)),
                false => Ok(Value::from(reply)),
            };
            return self.finish(id, outcome, out);
        };
        match ErrorMeaning::of(text) {
            ErrorMeaning::Moved => self.redirected(now, at, id, text, out),
            ErrorMeaning::Later => {
                self.delay(now, id);
                self.doubt_map(now, at, out);
            }
            // An older server may not know the command.
            ErrorMeaning::Refused if self.ask_owner_again(now, id, out) => {}
            ErrorMeaning::Refused => self.refuse(id, printable(text), out),
        }
    }

    /// Sends a request to the server that a redirection names.
    fn redirected(
        &mut self,
        now: Instant,
        at: usize,
        id: RequestId,
        text: &[u8],
        out: &mut Vec<ClientEffect<T>>,
    ) {
        let Some((slot, address)) = parse_moved(text) else { return };
        if planted::is(Bug::RedirectionIgnored) {
            return self.delay(now, id);
        }
        let address = address.text(&self.server_at(at).address);
        let owner = self.intern(&address);
        if let Some(owner) = owner {
            self.routes.moved(slot, owner);
        }
        self.want_map(now, out);
        let Some(request) = self.requests.get_mut(id) else { return };
        // The caller may not have named the keys.
        request.request.route = RequestRoute::Slot(slot);
        if owner.is_none() || request.attempts >= PROMPT_REDIRECTIONS {
            return self.delay(now, id);
        }
        request.attempts += 1;
        self.route(now, id, out);
    }

    fn map_received(
        &mut self,
        now: Instant,
        at: usize,
        reply: &Reply<'_>,
        out: &mut Vec<ClientEffect<T>>,
    ) {
        self.map.is_in_flight = false;
        match MapReply::parse(reply) {
            Some(map) => self.adopt_map(now, at, &map, out),
            // A server without the command: redirections suffice.
            None => self.map.not_before = now + MAP_REFUSED_PAUSE,
        }
        self.fetch_map(now, out);
    }

    /// Takes over a map that is newer than the present one.
    fn adopt_map(
        &mut self,
        now: Instant,
        at: usize,
        map: &MapReply<'_>,
        out: &mut Vec<ClientEffect<T>>,
    ) {
        if !self.routes.is_news(map) {
            return self.adopt_progress(at, map);
        }
        let answering = ServerIndex((at / self.lanes()) as u16);
        let own_address = self.server_at(at).address.clone();
        self.servers.iter_mut().for_each(|server| server.is_listed = false);
        let servers: Option<Vec<ServerIndex>> = map
            .servers
            .iter()
            .map(|server| match server.host {
                // The server is outside of clusters, and does not know how clients reach it.
                "" => Some(answering),
                _ => self.intern(&server.text(&own_address)),
            })
            .collect();
        let Some(servers) = servers else { return };
        for index in &servers {
            self.servers[usize::from(index.0)].is_listed = true;
        }
        self.routes.replace(map, &servers);
        self.close_unlisted(out);
        self.route_waiting(now, out);
    }

    /// Closes connections to servers that are not in the map, unless they owe replies. Those that do
    /// are watched by `check_channel`.
    fn close_unlisted(&mut self, out: &mut Vec<ClientEffect<T>>) {
        for at in 0..self.channels.len() {
            let is_unused = match self.channels[at].open() {
                Some(open) => open.is_ready && open.pipeline.is_empty() && open.control.is_empty(),
                None => false,
            };
            if is_unused && !self.server_at(at).is_listed {
                out.push(ClientEffect::Close { channel: self.id_of(at) });
                let not_before = Instant(0);
                self.channels[at].state = super::ChannelState::Idle { not_before };
            }
        }
    }

    /// Routes all requests again that were not handed to a transport.
    fn route_waiting(&mut self, now: Instant, out: &mut Vec<ClientEffect<T>>) {
        let channels = self.channels.iter_mut();
        let waiting: Vec<RequestPart> =
            channels.flat_map(|channel| std::mem::take(&mut channel.waiting)).collect();
        for part in waiting {
            match part {
                RequestPart::Main(id) => self.route(now, id, out),
                RequestPart::Copy(id) => self.ask_source_again(now, id, out),
            }
        }
    }

    /// Takes over the progress of migrations from a map of the present version.
    fn adopt_progress(&mut self, at: usize, map: &MapReply<'_>) {
        if self.routes.is_present(map) {
            let own_address = self.server_at(at).address.clone();
            let index = |server: &ServerAddress<'_>| {
                let address = server.text(&own_address);
                let known = self.servers.iter().position(|known| *known.address == *address);
                known.map(|at| ServerIndex(at as u16))
            };
            let servers: Option<Vec<ServerIndex>> = map.servers.iter().map(index).collect();
            if let Some(servers) = servers {
                self.routes.adopt_migrations(map, &servers);
            }
        }
    }
}

/// Returns whether the reply to a write with a condition may be due to an earlier attempt of it.
fn is_explained_by_itself<T>(request: &OpenRequest<T>, reply: &Reply<'_>) -> bool {
    let Reply::Array(mut items) = *reply else { return false };
    let has_failed = items.next() == Some(Reply::Integer(0));
    request.is_ambiguous && request.request.repeat == RepeatRule::Conditional && has_failed
}

fn printable(text: &[u8]) -> String {
    String::from_utf8_lossy(&text[..text.len().min(TEXT_BYTES_MAX)]).into_owned()
}
