//! The system's word that the process is to end.

use crate::host::Event;
use anyhow::Context;
use std::sync::mpsc::Sender;
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};

/// From here on `SIGTERM` and `SIGINT` end the process in order: as `SHUTDOWN` does.
pub(crate) fn watch(events: Sender<Event>) -> anyhow::Result<()> {
    let runtime = Builder::new_current_thread().enable_io().build()?;
    let (mut terminate, mut interrupt) = {
        let _within = runtime.enter();
        let of = |kind| signal(kind).context("signals cannot be waited for");
        (of(SignalKind::terminate())?, of(SignalKind::interrupt())?)
    };
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        runtime.block_on(async {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        });
        tracing::info!("told to end: replies that are there still leave");
        // Who does not listen any more is ending already.
        let _ = events.send(Event::ShutDown);
    })?;
    Ok(())
}
