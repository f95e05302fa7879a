//! An engine with its control socket, in this process.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use nodus_agent::attempt::Output;
use nodus_agent::cadence::Prior;
use nodus_agent::control::{self, Options};
use nodus_agent::engine::{Engine, Layout, Settings};
use nodus_agent::events::Limits;
use nodus_agent::socket::{Bound, Place};
use nodus_protocol::control::JobDetail;
use nodus_protocol::job::Phase;
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::client::{Client, bounded};

/// The largest body that is read.
pub(crate) const BODY: usize = 100_000;

const SOON: Duration = Duration::from_secs(30);

pub(crate) struct Agent {
    dir: tempfile::TempDir,
    stop: CancellationToken,
    serving: Mutex<Option<JoinHandle<()>>>,
}

impl Agent {
    pub(crate) async fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        open_to_all(dir.path());
        let engine = Engine::start(settings(dir.path()), Limits::default()).await.unwrap();
        let place = Place {
            path: dir.path().join("run/control.sock"),
            mode: 0o666,
            owner: None,
            dir_mode: 0o755,
        };
        let bound = Bound::bind(place).await.unwrap();
        let stop = CancellationToken::new();
        let options = Options { operators: None, request_body: BODY };
        let serving = tokio::spawn(control::serve(engine, bound, options, stop.clone()));
        Self { dir, stop, serving: Mutex::new(Some(serving)) }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.path("run/control.sock")
    }

    pub(crate) async fn client(&self) -> Client {
        Client::connect(&self.socket()).await
    }

    pub(crate) fn client_of_another_user(&self) -> Client {
        Client::of_another_user(&self.socket())
    }

    /// What is posted to run a script as a job.
    pub(crate) fn submission(&self, name: &str, script: &str) -> Value {
        json!({
            "spec": {
                "name": name,
                "command": ["sh", "-c", script],
                "workdir": "/",
            },
            "environment": {"PATH": "/usr/bin:/bin"},
        })
    }

    /// What the job sees as `/nodus/state`.
    pub(crate) fn state_dir(&self, job: &str) -> PathBuf {
        self.path("lib").join(job).join("state")
    }

    /// Waits until the job's program has saved, and the agent knows that it runs: the program can
    /// be faster.
    pub(crate) async fn until_saved(&self, job: &str) {
        let file = self.state_dir(job).join("w");
        until("the job has saved", || std::fs::read(&file).is_ok_and(|found| !found.is_empty()))
            .await;
        let (path, mut client) = (format!("/v1/jobs/{job}"), self.client().await);
        let deadline = Instant::now() + SOON;
        while client.get(&path).await.json::<JobDetail>().info.phase != Phase::Running {
            assert!(Instant::now() < deadline, "waited in vain until {job} is said to run");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Stops serving; the jobs go on.
    pub(crate) async fn stop(&self) {
        self.stop.cancel();
        let serving = self.serving.lock().unwrap().take();
        bounded(serving.expect("is stopped once")).await.unwrap();
    }
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

fn open_to_all(path: &Path) {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

pub(crate) async fn until(what: &str, mut there: impl FnMut() -> bool) {
    let deadline = Instant::now() + SOON;
    while !there() {
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
