//! Waiting for a process, but not for ever.

use std::process::{Child, Output};
use std::sync::mpsc;
use std::time::Duration;

/// Longer than anything here takes on a busy machine.
const BOUND: Duration = Duration::from_secs(120);

/// What the process said when it has ended by itself.
pub(crate) fn output(child: Child) -> Output {
    let pid = rustix::process::Pid::from_child(&child);
    let (ended, wait) = mpsc::channel();
    std::thread::spawn(move || ended.send(child.wait_with_output()));
    match wait.recv_timeout(BOUND) {
        Ok(output) => output.expect("its output can be read"),
        Err(_) => {
            // Not waited for yet, so the number is still its own.
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            panic!("{pid:?} does not end within {BOUND:?}");
        }
    }
}
