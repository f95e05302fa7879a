//! `run --standalone`: the engine in this process, with a terminal in front of it.

mod places;
mod signals;

use std::num::NonZeroUsize;
use std::path::Path;
use std::time::{Duration, Instant};

use nodus_agent::attempt::Output;
use nodus_agent::cadence::Prior;
use nodus_agent::engine::{ALONE_RECORDS, Caller, Refusal, Settings};
use nodus_agent::job::record::Owner;
use nodus_agent::job::{Ask, JobHandle};
use nodus_agent::standalone::{Begun, Standalone, layout};
use nodus_protocol::JobName;
use nodus_protocol::control::{CheckpointDone, JobDetail, JobEvent, TimedEvent};
use nodus_protocol::job::Phase;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::{RecvError, TryRecvError};
use tokio::task::JoinSet;

use self::places::directories;
use self::signals::{Signals, Wish, wish};
use super::run::submission;
use crate::args::Run;
use crate::console::{Console, Surroundings, note};
use crate::error::{Error, Result};
use crate::exit::{self, Exit};
use crate::render;

/// Between SIGTERM and SIGKILL when the program is stopped: short, since what it saved is safe by
/// then, and somebody waits or the capacity goes away.
const STOP_GRACE: Duration = Duration::from_secs(10);
/// How long a suspend waits for the program to save: longer than a slow step plus a large save.
const SUSPEND_TIMEOUT: Duration = Duration::from_secs(600);
/// What is assumed of somebody else's allocation before anything is known of it.
const PRIOR: Prior = Prior { mean: Duration::from_secs(72 * 3600), weight: 1.0 };
/// Beside what is kept of the job, since the next run may be on another node.
const HISTORY: &str = "interruptions.json";
/// Only what is to be acted on; events say the rest.
const DEFAULT_LOG: &str = "error";

/// Runs the job until it comes to rest.
pub(super) fn run(run: &Run, console: &Console, around: &Surroundings) -> Result<Exit> {
    let submit = submission(run, around)?;
    let settings = settings(run, &submit.spec.name, around)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(|source| Error::io("start", "the runtime", source))?;
    log(around);
    let mut teller = Teller { json: console.is_json(), verbose: run.verbose, begun: false };
    runtime.block_on(async {
        let mut signals =
            Signals::listen().map_err(|source| Error::io("listen for", "signals", source))?;
        let name = submit.spec.name.clone();
        match Standalone::begin(settings, &caller(), submit).await? {
            Begun::Succeeded(_) => {
                note(&format!("job/{name} has succeeded before; delete it to run it again"));
                Ok(Exit::DONE)
            }
            Begun::Running(standalone) => {
                let detail = watch(standalone, &mut signals, &mut teller, run.grace).await;
                Ok(end(&detail))
            }
        }
    })
}

fn settings(run: &Run, name: &JobName, around: &Surroundings) -> Result<Settings> {
    let places = directories(&run.places, around)?;
    let user_runtime = around.variable("XDG_RUNTIME_DIR").map(Path::new);
    let shim = std::env::current_exe();
    let processors = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let home = places.state_root.join(name.as_str());
    Ok(Settings {
        layout: layout(&places.state_root, name, user_runtime.filter(|dir| dir.is_absolute())),
        own_dirs: Vec::new(),
        history: Some(home.join(ALONE_RECORDS).join(HISTORY)),
        store: places.store,
        node: rustix::system::uname().nodename().to_string_lossy().into_owned(),
        shim: shim.map_err(|source| Error::io("find", "this executable", source))?,
        output: Output::Inherit,
        die_with_us: true,
        // The other half is the program's.
        threads: NonZeroUsize::new(processors / 2).unwrap_or(NonZeroUsize::MIN),
        stop_grace: STOP_GRACE,
        suspend_timeout: SUSPEND_TIMEOUT,
        prior: PRIOR,
        max_jobs: 1,
        max_jobs_per_user: 1,
    })
}

/// Whoever runs this process.
fn caller() -> Caller {
    let groups = rustix::process::getgroups().unwrap_or_default();
    let owner = Owner {
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        groups: groups.into_iter().map(rustix::process::Gid::as_raw).collect(),
    };
    Caller { owner, operator: false }
}

/// The log of the engine, for whoever looks for a fault: `NODUS_LOG=debug`.
fn log(around: &Surroundings) {
    let filter = around.variable("NODUS_LOG").and_then(|filter| filter.to_str());
    let filter = tracing_subscriber::EnvFilter::new(filter.unwrap_or(DEFAULT_LOG));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    // Only a second log in the same process is refused.
    let _ = log.with_ansi(false).try_init();
}

/// Tells what happens and passes signals on, until the job rests.
async fn watch(
    mut standalone: Standalone,
    signals: &mut Signals,
    teller: &mut Teller,
    grace: Duration,
) -> JobDetail {
    let mut events = standalone.events();
    let mut asked = JoinSet::new();
    let mut ending: Option<Instant> = None;
    let detail = {
        let rested = standalone.rested();
        tokio::pin!(rested);
        loop {
            tokio::select! {
                biased;
                event = events.recv() => match event {
                    Ok(event) => teller.tell(&event),
                    Err(RecvError::Lagged(missed)) => teller.missed(missed),
                    // The job's task is gone, so the job rests.
                    Err(RecvError::Closed) => break rested.await,
                },
                received = signals.next() => {
                    let ago = ending.map(|asked| asked.elapsed());
                    let Some(wish) = wish(received, ago, grace) else { continue };
                    if wish.is_end() {
                        ending.get_or_insert_with(Instant::now);
                    }
                    asked.spawn(fulfil(standalone.job().clone(), wish));
                }
                Some(answer) = asked.join_next(), if !asked.is_empty() => {
                    if let Ok(Err(refusal)) = answer {
                        note(&refusal.to_string());
                    }
                }
                detail = &mut rested => break detail,
            }
        }
    };
    standalone.close().await;
    // The job's task may have told its last after the state that we waited for was seen.
    teller.tell_rest(&mut events);
    detail
}

async fn fulfil(job: JobHandle, wish: Wish) -> Result<Option<CheckpointDone>, Refusal> {
    match wish {
        Wish::Suspend => job.ask(Ask::Suspend).await.map(Some),
        Wish::Stop => job.ask(Ask::Stop).await.map(Some),
        Wish::Reclaim(reclaim) => {
            job.tell_reclaim(reclaim).await;
            Ok(None)
        }
    }
}

/// The last line, where it says what to do, and the status.
fn end(detail: &JobDetail) -> Exit {
    let exit = exit::of_job(detail);
    if detail.info.phase == Phase::Suspended {
        note(match detail.info.latest_checkpoint {
            Some(_) => "the same command again goes on from the newest checkpoint",
            None => "nothing is stored yet: the same command again starts from the beginning",
        });
    }
    exit
}

/// Says what happens, one line an event.
struct Teller {
    json: bool,
    verbose: bool,
    /// Whether anything was told or left out already.
    begun: bool,
}

impl Teller {
    fn tell(&mut self, event: &TimedEvent) {
        let stale = !self.begun && is_rest(event);
        self.begun |= !stale;
        if stale || (render::is_trivial(&event.event) && !self.verbose) {
            return;
        }
        if self.json {
            if let Ok(line) = serde_json::to_string(event) {
                crate::console::say(&line);
            }
        } else if let Some(line) = render::event_line(event) {
            note(&line);
        }
    }

    fn missed(&self, events: u64) {
        note(&format!("{events} events are not shown"));
    }

    fn tell_rest(&mut self, events: &mut Receiver<TimedEvent>) {
        loop {
            match events.try_recv() {
                Ok(event) => self.tell(&event),
                Err(TryRecvError::Lagged(missed)) => self.missed(missed),
                Err(TryRecvError::Empty | TryRecvError::Closed) => return,
            }
        }
    }
}

/// Where the run before this one left the job, which is no news.
fn is_rest(event: &TimedEvent) -> bool {
    let rest = |phase: Phase| phase.is_finished() || phase == Phase::Suspended;
    matches!(event.event, JobEvent::Phase { phase, .. } if rest(phase))
}
