//! Threads without which the process must not continue.

use std::io::{self, Write};
use std::thread::{Builder, JoinHandle};

/// Starts a thread whose panic aborts the process. Others wait for the results of such a thread, or
/// the panic left shared state unknown; other servers recover the data.
pub fn spawn_vital(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    let guard = AbortOnPanic(name.to_owned());
    Builder::new().name(name.into()).spawn(move || {
        let _guard = guard;
        run();
    })
}

/// Aborts the process if the thread that owns this value panics.
struct AbortOnPanic(String);

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // If the line cannot be written, the process ends without it.
            let _ = writeln!(
                io::stderr(),
                "ballast: thread {} panicked (see above), ending the process",
                self.0
            );
            std::process::abort();
        }
    }
}
