//! A running `nodus-agent` with its own directories.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;
use tempfile::TempDir;

use crate::binaries::binary;
use crate::ctl::{Ctl, clear_environment, readable_by_all};
use crate::notify::NotifySocket;
use crate::running::{Running, signal_pid};
use crate::wait;

/// An agent before its first start: directories, and what its configuration adds to them.
#[derive(Debug)]
pub struct AgentConfig {
    home: TempDir,
    store: Option<PathBuf>,
    more: String,
    env: Vec<(String, String)>,
    umask: Option<u32>,
    runtime: &'static str,
}

impl Default for AgentConfig {
    fn default() -> Self {
        let home = TempDir::with_prefix("nodus-test-").expect("a temporary directory");
        // Jobs of other users live in it.
        readable_by_all(home.path());
        Self {
            home,
            store: None,
            more: String::new(),
            env: Vec::new(),
            umask: None,
            runtime: "run",
        }
    }
}

impl AgentConfig {
    /// The directory that everything of this agent is in.
    #[must_use]
    pub fn home(&self) -> &Path {
        self.home.path()
    }

    /// With the store somewhere else.
    #[must_use]
    pub fn store(mut self, store: &Path) -> Self {
        self.store = Some(store.to_owned());
        self
    }

    /// With a suspend that waits a second for an answer, and a second for the program's end.
    #[must_use]
    pub fn quick_suspend(self) -> Self {
        self.setting("suspend_timeout = \"1s\"").setting("stop_timeout = \"1s\"")
    }

    /// With another line in the table `agent` of its configuration.
    #[must_use]
    pub fn setting(mut self, line: &str) -> Self {
        self.more.push_str(line);
        self.more.push('\n');
        self
    }

    /// With another variable in its environment.
    #[must_use]
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    /// With its sockets at paths that are longer than a socket's may be.
    #[must_use]
    pub fn long_runtime_dir(mut self) -> Self {
        self.runtime = "a-directory-whose-name-is-so-long-that-no-socket-in-it-can-have-a-path-\
                        of-fewer-than-one-hundred-and-eight-bytes";
        self
    }

    /// With this umask.
    #[must_use]
    pub fn umask(mut self, umask: u32) -> Self {
        self.umask = Some(umask);
        self
    }

    /// Writes the configuration and starts it; returns once it is ready.
    #[must_use]
    pub fn start(self) -> Agent {
        let mut agent = self.stopped();
        agent.start();
        agent
    }

    /// Writes the configuration, without a start.
    #[must_use]
    pub fn stopped(self) -> Agent {
        let agent = Agent { config: self, running: None, notify: None };
        fs::write(agent.config_file(), agent.config_text()).expect("the home can be written");
        agent
    }
}

/// An agent, running or not, with its directories. Dropping it ends it and every process of its
/// jobs.
#[derive(Debug)]
pub struct Agent {
    config: AgentConfig,
    running: Option<Running>,
    notify: Option<NotifySocket>,
}

impl Agent {
    /// One with nothing special about it, ready.
    #[must_use]
    pub fn ready() -> Self {
        AgentConfig::default().start()
    }

    /// The directory that everything of this agent is in.
    #[must_use]
    pub fn home(&self) -> &Path {
        self.config.home()
    }

    /// Where its sockets are.
    #[must_use]
    pub fn runtime_dir(&self) -> PathBuf {
        self.home().join(self.config.runtime)
    }

    /// Where jobs, logs and history are.
    #[must_use]
    pub fn state_dir(&self) -> PathBuf {
        self.home().join("lib")
    }

    /// Where checkpoints are.
    #[must_use]
    pub fn store(&self) -> PathBuf {
        self.config.store.clone().unwrap_or_else(|| self.home().join("store"))
    }

    /// Where `nodusctl` finds it.
    #[must_use]
    pub fn control_socket(&self) -> PathBuf {
        self.runtime_dir().join("control.sock")
    }

    /// Its configuration file.
    #[must_use]
    pub fn config_file(&self) -> PathBuf {
        self.home().join("agent.toml")
    }

    fn config_text(&self) -> String {
        let quoted = |path: &Path| format!("{path:?}");
        format!(
            "[agent]\nruntime_dir = {}\nstate_dir = {}\n{}\n[store]\nurl = {}\n",
            quoted(&self.runtime_dir()),
            quoted(&self.state_dir()),
            self.config.more,
            quoted(&self.store())
        )
    }

    /// `nodusctl` for it.
    #[must_use]
    pub fn ctl(&self) -> Ctl {
        Ctl::of(self.home(), self.control_socket())
    }

    /// The command that starts it, without a notify socket.
    #[must_use]
    pub fn command(&self) -> Command {
        let agent = binary("nodus-agent");
        let mut command = match self.config.umask {
            None => Command::new(agent),
            Some(umask) => {
                let mut shell = Command::new("sh");
                shell.args(["-c", "umask \"$0\" && exec \"$@\"", &format!("{umask:04o}")]);
                shell.arg(agent);
                shell
            }
        };
        clear_environment(&mut command, self.home());
        command.envs(self.config.env.iter().map(|(name, value)| (name, value)));
        command.arg("--config").arg(self.config_file());
        command
    }

    /// Starts it and waits until it says that it is ready.
    pub fn start(&mut self) {
        self.start_unready();
        self.wait_ready();
    }

    /// Starts it; ready or not is for the test to find out.
    pub fn start_unready(&mut self) {
        assert!(self.running.is_none(), "the agent runs already");
        let notify = NotifySocket::new(&self.home().join("notify"));
        self.running = Some(Running::start(self.command().env("NOTIFY_SOCKET", notify.path())));
        self.notify = Some(notify);
    }

    /// Waits for `READY=1`.
    pub fn wait_ready(&mut self) {
        let (Some(notify), Some(running)) = (&self.notify, &mut self.running) else {
            panic!("the agent was not started");
        };
        wait::until("the agent to be ready", wait::LONG, || {
            if let Some(status) = running.ended_within(Duration::ZERO) {
                panic!("the agent ended with {status}: {}", running.stderr().join("\n"));
            }
            notify.wait_for("READY=1", Duration::from_millis(100))
        });
    }

    /// What it tells its service manager.
    #[must_use]
    pub fn notify(&self) -> &NotifySocket {
        self.notify.as_ref().expect("the agent was started")
    }

    /// Its process.
    #[must_use]
    pub fn process(&mut self) -> &mut Running {
        self.running.as_mut().expect("the agent runs")
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.running.as_ref().expect("the agent runs").pid()
    }

    /// What it logged since its last start.
    #[must_use]
    pub fn log(&self) -> String {
        let running = self.running.as_ref().expect("the agent runs");
        [running.stdout(), running.stderr()].concat().join("\n")
    }

    /// Waits until it has logged `text`.
    pub fn wait_for_log(&self, text: &str) {
        wait::until(&format!("{text:?} in the agent's log"), wait::LONG, || {
            self.log().contains(text)
        });
    }

    /// Kills it as the kernel does.
    pub fn kill_9(&mut self) {
        self.running.take().expect("the agent runs").kill_9();
    }

    /// Kills it and starts it again.
    pub fn kill_9_and_restart(&mut self) {
        self.kill_9();
        self.start();
    }

    /// Stops it as its service manager does, and waits until it is gone.
    pub fn stop(&mut self) -> std::process::ExitStatus {
        let mut running = self.running.take().expect("the agent runs");
        running.signal(Signal::TERM);
        running.ended_within(wait::LONG).expect("the agent stops when it is told to")
    }

    /// Where this job's events socket really is.
    #[must_use]
    pub fn events_socket(&self, job: &str) -> PathBuf {
        let name = Path::new(job).join("events.sock");
        let all = walkdir::WalkDir::new(self.runtime_dir()).into_iter().filter_map(Result::ok);
        let found = all.map(walkdir::DirEntry::into_path).find(|path| path.ends_with(&name));
        found.unwrap_or_else(|| panic!("no {} below {:?}", name.display(), self.runtime_dir()))
    }

    /// The processes that this agent and its jobs are made of, with their command lines.
    #[must_use]
    pub fn processes(&self) -> Vec<(u32, String)> {
        processes_of(self.home())
    }

    /// The shims among them.
    #[must_use]
    pub fn shims(&self) -> Vec<u32> {
        let shim = |(_, line): &(u32, String)| line.contains("__shim");
        self.processes().into_iter().filter(shim).map(|(pid, _)| pid).collect()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.running = None; // an agent that lives would start the next attempt
        kill_all(self.home());
    }
}

/// Ends every process that bears the mark of this test, until none is left.
pub(crate) fn kill_all(home: &Path) {
    for _ in 0..100 {
        let left = processes_of(home);
        if left.is_empty() {
            return;
        }
        for (pid, _) in left {
            signal_pid(pid, Signal::KILL);
        }
    }
}

/// The processes that have `home` in their environment or command line.
pub(crate) fn processes_of(home: &Path) -> Vec<(u32, String)> {
    let needle = home.as_os_str().as_encoded_bytes();
    let has = |bytes: &[u8]| bytes.windows(needle.len()).any(|window| window == needle);
    let own = std::process::id();
    let entries = fs::read_dir("/proc").expect("a mounted /proc");
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| *pid != own)
        .filter_map(|pid| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            let text = String::from_utf8_lossy(&line).replace('\0', " ");
            (!line.is_empty() && (has(&line) || has(&environment))).then_some((pid, text))
        })
        .collect()
}
