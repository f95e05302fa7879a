//! Long work on a store: shown while it lasts, and ended by Ctrl-C.

use std::time::Duration;

use nodus_checkpoint::control::Control;
use tokio::task::spawn_blocking;
use tokio::time::interval;

use crate::console::Console;
use crate::error::{Error, Result};
use crate::progress::Progress;

/// How often the progress is looked at.
const LOOK: Duration = Duration::from_millis(100);

/// Does the work on a thread of its own. Ctrl-C asks it to stop, and then waits until it has, so
/// that nothing half-done stays.
pub(super) fn watched<T: Send + 'static>(
    console: &Console,
    what: &str,
    work: impl FnOnce(&Control) -> Result<T> + Send + 'static,
) -> Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|source| Error::io("start", "the runtime", source))?;
    let bar = Progress::new(console.progress, what);
    let control = Control::new();
    let handle = control.clone();
    runtime.block_on(async {
        let mut done = spawn_blocking(move || work(&handle));
        let mut look = interval(LOOK);
        loop {
            tokio::select! {
                result = &mut done => break result.expect("the work does not panic"),
                _ = look.tick() => bar.set(control.done(), control.total()),
                pressed = tokio::signal::ctrl_c() => {
                    pressed.map_err(|source| Error::io("wait for", "Ctrl-C", source))?;
                    control.cancel();
                }
            }
        }
    })
}
