//! Starting the attempts of a job.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nodus_checkpoint::error::chain;
use nodus_checkpoint::process::OpenFiles;
use nodus_checkpoint::store::Epoch;
use nodus_protocol::control::{AttemptInfo, JobEvent};
use nodus_protocol::event::FromProgram;
use nodus_protocol::job::AttemptEnd;

use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::copying::FILES_NOT_STORED;
use super::ending::watch;
use super::lifecycle;
use super::place::{Place, Sight, Surroundings, copies_files};
use super::preparing::Prepared;
use super::record::AttemptRecord;
use super::task::{JobTask, Note};
use super::timestamp;
use crate::attempt::{self, Plan, Running, StartError, UserIds, View};
use crate::coordinator;

/// How long the rest of a log may take to be looked through for events.
const LAST_LINES: Duration = Duration::from_secs(10);

/// An attempt whose program runs.
pub(super) struct Live {
    pub(super) running: Arc<Running>,
    pub(super) since: Instant,
    /// Files under the job's paths that were open for writing when the program was told to end.
    pub(super) writing_when_told: OpenFiles,
    /// The notice that ends it, where there is one.
    pub(super) deadline: Option<Instant>,
}

impl JobTask {
    /// Writes down that the attempt exists, then starts its program.
    pub(super) fn prepared(&mut self, prepared: Prepared) {
        for over in ["StoreUnavailable", "Fenced", FILES_NOT_STORED] {
            self.conditions.remove(over);
        }
        self.tries = 0;
        self.record.unsaved = None;
        for warning in prepared.warnings {
            self.warn(warning);
        }
        let number = self.record.attempt_number() + 1;
        self.record.next_seq = prepared.next_seq;
        let info = AttemptInfo {
            number,
            started: timestamp(),
            ended: None,
            end: None,
            restored_from: prepared.restored_from,
            restore_reason: prepared.restore_reason,
        };
        let epoch = prepared.epoch.as_ref().map_or(0, Epoch::number);
        let cursor = self.record.progress.map(|progress| progress.completed);
        let forgotten = self.record.attempt_started(AttemptRecord::new(info, epoch, cursor));
        if let Some(forgotten) = forgotten {
            let dir = attempt_dir(&self.place, forgotten);
            // Its log is all that it holds; where it stays, it is only room.
            tokio::task::spawn_blocking(move || std::fs::remove_dir_all(dir));
        }
        self.epoch = prepared.epoch;
        self.coordinator = coordinator::Coordinator::new(
            self.record.next_seq,
            (&self.record.spec.recovery.checkpoint).into(),
        );
        self.save();
        self.launch(number, prepared.restored_from.is_some());
    }

    fn launch(&self, number: u32, restored: bool) {
        self.shared.members.expect(&self.name);
        let own = self.shared.private_views;
        let plans = [own.then_some(Sight::Own), Some(Sight::Node)]
            .into_iter()
            .flatten()
            .map(|sight| self.plan(number, restored, sight))
            .collect();
        let post = self.post.clone();
        tokio::spawn(async move {
            let started = start_first(plans).await;
            let _ = post.send(Note::Started(Box::new(started))).await;
        });
    }

    fn plan(&self, number: u32, restored: bool, sight: Sight) -> Plan {
        let settings = &self.shared.settings;
        let spec = &self.record.spec;
        let surroundings = Surroundings {
            spec,
            submitted: &self.record.environment,
            place: &self.place,
            sight,
            attempt: number,
            restored,
            cursor: self.record.progress,
        };
        let owner = &self.record.owner;
        let user = rustix::process::geteuid().is_root().then(|| UserIds {
            uid: owner.uid,
            gid: owner.gid,
            groups: owner.groups.clone(),
        });
        Plan {
            dir: attempt_dir(&self.place, number),
            shim: settings.shim.clone(),
            command: spec.command.clone(),
            env: surroundings.environment(),
            workdir: spec.workdir.clone().unwrap_or_else(|| self.place.home.clone()),
            output: settings.output,
            user,
            view: match sight {
                Sight::Own => View::Private { binds: self.place.binds(spec) },
                Sight::Node => View::Host,
            },
            die_with_parent: settings.die_with_us,
            cgroup: rustix::process::geteuid().is_root() && !settings.die_with_us,
            cpu: spec.cpu,
            stop_grace: settings.stop_grace,
        }
    }

    pub(super) fn started(&mut self, result: Result<Live, String>) {
        match result {
            Ok(live) => {
                self.attach(live);
                let attempt = self.record.attempt().map(|attempt| attempt.info.clone());
                if let Some(info) = attempt {
                    self.emit(JobEvent::AttemptStarted {
                        attempt: info.number,
                        restored_from: info.restored_from,
                        restore_reason: info.restore_reason,
                    });
                }
                self.live_on(lifecycle::Event::Started);
                self.plan_checkpoint();
            }
            Err(message) => {
                self.shared.members.remove(&self.name);
                self.record.message = Some(message.clone());
                self.warn(message);
                self.attempt_over(AttemptEnd::NotStarted, timestamp());
                self.live_on(lifecycle::Event::NotStarted);
            }
        }
    }

    /// Takes a running attempt under this task's care.
    pub(super) fn attach(&mut self, live: Live) {
        let running = Arc::clone(&live.running);
        self.shared.members.insert(&self.name, Arc::clone(&running));
        self.expect_checkpoints();
        self.last_checkpoint = None;
        self.live = Some(live);
        self.log_ended = CancellationToken::new();
        self.wakes.limit = self.time_limit();
        let log = self.follow_log(&running);
        let (ended, post) = (self.log_ended.clone(), self.post.clone());
        tokio::spawn(async move {
            let (end, at) = watch(&running).await;
            // What it printed last is known before its end is.
            ended.cancel();
            if let Some(log) = log {
                let _ = tokio::time::timeout(LAST_LINES, log).await;
            }
            let _ = post.send(Note::Ended(end, at)).await;
        });
    }

    /// Has the files of the attempt captured when it ends, and whenever that is asked for; not of a
    /// job whose files are not copied.
    pub(super) fn expect_checkpoints(&mut self) {
        if copies_files(&self.record.spec) {
            self.coordinate(coordinator::Event::AttemptStarted);
        }
    }

    /// When `maxWallTime` will be used up.
    fn time_limit(&self) -> Option<Instant> {
        let limit = self.record.spec.recovery.max_wall_time?;
        let left = limit.saturating_sub(self.record.wall_time_at(timestamp()));
        Instant::now().checked_add(left)
    }

    /// Reads the events that a program without a socket prints.
    fn follow_log(&self, running: &Arc<Running>) -> Option<JoinHandle<()>> {
        if self.shared.settings.output != attempt::Output::Log {
            return None;
        }
        let from = self.record.attempt().map_or(0, |attempt| attempt.log_offset);
        let (path, post) = (running.log_path(), self.post.clone());
        let ended = self.log_ended.clone();
        let name = self.name.clone();
        Some(tokio::spawn(async move {
            if let Err(error) = read_printed(&path, from, ended, &post).await {
                tracing::warn!(job = %name, %error, "cannot read events from the program's log");
            }
        }))
    }
}

/// Where an attempt's own records are.
pub(super) fn attempt_dir(place: &Place, number: u32) -> PathBuf {
    place.records.join("attempts").join(number.to_string())
}

/// Where an attempt's log is.
#[must_use]
pub fn log_path(place: &Place, number: u32) -> PathBuf {
    attempt_dir(place, number).join(attempt::LOG_FILE)
}

/// Passes on what a program without a socket says by printing it.
async fn read_printed(
    path: &Path,
    from: u64,
    ended: CancellationToken,
    post: &mpsc::Sender<Note>,
) -> std::io::Result<()> {
    let mut events = attempt::log::Events::open(path, from, ended).await?;
    while let Some(line) = events.next().await? {
        // What is not understood has nobody to be told.
        if let Some(Ok(FromProgram { message, .. })) = FromProgram::parse_log_line(&line)
            && post.send(Note::Printed(message, events.offset())).await.is_err()
        {
            break;
        }
    }
    Ok(())
}

/// Starts the first of the plans that can be had: the others say what to do where it cannot.
async fn start_first(plans: Vec<Plan>) -> Result<Live, String> {
    let mut last = "there is no way to start it".to_owned();
    for plan in plans {
        match attempt::start(&plan).await {
            Ok(running) => {
                return Ok(Live {
                    running: Arc::new(running),
                    since: Instant::now(),
                    writing_when_told: OpenFiles::default(),
                    deadline: None,
                });
            }
            Err(error) => {
                let final_word = !matches!(error, StartError::View { .. });
                last = chain(&error);
                clear(&plan.dir);
                if final_word {
                    break;
                }
                tracing::warn!(error = last, "the attempt cannot have a view of its own");
            }
        }
    }
    Err(last)
}

fn clear(dir: &Path) {
    // Where it stays, the next start says why.
    let _ = std::fs::remove_dir_all(dir);
}
