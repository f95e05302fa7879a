//! A node of its own: an engine in this process that can be stopped and started again.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nodus_agent::attempt::Output;
use nodus_agent::cadence::Prior;
use nodus_agent::engine::{Caller, Engine, Layout, Settings};
use nodus_agent::events::Limits;
use nodus_agent::job::record::Owner;
use nodus_protocol::JobName;
use nodus_protocol::control::{JobDetail, Submit};
use nodus_protocol::job::Phase;
use nodus_protocol::spec::JobSpec;
use serde_json::Value;

/// Longer than anything takes that works.
pub(crate) const LONG: Duration = Duration::from_secs(60);

pub(crate) struct Node {
    dir: tempfile::TempDir,
    pub(crate) engine: Engine,
}

impl Node {
    pub(crate) async fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let engine = Engine::start(settings(dir.path()), Limits::default()).await.unwrap();
        Self { dir, engine }
    }

    /// Ends the engine, changes what it has written down, and starts another one.
    pub(crate) async fn restart(&mut self, between: impl FnOnce(&Self)) {
        self.engine.close().await;
        between(self);
        let settings = settings(self.dir.path());
        self.engine = Engine::start(settings, Limits::default()).await.unwrap();
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn store(&self) -> PathBuf {
        self.path("store")
    }

    /// What the job sees as `/nodus/state`.
    pub(crate) fn state(&self, job: &str) -> PathBuf {
        self.path("lib").join(job).join("state")
    }

    /// Changes where the record says that a job is.
    pub(crate) fn set_standing(&self, job: &str, standing: Value) {
        let path = self.path("records").join(job).join("job.json");
        let mut record: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        record["standing"] = standing;
        std::fs::write(&path, record.to_string()).unwrap();
    }

    /// Submits a shell script; `recovery` is what its description says under that name.
    pub(crate) fn submit(&self, job: &str, script: &str, recovery: &str) {
        self.engine.submit(&caller(), submission(job, script, recovery)).unwrap();
    }

    pub(crate) fn detail(&self, job: &str) -> JobDetail {
        self.engine.detail(&caller(), &name(job)).unwrap()
    }

    pub(crate) async fn until(&self, job: &str, wanted: impl FnMut(&JobDetail) -> bool) {
        let handle = self.engine.job(&caller(), &name(job)).unwrap();
        let seen = tokio::time::timeout(LONG, handle.until(wanted)).await;
        assert!(matches!(seen, Ok(Some(_))), "{:#?}", handle.detail());
    }

    pub(crate) async fn until_phase(&self, job: &str, phase: Phase) {
        self.until(job, |detail| detail.info.phase == phase).await;
    }

    /// Waits until the job's program has written this into a file of its state.
    pub(crate) async fn until_written(&self, job: &str, file: &str, content: &str) {
        let path = self.state(job).join(file);
        let deadline = tokio::time::Instant::now() + LONG;
        loop {
            let found = std::fs::read_to_string(&path).unwrap_or_default();
            if found.trim() == content {
                return;
            }
            let late = tokio::time::Instant::now() > deadline;
            assert!(!late, "{file}: {found:?}, not {content:?}: {:#?}", self.detail(job));
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

pub(crate) fn name(job: &str) -> JobName {
    job.parse().unwrap()
}

pub(crate) fn caller() -> Caller {
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    Caller { owner: Owner { uid, gid, groups: vec![gid] }, operator: true }
}

pub(crate) fn submission(job: &str, script: &str, recovery: &str) -> Submit {
    let script = serde_json::to_string(script).unwrap();
    let yaml =
        format!("name: {job}\ncommand: [sh, -c, {script}]\nworkdir: /\nrecovery: {{{recovery}}}\n");
    let environment = [("PATH".to_owned(), "/usr/bin:/bin".to_owned())].into();
    Submit { spec: JobSpec::from_yaml(&yaml).unwrap(), environment }
}

fn settings(dir: &Path) -> Settings {
    Settings {
        layout: Layout::Node {
            state_root: dir.join("lib"),
            records: dir.join("records"),
            runtime: dir.join("jobs"),
        },
        own_dirs: Vec::new(),
        history: None,
        store: dir.join("store"),
        node: "test".to_owned(),
        shim: env!("CARGO_BIN_EXE_nodus-agent").into(),
        output: Output::Log,
        // The jobs of a test end with it, whether it passed or not.
        die_with_us: true,
        threads: NonZeroUsize::MIN,
        stop_grace: Duration::from_secs(5),
        suspend_timeout: Duration::from_secs(10),
        prior: Prior { mean: Duration::from_secs(3600), weight: 1.0 },
        max_jobs: 10,
        max_jobs_per_user: 10,
    }
}
