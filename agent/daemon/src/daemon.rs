//! The node's agent as a service: sockets, readiness, signals and the order of stopping.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use nodus_protocol::checkpoint::Cause;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::attempt::Output;
use crate::cadence::Prior;
use crate::config::Settings;
use crate::control;
use crate::engine::{self, Engine, Layout};
use crate::events::Via;
use crate::job::Reclaim;
use crate::job::place::EVENTS_SOCKET;
use crate::socket::{Bound, Owner, Place};
use crate::systemd::Notifier;

/// The control socket's name in the runtime directory.
pub const CONTROL_SOCKET: &str = "control.sock";

/// How long jobs may save when the node shuts down; the shipped unit's stop timeout is longer.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(90);

/// How long connections have to end.
const CLOSE_GRACE: Duration = Duration::from_secs(5);

/// How long the service manager may take to say whether the system goes down.
const ASK_MANAGER: Duration = Duration::from_secs(3);

/// Serves until told to stop; jobs go on without us.
///
/// # Errors
/// Where the sockets cannot be bound or the records not be read.
pub async fn run(settings: Settings, shim: PathBuf) -> anyhow::Result<()> {
    let notifier = Notifier::from_environment();
    let mut stopping = Stopping::listen()?;
    let stop = CancellationToken::new();
    let tasks = TaskTracker::new();

    let events = Bound::bind(events_place(&settings)).await.context("cannot serve programs")?;
    let control = Bound::bind(control_place(&settings)?).await.context("cannot serve nodusctl")?;
    let engine = Engine::start(engine_settings(&settings, shim), settings.events_limits()).await?;
    let hub = engine.shared().hub.clone();
    let common = (hub.clone(), stop.clone());
    tasks.spawn(async move { common.0.serve(events, Via::Common, common.1).await });
    let options = control::Options::from(&settings);
    tasks.spawn(control::serve(engine.clone(), control, options, stop.clone()));
    let watched = engine.clone();
    tasks.spawn(notifier.clone().watchdog(move || probe(watched.clone()), stop.clone()));

    notifier.ready("serving jobs");
    tracing::info!(runtime = %settings.runtime_dir.display(), "ready");

    stopping.wait().await;
    notifier.stopping();
    if node_shuts_down().await {
        tracing::warn!("the node shuts down: saving all jobs");
        notifier.extend_timeout(SHUTDOWN_GRACE + CLOSE_GRACE);
        let reclaim = Reclaim {
            cause: Cause::Shutdown,
            ..Reclaim::notice("shutdown of the node", Some(SHUTDOWN_GRACE))
        };
        let _ = tokio::time::timeout(SHUTDOWN_GRACE, engine.reclaim(&reclaim)).await;
    }
    stop.cancel();
    engine.close().await;
    hub.close(CLOSE_GRACE).await;
    tasks.close();
    if tokio::time::timeout(CLOSE_GRACE, tasks.wait()).await.is_err() {
        tracing::warn!(unfinished = tasks.len(), "connections still busy after the grace period");
    }
    tracing::info!("stopped; running jobs go on");
    Ok(())
}

/// A round through what the agent needs to do anything at all.
async fn probe(engine: Engine) {
    engine.touch().await;
}

fn events_place(settings: &Settings) -> Place {
    Place {
        path: settings.runtime_dir.join(EVENTS_SOCKET),
        // Whose a process is decides the kernel, not the mode.
        mode: 0o666,
        owner: None,
        dir_mode: 0o755,
    }
}

/// The operators' group owns the socket, so that a mode of 0660 lets them in and nobody else.
fn control_place(settings: &Settings) -> anyhow::Result<Place> {
    let owner = match &settings.operators {
        None => None,
        Some(name) => {
            let group = nix::unistd::Group::from_name(name)?;
            let group = group.with_context(|| format!("agent.operators: no group {name:?}"))?;
            let uid = rustix::process::geteuid().as_raw();
            Some(Owner { uid, gid: group.gid.as_raw() })
        }
    };
    Ok(Place {
        path: settings.runtime_dir.join(CONTROL_SOCKET),
        mode: settings.socket_mode,
        owner,
        dir_mode: 0o755,
    })
}

fn engine_settings(settings: &Settings, shim: PathBuf) -> engine::Settings {
    let processors = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    engine::Settings {
        layout: Layout::Node {
            state_root: settings.state_dir.join("jobs"),
            records: settings.state_dir.join("records"),
            runtime: settings.runtime_dir.join("jobs"),
        },
        history: Some(settings.state_dir.join("node/interruptions.json")),
        own_dirs: vec![
            settings.runtime_dir.clone(),
            settings.state_dir.join("records"),
            settings.state_dir.join("node"),
        ],
        store: settings.store.clone(),
        node: node_name(),
        shim,
        output: Output::Log,
        die_with_us: false,
        threads: NonZeroUsize::new(settings.copy_threads(processors)).unwrap_or(NonZeroUsize::MIN),
        stop_grace: settings.stop_timeout,
        suspend_timeout: settings.suspend_timeout,
        prior: Prior {
            mean: settings.priors.mean(settings.capacity),
            weight: settings.priors.weight,
        },
        max_jobs: settings.limits.jobs,
        max_jobs_per_user: settings.limits.jobs_per_user,
    }
}

/// The name under which this node's epochs are known.
#[must_use]
pub fn node_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Whatever asks the agent to stop.
struct Stopping {
    term: Signal,
    int: Signal,
}

impl Stopping {
    fn listen() -> anyhow::Result<Self> {
        let listen = |kind| signal(kind).context("cannot listen for signals");
        Ok(Self { term: listen(SignalKind::terminate())?, int: listen(SignalKind::interrupt())? })
    }

    async fn wait(&mut self) {
        tokio::select! {
            _ = self.term.recv() => {}
            _ = self.int.recv() => {}
        }
    }
}

/// Whether we are stopped because the node is: then the attempts will not outlive us.
async fn node_shuts_down() -> bool {
    if !Path::new("/run/systemd/system").is_dir() {
        return false;
    }
    let asked = tokio::process::Command::new("systemctl").arg("is-system-running").output();
    match tokio::time::timeout(ASK_MANAGER, asked).await {
        Ok(Ok(output)) => output.stdout.trim_ascii() == b"stopping",
        _ => false,
    }
}

/// What systemd and the sockets need of every process that runs jobs: as many descriptors as it
/// may have, since large files stay open while they are copied.
pub fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        tracing::warn!(%error, "cannot raise the limit of open files");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_operators_own_the_control_socket() {
        let settings = |operators: Option<&str>| Settings {
            operators: operators.map(str::to_owned),
            ..Settings::default()
        };
        assert_eq!(control_place(&settings(None)).unwrap().owner, None);
        let group = nix::unistd::Group::from_gid(0.into()).unwrap().unwrap();
        let place = control_place(&settings(Some(&group.name))).unwrap();
        assert_eq!(place.owner.map(|owner| owner.gid), Some(0));
        let error = control_place(&settings(Some("no-such-group"))).unwrap_err();
        assert!(error.to_string().contains("\"no-such-group\""), "{error}");
    }
}
