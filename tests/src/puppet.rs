//! The test's end of `nodus-puppet`: one accepted connection a process.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::binaries::binary;
use crate::ctl::readable_by_all;
use crate::fds::receive_fd;
use crate::running::signal_pid;
use crate::{Ctl, Events, wait};

/// The variable that names the socket a puppet connects to.
pub const PUPPET_SOCKET: &str = "PUPPET_SOCKET";

/// Where the puppets of one job announce themselves, attempt after attempt.
#[derive(Debug)]
pub struct Puppets {
    path: PathBuf,
    listener: UnixListener,
}

/// A process of a job, and what it is told to do.
#[derive(Debug)]
pub struct Puppet {
    control: BufReader<UnixStream>,
    introduction: Value,
}

impl Puppets {
    /// Waits for puppets under `home`, for the job `name`.
    #[must_use]
    pub fn listen(home: &Path, name: &str) -> Self {
        let path = home.join(format!("{name}.puppet"));
        let listener = UnixListener::bind(&path).expect("a socket in a temporary directory");
        // Jobs of other users connect too.
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o777))
            .expect("one's own socket");
        readable_by_all(home);
        Self { path, listener }
    }

    /// The variable for the job's environment, as `nodusctl run --env` takes it.
    #[must_use]
    pub fn variable(&self) -> String {
        format!("{PUPPET_SOCKET}={}", self.path.display())
    }

    /// The program of the job.
    #[must_use]
    pub fn program() -> String {
        binary("nodus-puppet").to_str().expect("a build directory has a plain name").to_owned()
    }

    /// Submits the job, and returns its first process.
    pub fn submit(&self, ctl: &Ctl, name: &str, options: &[&str]) -> Puppet {
        let variable = self.variable();
        let options = [options, &["--env", &variable]].concat();
        ctl.submit(name, &options, &[&Self::program()]);
        self.accept()
    }

    /// The next process that announces itself.
    pub fn accept(&self) -> Puppet {
        self.accept_within(wait::LONG).expect("a puppet comes")
    }

    /// The next process that announces itself within `limit`.
    #[must_use]
    pub fn accept_within(&self, limit: std::time::Duration) -> Option<Puppet> {
        let limit = rustix::event::Timespec::try_from(limit).expect("a test's limit is short");
        let mut fds = [PollFd::new(&self.listener, PollFlags::IN)];
        let ready = poll(&mut fds, Some(&limit)).expect("a socket can be polled");
        (ready > 0).then(|| {
            let (stream, _) = self.listener.accept().expect("one is there");
            stream.set_read_timeout(Some(wait::LONG)).expect("a limit above zero");
            let mut control = BufReader::new(stream);
            let introduction =
                serde_json::from_str(&line(&mut control)).expect("it says who it is");
            Puppet { control, introduction }
        })
    }
}

impl Puppet {
    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        let pid = self.introduction["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok());
        pid.expect("it says its process id")
    }

    /// A variable of its environment, if it begins with `NODUS_` and is there.
    #[must_use]
    pub fn env(&self, name: &str) -> Option<String> {
        self.introduction["env"][name].as_str().map(str::to_owned)
    }

    /// The state directory as the process knows it.
    #[must_use]
    pub fn state_dir(&self) -> String {
        self.env("NODUS_STATE_DIR").expect("every attempt has a state directory")
    }

    /// Writes a file of the state directory as a careful program does: beside it, then renamed.
    pub fn save(&mut self, name: &str, content: &str) {
        let path = format!("{}/{name}", self.state_dir());
        self.tell(&json!({ "do": "write", "path": path, "content": content }));
    }

    /// A new connection from this process to its events socket.
    pub fn events(&mut self) -> Events {
        let path = self.env("NODUS_EVENTS_SOCKET").expect("every attempt has an events socket");
        self.events_at(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    /// A new connection from this process to the socket at this path.
    ///
    /// # Errors
    /// What the process ran into.
    pub fn events_at(&mut self, path: &str) -> Result<Events, String> {
        self.send(&json!({ "do": "connect", "path": path }));
        // The descriptor comes with a byte before the answer; without one, the answer is the error.
        match receive_fd(self.control.get_ref()) {
            Ok(fd) => {
                assert_eq!(line(&mut self.control), "ok");
                Ok(Events::over(fd.into()))
            }
            Err(error) => Err(format!("{error} {}", line(&mut self.control))),
        }
    }

    /// A connection that has subscribed.
    pub fn subscriber(&mut self) -> Events {
        let mut events = self.events();
        events.subscribe();
        events
    }

    /// Prints a line to its standard output.
    pub fn print(&mut self, text: &str) {
        self.tell(&json!({ "do": "print", "line": text }));
    }

    /// Starts another puppet as its child, which announces itself at the same place.
    pub fn spawn(&mut self) {
        self.tell(&json!({ "do": "spawn" }));
    }

    /// Ends it with this status.
    pub fn exit(mut self, code: i32) {
        self.send(&json!({ "do": "exit", "code": code }));
    }

    /// Kills it as the kernel does.
    pub fn kill_9(self) {
        signal_pid(self.pid(), Signal::KILL);
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        signal_pid(self.pid(), signal);
    }

    fn send(&mut self, command: &Value) {
        writeln!(self.control.get_mut(), "{command}").expect("the puppet is there");
    }

    fn tell(&mut self, command: &Value) {
        self.send(command);
        assert_eq!(line(&mut self.control), "ok", "{command}");
    }
}

fn line(from: &mut BufReader<UnixStream>) -> String {
    let mut line = String::new();
    from.read_line(&mut line).expect("the puppet answers");
    line.trim_end().to_owned()
}
