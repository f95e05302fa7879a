//! A job whose program is a puppet.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::{Agent, Ctl, Events, Puppet, Puppets, Running, wait};

/// A job whose processes are puppets, attempt after attempt.
#[derive(Debug)]
pub struct Job {
    name: String,
    ctl: Ctl,
    home: PathBuf,
    puppets: Puppets,
}

impl Job {
    /// Submits a job that is not tried again when its program fails, and returns its first process.
    /// `checkpoint` is what its description says under `recovery.checkpoint`.
    #[must_use]
    pub fn start(agent: &Agent, name: &str, checkpoint: &str) -> (Self, Puppet) {
        Self::with_recovery(agent, name, &format!("maxRetries: 0, checkpoint: {{{checkpoint}}}"))
    }

    /// The same with everything that its description says under `recovery`.
    #[must_use]
    pub fn with_recovery(agent: &Agent, name: &str, recovery: &str) -> (Self, Puppet) {
        let puppets = Puppets::listen(agent.home(), name);
        let job =
            Self { name: name.to_owned(), ctl: agent.ctl(), home: agent.home().into(), puppets };
        let puppet = job.submit(recovery);
        (job, puppet)
    }

    /// Submits it, also again once its agent has forgotten it, and returns its first process.
    #[must_use]
    pub fn submit(&self, recovery: &str) -> Puppet {
        let variable = self.puppets.variable();
        let (key, value) = variable.split_once('=').expect("a variable");
        let description = format!(
            "name: {}\ncommand: [{:?}]\nenv: {{{key}: {value:?}}}\nrecovery: {{{recovery}}}\n",
            self.name,
            Puppets::program()
        );
        self.ctl.submit_yaml(&description).ok();
        self.next_running()
    }

    /// The next process of the job, once the agent knows that it runs, which the process itself does
    /// first.
    fn next_running(&self) -> Puppet {
        let puppet = self.next_process();
        self.wait_for_phase("Running");
        puppet
    }

    /// The next process of the job that announces itself: of a later attempt, or a child.
    #[must_use]
    pub fn next_process(&self) -> Puppet {
        self.puppets.accept()
    }

    /// Where its processes announce themselves.
    #[must_use]
    pub fn puppets(&self) -> &Puppets {
        &self.puppets
    }

    /// `nodusctl` for its agent.
    #[must_use]
    pub fn ctl(&self) -> &Ctl {
        &self.ctl
    }

    /// What `describe` says of it.
    #[must_use]
    pub fn describe(&self) -> Value {
        self.ctl.describe(&self.name)
    }

    /// Asks for a checkpoint, without waiting for it.
    #[must_use]
    pub fn ask(&self) -> Running {
        self.ctl.start(&["checkpoint", "now", &self.name, "-o", "json"])
    }

    /// Asks for a checkpoint, which must be stored; its number.
    pub fn checkpoint_now(&self) -> u64 {
        self.ctl.checkpoint_now(&self.name)
    }

    /// Asks for a checkpoint to which this client answers at once, and waits for its end.
    pub fn ask_and_answer(&self, events: &mut Events) {
        let asked = self.ask();
        let seq = events.expect_request();
        events.ack(seq);
        events.expect("checkpoint.committed");
        stored(asked);
    }

    /// What `checkpoint list` says of this one.
    #[must_use]
    pub fn checkpoint(&self, seq: u64) -> Value {
        self.ctl.checkpoint(&self.name, seq)
    }

    /// The newest in `checkpoint list`, stored or not.
    #[must_use]
    pub fn newest(&self) -> Value {
        let all = self.ctl.checkpoints(&self.name);
        all.into_iter().next_back().expect("one was tried")
    }

    /// The numbers of the checkpoints that exist.
    #[must_use]
    pub fn stored(&self) -> Vec<u64> {
        self.ctl.stored(&self.name)
    }

    /// Suspends it, which must succeed.
    pub fn suspend(&self) {
        self.ctl.run(&["suspend", &self.name]).ok();
    }

    /// Resumes it, and returns the process of the next attempt.
    #[must_use]
    pub fn resume(&self) -> Puppet {
        self.ctl.run(&["resume", &self.name]).ok();
        self.next_running()
    }

    /// Restores this checkpoint into a new directory.
    #[must_use]
    pub fn restored(&self, seq: u64) -> PathBuf {
        let to = self.home.join(format!("{}-restored-{seq}", self.name));
        let _ = fs::remove_dir_all(&to);
        let text = to.to_str().expect("a temporary directory has a plain name");
        self.ctl.run(&["restore", &self.name, "--seq", &seq.to_string(), "--to", text]).ok();
        to
    }

    /// What is in this file of this checkpoint.
    #[must_use]
    pub fn restored_file(&self, seq: u64, name: &str) -> String {
        fs::read_to_string(self.restored(seq).join(name)).expect("the checkpoint has the file")
    }

    /// Waits until this many connections have subscribed.
    pub fn wait_for_subscribers(&self, count: u32) {
        wait::until(&format!("{count} subscribers of {}", self.name), wait::LONG, || {
            self.describe()["subscribers"] == count
        });
    }

    /// Waits until it is in this phase.
    pub fn wait_for_phase(&self, phase: &str) {
        self.ctl.wait_for_phase(&self.name, phase);
    }

    /// Its state directory on this node.
    #[must_use]
    pub fn state_dir(&self) -> PathBuf {
        self.ctl.state_dir(&self.name)
    }

    /// Where its checkpoints are in a store.
    #[must_use]
    pub fn directory_in(&self, store: &Path) -> PathBuf {
        store.join("jobs").join(&self.name)
    }
}

/// The end of a command that asked for a checkpoint and must have got it.
pub fn stored(mut asked: Running) -> Value {
    assert_eq!(asked.ends().code(), Some(0), "{:?} {:?}", asked.stdout(), asked.stderr());
    serde_json::from_str(&asked.stdout().join("\n")).expect("JSON was asked for")
}
