//! The server's link to its coordinator: one connection, kept up, on a thread of its own.
//!
//! The link joins, passes on what the coordinator says, and sends what the server has to say. When
//! the connection breaks it is opened again, with the number that the server got at first; what
//! was to be sent meanwhile is dropped, since both sides repeat what matters.
//!
//! Nothing of the data path comes here: a server whose coordinator is away goes on serving.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use types::{ClusterId, ServerId};
use wire::Corrupt;
use wire::control::{FromCoordinator, Join, ToCoordinator};
use wire::frame::{self, HEADER_BYTES, Header};

/// Pause before the first and before every later attempt to connect again.
const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_millis(500);

/// Most messages that wait to be sent: far above what a server says in a second.
const WAITING_MAX: usize = 65_536;

/// See the module's text. Dropping it ends the link.
pub struct ControlLink {
    sender: UnboundedSender<ToCoordinator>,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    is_connected: AtomicBool,
    waiting: std::sync::atomic::AtomicUsize,
}

impl ControlLink {
    /// Connects to `coordinator` (as `host:port`) and joins. `on_message` is called on the link's
    /// thread with everything that the coordinator says, first the welcome; of later connections
    /// the welcome is left out.
    pub fn start(
        coordinator: String,
        join: Join,
        on_message: impl FnMut(FromCoordinator) + Send + 'static,
    ) -> io::Result<ControlLink> {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
        let (sender, receiver) = unbounded_channel();
        let state = Arc::new(State::default());
        let link =
            Link { coordinator, join, on_message, receiver, state: state.clone(), is_over: false };
        std::thread::Builder::new()
            .name("control".into())
            .spawn(move || runtime.block_on(link.run()))?;
        Ok(ControlLink { sender, state })
    }

    /// Sends a message, if the coordinator can be reached.
    pub fn send(&self, message: ToCoordinator) {
        let is_full = self.state.waiting.load(Ordering::Relaxed) >= WAITING_MAX;
        if self.is_connected() && !is_full && self.sender.send(message).is_ok() {
            self.state.waiting.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Whether the coordinator can be reached.
    pub fn is_connected(&self) -> bool {
        self.state.is_connected.load(Ordering::Relaxed)
    }
}

struct Link<F> {
    coordinator: String,
    join: Join,
    on_message: F,
    receiver: UnboundedReceiver<ToCoordinator>,
    state: Arc<State>,
    /// The coordinator does not want us, or nobody wants the link any more.
    is_over: bool,
}

impl<F: FnMut(FromCoordinator)> Link<F> {
    async fn run(mut self) {
        let mut pause = PAUSE_MIN;
        while !self.is_over {
            match self.connection().await {
                Ok(()) => pause = PAUSE_MIN,
                Err(error) => {
                    tracing::debug!(%error, "the coordinator cannot be reached");
                    pause = (pause * 2).min(PAUSE_MAX);
                }
            }
            self.state.is_connected.store(false, Ordering::Relaxed);
            tokio::time::sleep(pause).await;
        }
    }

    /// One connection, from its beginning to its end. `Ok` if the coordinator had let us in.
    async fn connection(&mut self) -> io::Result<()> {
        let stream = TcpStream::connect(&self.coordinator).await?;
        stream.set_nodelay(true)?;
        let (mut reader, mut writer) = stream.into_split();
        write(&mut writer, &ToCoordinator::Join(self.join.clone())).await?;
        let welcome = read(&mut reader).await?;
        self.welcomed(&welcome)?;
        let is_first = self.join.rejoin.is_none();
        if let FromCoordinator::Welcome { server, cluster, .. } = welcome {
            self.join.rejoin = Some((cluster, server));
        }
        while self.receiver.try_recv().is_ok() {}
        self.state.waiting.store(0, Ordering::Relaxed);
        self.state.is_connected.store(true, Ordering::Relaxed);
        if is_first {
            (self.on_message)(welcome);
        }
        if let Err(error) = self.converse(&mut reader, &mut writer).await {
            tracing::info!(%error, "the connection to the coordinator has ended");
        }
        Ok(())
    }

    fn welcomed(&mut self, welcome: &FromCoordinator) -> io::Result<()> {
        let expected: Option<(ClusterId, ServerId)> = self.join.rejoin;
        match welcome {
            FromCoordinator::Welcome { server, cluster, .. }
                if expected.is_none_or(|number| number == (*cluster, *server)) =>
            {
                Ok(())
            }
            FromCoordinator::Rejected { reason } => {
                let reason = reason.clone();
                self.is_over = expected.is_none();
                tracing::error!(reason, "the coordinator refuses this server");
                (self.on_message)(welcome.clone());
                Err(io::Error::new(io::ErrorKind::PermissionDenied, reason))
            }
            other => Err(io::Error::other(format!("the coordinator greets with {other:?}"))),
        }
    }

    async fn converse(
        &mut self,
        reader: &mut OwnedReadHalf,
        writer: &mut OwnedWriteHalf,
    ) -> io::Result<()> {
        // Reading is not restartable in the middle of a frame, so it has a task's place of its own.
        let mut input = Box::pin(read_owned(reader));
        loop {
            tokio::select! {
                (result, reader) = &mut input => {
                    (self.on_message)(result?);
                    input = Box::pin(read_owned(reader));
                }
                message = self.receiver.recv() => match message {
                    Some(message) => {
                        self.state.waiting.fetch_sub(1, Ordering::Relaxed);
                        write(writer, &message).await?;
                    }
                    None => {
                        self.is_over = true;
                        return Ok(());
                    }
                },
            }
        }
    }
}

async fn read_owned(
    reader: &mut OwnedReadHalf,
) -> (io::Result<FromCoordinator>, &mut OwnedReadHalf) {
    (read(reader).await, reader)
}

async fn read(reader: &mut OwnedReadHalf) -> io::Result<FromCoordinator> {
    let mut header = [0; HEADER_BYTES];
    reader.read_exact(&mut header).await?;
    let header = Header::parse(&header).map_err(broken)?;
    if header.payload_bytes != 0 {
        return Err(broken(Corrupt::Invalid { what: "payload on a control connection" }));
    }
    let mut message = vec![0; header.message_bytes];
    reader.read_exact(&mut message).await?;
    header.message(&message).map_err(broken)
}

fn broken(error: Corrupt) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

async fn write(writer: &mut OwnedWriteHalf, message: &ToCoordinator) -> io::Result<()> {
    let mut bytes = Vec::new();
    frame::encode(message, 0, &mut bytes);
    writer.write_all(&bytes).await
}
