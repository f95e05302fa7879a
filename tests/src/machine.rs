//! A machine with a real systemd, in which the shipped files are installed.

use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::binaries::{binary, source};
use crate::ctl::Done;
use crate::running::Running;
use crate::wait;

/// A booted machine; removed when dropped.
#[derive(Debug)]
pub struct Machine {
    home: TempDir,
}

/// What the packages install, and where.
const INSTALLED: [(&str, &str); 4] = [
    ("packaging/agent.toml", "etc/nodus/agent.toml"),
    ("packaging/systemd/nodus-agent.service", "usr/lib/systemd/system/nodus-agent.service"),
    ("packaging/systemd/nodus.sysusers", "usr/lib/sysusers.d/nodus.conf"),
    ("packaging/systemd/nodus.tmpfiles", "usr/lib/tmpfiles.d/nodus.conf"),
];

impl Machine {
    /// Boots one, and installs Nodus in it without starting it.
    #[must_use]
    pub fn boot() -> Self {
        let machine = Self { home: TempDir::with_prefix("nodus-box-").expect("a directory") };
        machine.script("boot");
        for name in ["nodus-agent", "nodusctl"] {
            machine.install(&binary(name), &format!("usr/bin/{name}"));
        }
        for (from, to) in INSTALLED {
            machine.install(&source(from), to);
        }
        machine.install(&source("examples/resume/train.py"), "opt/nodus/train.py");
        machine.exec(&["systemd-sysusers"]).ok();
        machine.exec(&["systemd-tmpfiles", "--create", "nodus.conf"]).ok();
        machine.exec(&["systemctl", "daemon-reload"]).ok();
        machine
    }

    fn directory(&self) -> PathBuf {
        self.home.path().join("box")
    }

    /// Its root directory, seen from out here; still there once it is off.
    #[must_use]
    pub fn root(&self) -> PathBuf {
        self.directory().join("root")
    }

    fn install(&self, from: &Path, to: &str) {
        let to = self.root().join(to);
        let parent = to.parent().expect("it is installed in a directory");
        std::fs::create_dir_all(parent).expect("the machine's disk can be written");
        std::fs::copy(from, &to).unwrap_or_else(|error| panic!("{}: {error}", from.display()));
    }

    /// Adds settings to the unit, as an administrator does.
    pub fn override_unit(&self, settings: &str) {
        let directory = self.root().join("etc/systemd/system/nodus-agent.service.d");
        std::fs::create_dir_all(&directory).expect("the machine's disk can be written");
        std::fs::write(directory.join("test.conf"), settings).expect("as above");
        self.exec(&["systemctl", "daemon-reload"]).ok();
    }

    /// Starts a command inside.
    #[must_use]
    pub fn start(&self, args: &[&str]) -> Running {
        let mut command = Command::new(source("tests/systemd/box"));
        command.arg("exec").arg(self.directory());
        command.args([
            "env",
            "-i",
            "PATH=/usr/bin:/bin:/usr/sbin:/sbin",
            "LANG=C.UTF-8",
            "HOME=/root",
        ]);
        Running::start(command.args(args))
    }

    /// Runs a command inside to its end.
    pub fn exec(&self, args: &[&str]) -> Done {
        Done::of(args.join(" "), &mut self.start(args))
    }

    /// A property of the agent's unit.
    #[must_use]
    pub fn unit(&self, property: &str) -> String {
        let show = ["systemctl", "show", "nodus-agent", "--value", "--property", property];
        self.exec(&show).ok().stdout.trim().to_owned()
    }

    /// What `describe` says of a job.
    #[must_use]
    pub fn describe(&self, job: &str) -> serde_json::Value {
        self.exec(&["nodusctl", "describe", job, "-o", "json"]).ok().json()
    }

    /// What the program of this attempt printed.
    #[must_use]
    pub fn log(&self, job: &str, attempt: &str) -> String {
        self.exec(&["nodusctl", "logs", "--attempt", attempt, job]).ok().stdout
    }

    /// Submits the example.
    pub fn submit_example(&self, name: &str, steps: u64) {
        let steps = format!("STEPS={steps}");
        let options = ["--env", &steps, "--env", "STEP_SECONDS=0.1"];
        let head = ["nodusctl", "run", "--name", name, "-d"];
        let program = ["--", "/usr/bin/python3", "/opt/nodus/train.py"];
        self.exec(&[&head[..], &options[..], &program[..]].concat()).ok();
    }

    /// Waits until the log of the first attempt has this text.
    pub fn wait_for_log(&self, job: &str, text: &str) {
        wait::until(&format!("{text:?} in the log of {job}"), wait::LONG, || {
            let done = self.exec(&["nodusctl", "logs", "--attempt", "1", job]);
            done.status == 0 && done.stdout.contains(text)
        });
    }

    /// Waits until a job is in this phase.
    pub fn wait_for_phase(&self, job: &str, phase: &str) {
        wait::until(&format!("{job} to be {phase}"), wait::LONG, || {
            self.describe(job)["phase"] == phase
        });
    }

    /// Shuts it down as a node is shut down.
    pub fn shut_down(&self) {
        self.script("off");
    }

    fn script(&self, verb: &str) {
        let mut command = Command::new(source("tests/systemd/box"));
        let output = command.arg(verb).arg(self.directory()).output().expect("bash is there");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "box {verb}: {said}");
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let mut command = Command::new(source("tests/systemd/box"));
        let _ = command.arg("remove").arg(self.directory()).status();
    }
}
