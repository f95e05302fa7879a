//! A process whose output is waited for, line by line.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

use crate::wait;

/// What a process printed so far.
#[derive(Debug, Default)]
struct Printed {
    lines: Mutex<Lines>,
    more: Condvar,
}

#[derive(Debug, Default)]
struct Lines {
    stdout: Vec<String>,
    stderr: Vec<String>,
    open: u32,
}

/// A process that was started here, and is killed when this is dropped.
#[derive(Debug)]
pub struct Running {
    name: String,
    child: Child,
    printed: Arc<Printed>,
    readers: Vec<JoinHandle<()>>,
}

impl Running {
    /// Starts `command` with both of its outputs collected.
    pub fn start(command: &mut Command) -> Self {
        let name = format!("{command:?}");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child =
            command.spawn().unwrap_or_else(|error| panic!("cannot run {name}: {error}"));
        let printed = Arc::new(Printed::default());
        printed.lines.lock().unwrap().open = 2;
        let stdout = child.stdout.take().expect("piped above");
        let stderr = child.stderr.take().expect("piped above");
        let readers = vec![
            collect(stdout, &printed, |lines| &mut lines.stdout),
            collect(stderr, &printed, |lines| &mut lines.stderr),
        ];
        Self { name, child, printed, readers }
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        signal_pid(self.pid(), signal);
    }

    /// The first line of either output, from the start, for which `wanted` holds.
    pub fn line_with(&self, what: &str, wanted: impl Fn(&str) -> bool) -> String {
        let end = Instant::now() + wait::LONG;
        let mut lines = self.printed.lines.lock().unwrap();
        loop {
            let all = lines.stdout.iter().chain(&lines.stderr);
            if let Some(line) = all.into_iter().find(|line| wanted(line)) {
                return line.clone();
            }
            let left = end.saturating_duration_since(Instant::now());
            if lines.open == 0 || left.is_zero() {
                let (out, err) = (lines.stdout.join("\n"), lines.stderr.join("\n"));
                panic!("{}: no line with {what}\nstdout:\n{out}\nstderr:\n{err}", self.name);
            }
            lines = self.printed.more.wait_timeout(lines, left).unwrap().0;
        }
    }

    /// Waits for a line that contains `text`.
    pub fn says(&self, text: &str) -> String {
        self.line_with(text, |line| line.contains(text))
    }

    /// Standard output so far.
    #[must_use]
    pub fn stdout(&self) -> Vec<String> {
        self.printed.lines.lock().unwrap().stdout.clone()
    }

    /// Standard error so far.
    #[must_use]
    pub fn stderr(&self) -> Vec<String> {
        self.printed.lines.lock().unwrap().stderr.clone()
    }

    /// Its exit status if it has ended within `limit`.
    pub fn ended_within(&mut self, limit: Duration) -> Option<ExitStatus> {
        if let Some(status) = self.child.try_wait().expect("the child is ours") {
            return Some(status);
        }
        let pid = Pid::from_child(&self.child);
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).expect("a child has a pidfd");
        let limit = rustix::event::Timespec::try_from(limit).expect("a test's limit is short");
        let mut fds = [PollFd::new(&pidfd, PollFlags::IN)];
        match poll(&mut fds, Some(&limit)) {
            Ok(0) | Err(_) => None,
            Ok(_) => Some(self.child.wait().expect("the child is ours")),
        }
    }

    /// Waits for its end and for the last of its output.
    pub fn ends(&mut self) -> ExitStatus {
        let status = self.ended_within(wait::LONG);
        let status = status.unwrap_or_else(|| panic!("{} does not end", self.name));
        // A grandchild may still hold the pipe; what it has to say is not waited for for ever.
        wait::until("the output's end", Duration::from_secs(10), || {
            self.readers.iter().all(JoinHandle::is_finished)
        });
        status
    }

    /// Kills it and waits until it is gone.
    pub fn kill_9(&mut self) {
        self.child.kill().expect("the child is ours");
        self.child.wait().expect("the child is ours");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends a signal to a process that a fixture started, if it is still there.
pub(crate) fn signal_pid(pid: u32, signal: Signal) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).expect("a process id");
    let _ = kill_process(pid, signal);
}

fn collect(
    from: impl Read + Send + 'static,
    printed: &Arc<Printed>,
    into: fn(&mut Lines) -> &mut Vec<String>,
) -> JoinHandle<()> {
    let printed = Arc::clone(printed);
    std::thread::spawn(move || {
        let mut from = BufReader::new(from);
        let mut line = Vec::new();
        while from.read_until(b'\n', &mut line).is_ok_and(|count| count > 0) {
            let text = String::from_utf8_lossy(&line).trim_end_matches('\n').to_owned();
            into(&mut printed.lines.lock().unwrap()).push(text);
            printed.more.notify_all();
            line.clear();
        }
        printed.lines.lock().unwrap().open -= 1;
        printed.more.notify_all();
    })
}
