//! Every setting with its value, and the defaults with their reasons.

use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;
use std::time::Duration;

use super::file::{Capacity, Fragment, LimitsSection, Threads};
use crate::events;

/// Where the configuration is looked for.
pub const DEFAULT_FILE: &str = "/etc/nodus/agent.toml";

/// Programs look for `/run/nodus/events.sock` where nothing else is said.
const DEFAULT_RUNTIME_DIR: &str = "/run/nodus";

/// The service manager makes and keeps it (`StateDirectory=nodus`).
const DEFAULT_STATE_DIR: &str = "/var/lib/nodus";

/// The store's directory inside the state directory.
const DEFAULT_STORE: &str = "store";

/// What an operator reads after the fact: phases, checkpoints, refusals.
const DEFAULT_LOG: &str = "info";

/// Kubernetes and Slurm give programs 30 s as well, so most that handle SIGTERM fit into it.
const DEFAULT_STOP_TIMEOUT: Duration = Duration::from_secs(30);

/// As long as a regular checkpoint waits by default (`ackTimeout`): an epoch's end or an evaluation
/// may lie between two steps.
const DEFAULT_SUSPEND_TIMEOUT: Duration = Duration::from_secs(600);

/// Every user may run jobs; whose they are is checked for each request.
const DEFAULT_SOCKET_MODE: u32 = 0o666;

/// Busy spot pools take a node back a few times a day. Too short costs little, since the cost bound
/// of the cadence holds anyway; too long costs work.
const DEFAULT_SPOT_MEAN: Duration = Duration::from_hours(8);

/// Failures and unplanned reboots together take a node out about once a month.
const DEFAULT_ON_DEMAND_MEAN: Duration = Duration::from_hours(30 * 24);

/// About the geometric middle of the two.
const DEFAULT_UNKNOWN_MEAN: Duration = Duration::from_hours(72);

/// The prior counts as much as one interruption that was seen, so the node's own record soon wins.
const DEFAULT_PRIOR_WEIGHT: f64 = 1.0;

/// A job costs some tens of KiB in the agent; a node runs dozens and remembers finished ones.
const DEFAULT_JOBS: NonZeroU32 = NonZeroU32::new(1000).unwrap();

/// So that one user's loop does not take the node's jobs from the others.
const DEFAULT_JOBS_PER_USER: NonZeroU32 = NonZeroU32::new(200).unwrap();

/// Room for a job description with a large environment.
const DEFAULT_REQUEST_BODY: u64 = 4 << 20;

/// The configuration in force.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Sockets and what need not outlive a reboot.
    pub runtime_dir: PathBuf,
    /// Jobs, their own directories and logs.
    pub state_dir: PathBuf,
    /// A filter as `tracing` reads it.
    pub log: String,
    /// Threads for copying; see [`Settings::copy_threads`].
    pub threads: Threads,
    /// From SIGTERM to SIGKILL when an attempt is stopped.
    pub stop_timeout: Duration,
    /// How long a suspend waits for the ack.
    pub suspend_timeout: Duration,
    /// The group whose members see and control every job.
    pub operators: Option<String>,
    /// The mode of the control socket.
    pub socket_mode: u32,
    /// The directory that checkpoints go to.
    pub store: PathBuf,
    /// What kind of capacity the node is.
    pub capacity: Capacity,
    /// What is assumed of each kind.
    pub priors: Priors,
    /// The bounds of what the agent holds.
    pub limits: Limits,
}

/// Mean times between interruptions that are assumed before the node has a record.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Priors {
    /// Of spot capacity.
    pub spot: Duration,
    /// Of on-demand capacity.
    pub on_demand: Duration,
    /// Where nobody said.
    pub unknown: Duration,
    /// How many interruptions the assumption counts for.
    pub weight: f64,
}

impl Priors {
    /// The one for a kind of capacity.
    #[must_use]
    pub fn mean(&self, capacity: Capacity) -> Duration {
        match capacity {
            Capacity::Spot => self.spot,
            Capacity::OnDemand => self.on_demand,
            Capacity::Unknown => self.unknown,
        }
    }
}

/// The bounds of what the agent holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Jobs of all users, finished ones included.
    pub jobs: usize,
    /// Jobs of one user.
    pub jobs_per_user: usize,
    /// Connections to the events sockets.
    pub connections: usize,
    /// Connections to the events sockets of one job.
    pub connections_per_job: usize,
    /// Bytes of a request to the control API.
    pub request_body: usize,
}

impl Settings {
    /// How many threads copy, of the processors that the agent may use.
    #[must_use]
    pub fn copy_threads(&self, processors: NonZeroUsize) -> usize {
        match self.threads {
            Threads::Auto => (processors.get() / 2).max(1),
            Threads::Count(count) => wide(count).min(processors.get()),
        }
    }

    /// The limits of the events server.
    #[must_use]
    pub fn events_limits(&self) -> events::Limits {
        events::Limits {
            connections: self.limits.connections,
            connections_per_job: self.limits.connections_per_job,
            ..events::Limits::default()
        }
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self::from(Fragment::default())
    }
}

impl From<Fragment> for Settings {
    fn from(Fragment { agent, store, cadence, limits }: Fragment) -> Self {
        let state_dir = agent.state_dir.unwrap_or_else(|| DEFAULT_STATE_DIR.into());
        Self {
            runtime_dir: agent.runtime_dir.unwrap_or_else(|| DEFAULT_RUNTIME_DIR.into()),
            log: agent.log.unwrap_or_else(|| DEFAULT_LOG.to_owned()),
            threads: agent.threads.unwrap_or(Threads::Auto),
            stop_timeout: agent.stop_timeout.unwrap_or(DEFAULT_STOP_TIMEOUT),
            suspend_timeout: agent.suspend_timeout.unwrap_or(DEFAULT_SUSPEND_TIMEOUT),
            operators: agent.operators.filter(|group| !group.is_empty()),
            socket_mode: agent.socket_mode.unwrap_or(DEFAULT_SOCKET_MODE),
            store: store.url.unwrap_or_else(|| state_dir.join(DEFAULT_STORE)),
            capacity: cadence.capacity.unwrap_or(Capacity::Unknown),
            priors: Priors {
                spot: cadence.spot_mean.unwrap_or(DEFAULT_SPOT_MEAN),
                on_demand: cadence.on_demand_mean.unwrap_or(DEFAULT_ON_DEMAND_MEAN),
                unknown: cadence.unknown_mean.unwrap_or(DEFAULT_UNKNOWN_MEAN),
                weight: cadence.prior_weight.unwrap_or(DEFAULT_PRIOR_WEIGHT),
            },
            limits: limits.into(),
            state_dir,
        }
    }
}

impl From<LimitsSection> for Limits {
    fn from(limits: LimitsSection) -> Self {
        let events = events::Limits::default();
        Self {
            jobs: wide(limits.jobs.unwrap_or(DEFAULT_JOBS)),
            jobs_per_user: wide(limits.jobs_per_user.unwrap_or(DEFAULT_JOBS_PER_USER)),
            connections: limits.connections.map_or(events.connections, wide),
            connections_per_job: limits
                .connections_per_job
                .map_or(events.connections_per_job, wide),
            request_body: usize::try_from(limits.request_body.unwrap_or(DEFAULT_REQUEST_BODY))
                .unwrap_or(usize::MAX),
        }
    }
}

fn wide(number: NonZeroU32) -> usize {
    usize::try_from(number.get()).unwrap_or(usize::MAX)
}
