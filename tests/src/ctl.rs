//! Running `nodusctl` as a user does, with nothing of this process's environment.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::binaries::binary;
use crate::running::Running;
use crate::wait;

/// The variable by which a fixture finds what its test started, whatever became of the parents.
/// Nodus does not pass its own variables on to jobs, so its name is none of those.
pub(crate) const TEST_HOME: &str = "HOME_OF_TEST";

/// `nodusctl`, with a home directory and an agent of its own, or none.
#[derive(Clone, Debug)]
pub struct Ctl {
    home: PathBuf,
    socket: Option<PathBuf>,
    user: Option<u32>,
}

/// What a finished command said.
#[derive(Clone, Debug)]
pub struct Done {
    /// The command, for messages.
    pub command: String,
    /// Its exit status; 128 and the signal where one ended it.
    pub status: i32,
    /// What it printed.
    pub stdout: String,
    /// What it said beside that.
    pub stderr: String,
}

impl Ctl {
    /// For commands that need no agent.
    #[must_use]
    pub fn standalone(home: &Path) -> Self {
        Self { home: home.to_owned(), socket: None, user: None }
    }

    /// For the agent behind this control socket.
    #[must_use]
    pub fn of(home: &Path, socket: PathBuf) -> Self {
        Self { home: home.to_owned(), socket: Some(socket), user: None }
    }

    /// The same as another user; only root can.
    #[must_use]
    pub fn as_user(mut self, uid: u32) -> Self {
        self.user = Some(uid);
        self
    }

    /// The command, to which arguments can be added.
    #[must_use]
    pub fn command(&self) -> Command {
        let mut command = Command::new(binary("nodusctl"));
        clear_environment(&mut command, &self.home);
        if let Some(socket) = &self.socket {
            command.arg("--socket").arg(socket);
        }
        if let Some(uid) = self.user {
            use std::os::unix::process::CommandExt;
            command.uid(uid).gid(uid);
        }
        command
    }

    /// Starts it, for commands that go on.
    pub fn start(&self, args: &[&str]) -> Running {
        Running::start(self.command().args(args))
    }

    /// Runs it to its end.
    pub fn run(&self, args: &[&str]) -> Done {
        self.run_within(wait::LONG, args)
    }

    /// Runs it to its end, which must come within `limit`.
    pub fn run_within(&self, limit: Duration, args: &[&str]) -> Done {
        let mut running = self.start(args);
        let command = format!("nodusctl {}", args.join(" "));
        assert!(
            running.ended_within(limit).is_some(),
            "{command} does not end within {limit:?}: {:?} {:?}",
            running.stdout(),
            running.stderr()
        );
        Done::of(command, &mut running)
    }

    /// Submits a job that runs `program`, detached.
    pub fn submit(&self, name: &str, options: &[&str], program: &[&str]) {
        let head: &[&str] = &["run", "--name", name, "-d"];
        self.run(&[head, options, &["--"], program].concat()).ok();
    }

    /// Submits a job described in YAML, detached.
    pub fn submit_yaml(&self, yaml: &str) -> Done {
        let file = tempfile::NamedTempFile::new_in(&self.home).expect("a temporary file");
        std::fs::write(file.path(), yaml).expect("a temporary file can be written");
        readable_by_all(file.path());
        let path = file.path().to_str().expect("a temporary file has a plain name");
        self.run(&["run", "-d", "-f", path])
    }

    /// What `describe` says, as JSON.
    #[must_use]
    pub fn describe(&self, job: &str) -> Value {
        self.run(&["describe", job, "-o", "json"]).ok().json()
    }

    /// The job's phase.
    #[must_use]
    pub fn phase(&self, job: &str) -> String {
        self.describe(job)["phase"].as_str().expect("a job has a phase").to_owned()
    }

    /// Waits until the job is in this phase.
    pub fn wait_for_phase(&self, job: &str, phase: &str) {
        let mut last = String::new();
        wait::until(&format!("{job} to be {phase}"), wait::LONG, || {
            last = self.phase(job);
            let over = ["Succeeded", "Failed"].contains(&last.as_str());
            assert!(last == phase || !over, "{job} is {last}: {}", self.describe(job));
            last == phase
        });
    }

    /// The state directory of the job on this node.
    #[must_use]
    pub fn state_dir(&self, job: &str) -> PathBuf {
        self.describe(job)["stateDir"].as_str().expect("a job has a state directory").into()
    }

    /// `checkpoint list` as JSON: stored and not stored, oldest first.
    #[must_use]
    pub fn checkpoints(&self, job: &str) -> Vec<Value> {
        checkpoints_of(&self.run(&["checkpoint", "list", job, "-o", "json"]).ok().json())
    }

    /// The checkpoint with this number in `checkpoint list`.
    #[must_use]
    pub fn checkpoint(&self, job: &str, seq: u64) -> Value {
        let all = self.checkpoints(job);
        let found = all.iter().find(|checkpoint| checkpoint["seq"] == seq);
        found.unwrap_or_else(|| panic!("no checkpoint {seq} in {all:?}")).clone()
    }

    /// The numbers of the checkpoints that exist.
    #[must_use]
    pub fn stored(&self, job: &str) -> Vec<u64> {
        stored_of(&self.checkpoints(job))
    }

    /// `checkpoint now`, which must be stored; its number.
    pub fn checkpoint_now(&self, job: &str) -> u64 {
        let done = self.run(&["checkpoint", "now", job, "-o", "json"]).ok().json();
        done["seq"].as_u64().unwrap_or_else(|| panic!("a checkpoint has a number: {done}"))
    }

    /// Everything the program printed, over this attempt.
    #[must_use]
    pub fn log(&self, job: &str, attempt: u32) -> String {
        self.run(&["logs", "--attempt", &attempt.to_string(), job]).ok().stdout
    }

    /// Waits until the log of this attempt contains `text`.
    pub fn wait_for_log(&self, job: &str, attempt: u32, text: &str) {
        wait::until(&format!("{text:?} in the log of {job}"), wait::LONG, || {
            let done = self.run(&["logs", "--attempt", &attempt.to_string(), job]);
            done.status == 0 && done.stdout.contains(text)
        });
    }
}

impl Done {
    /// The end of a command that was started.
    pub(crate) fn of(command: String, running: &mut Running) -> Self {
        use std::os::unix::process::ExitStatusExt;
        let status = running.ends();
        let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
        let text =
            |lines: Vec<String>| lines.into_iter().map(|line| line + "\n").collect::<String>();
        Self {
            command,
            status: code.expect("it exited, or a signal ended it"),
            stdout: text(running.stdout()),
            stderr: text(running.stderr()),
        }
    }

    /// Panics unless it ended with 0.
    pub fn ok(self) -> Self {
        self.ends_with(0)
    }

    /// Panics unless it ended with this status.
    pub fn ends_with(self, status: i32) -> Self {
        assert_eq!(
            self.status, status,
            "{}\nstdout:\n{}\nstderr:\n{}",
            self.command, self.stdout, self.stderr
        );
        self
    }

    /// What it printed, as JSON.
    #[must_use]
    pub fn json(&self) -> Value {
        let parsed = serde_json::from_str(&self.stdout);
        parsed.unwrap_or_else(|error| panic!("{}: {error}: {}", self.command, self.stdout))
    }
}

/// The checkpoints in a listing: an array, or the `checkpoints` of a stored job.
pub(crate) fn checkpoints_of(listing: &Value) -> Vec<Value> {
    let list = listing.get("checkpoints").unwrap_or(listing);
    list.as_array().unwrap_or_else(|| panic!("not a listing: {listing}")).clone()
}

/// The numbers of those that exist.
#[must_use]
pub fn stored_of(checkpoints: &[Value]) -> Vec<u64> {
    let exists = |checkpoint: &&Value| checkpoint["committed"].is_string();
    checkpoints.iter().filter(exists).filter_map(|checkpoint| checkpoint["seq"].as_u64()).collect()
}

/// What a process gets: a home, a search path, and the mark by which its fixture finds it.
pub(crate) fn clear_environment(command: &mut Command, home: &Path) {
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/usr/bin:/bin".into());
    command.env_clear().env("PATH", path).env("HOME", home).env(TEST_HOME, home);
    command.env("LANG", "C.UTF-8").current_dir(home);
}

pub(crate) fn readable_by_all(path: &Path) {
    use std::os::unix::fs::PermissionsExt;
    let mode = if path.is_dir() { 0o755 } else { 0o644 };
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
        .expect("one's own file has a mode one can set");
}
