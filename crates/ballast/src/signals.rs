//! Signals that end the process.

use crate::host::ProcessEvent;
use anyhow::Context;
use std::sync::mpsc::Sender;
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};

/// Starts a thread that ends the process in order on `SIGTERM` and `SIGINT`, as `SHUTDOWN` does.
pub(crate) fn watch(events: Sender<ProcessEvent>) -> anyhow::Result<()> {
    let runtime = Builder::new_current_thread().enable_io().build()?;
    let (mut terminate, mut interrupt) = {
        let _within = runtime.enter();
        let of = |kind| signal(kind).context("cannot register signal handlers");
        (of(SignalKind::terminate())?, of(SignalKind::interrupt())?)
    };
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        runtime.block_on(async {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        });
        tracing::info!("signal received, shutting down");
        // A closed channel means that the process is already ending.
        let _ = events.send(ProcessEvent::ShutDown);
    })?;
    Ok(())
}
