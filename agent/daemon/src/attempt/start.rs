//! Starting an attempt.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::UnixStream;
use tokio::process::{Child, Command};

use super::adopt::{Session, sweep};
use super::cgroup::Cgroup;
use super::channel::{GO, Report};
use super::error::StartError;
use super::plan::{Output, Plan};
use super::record::{EXIT, Order, PLAN, RecordDir, SHIM, SHIM_LOG, ShimRecord, unique_id};
use super::running::Running;
use super::shim::PROBE_VIEW;
use super::{ATTEMPT_ID, SHIM_ARGUMENT};

/// How long a start may take; a hanging network file system is what makes it long.
const START_BOUND: Duration = Duration::from_secs(60);
/// How long the probe of private views may take.
const PROBE_BOUND: Duration = Duration::from_secs(10);
/// Longest line the shim reports.
const MAX_REPORT: u64 = 64 * 1024;
/// How much of the prober's message is read.
const MAX_MESSAGE: u64 = 4096;

/// Starts the program of a plan; returns when it runs, or when it is certain that it will not.
///
/// After an error the same directory can be used again. Must be called on a tokio runtime; where
/// the plan says `die_with_parent`, the end of that runtime is the end of the parent.
pub async fn start(plan: &Plan) -> Result<Running, StartError> {
    let dir = prepare(plan)?;
    let id = unique_id().map_err(|error| StartError::io("read", Path::new("/proc"), error))?;
    let group = if plan.cgroup { Cgroup::create(&id, plan.cpu) } else { None };
    let cgroup = group.map(|group| group.path().to_owned());
    let order = Order { id, cgroup, plan: plan.clone() };
    let started = launch(&dir, &order).await;
    if let (Err(_), Some(group)) = (&started, order.cgroup) {
        Cgroup::at(group).remove();
    }
    let record = started?;
    Running::attach(&plan.dir, record)
        .map_err(|error| StartError::io("watch the shim of", &plan.dir, error))
}

/// Finds out by really doing it in a process of its own whether private views can be had here; the
/// error is the reason why not. `shim` is as in [`Plan::shim`].
pub async fn view_supported(shim: &Path) -> Result<(), String> {
    let mut probe = Command::new(shim);
    probe.args([SHIM_ARGUMENT, PROBE_VIEW]).env_clear().kill_on_drop(true);
    probe.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let run = async {
        let mut child = probe.spawn()?;
        let mut message = String::new();
        if let Some(stderr) = child.stderr.take() {
            stderr.take(MAX_MESSAGE).read_to_string(&mut message).await?;
        }
        Ok::<_, std::io::Error>((child.wait().await?, message))
    };
    match tokio::time::timeout(PROBE_BOUND, run).await {
        Ok(Ok((status, _))) if status.success() => Ok(()),
        Ok(Ok((_, message))) => Err(message.trim().to_owned()),
        Ok(Err(error)) => Err(format!("cannot run {}: {error}", shim.display())),
        Err(_) => Err(format!("no answer within {PROBE_BOUND:?}")),
    }
}

fn prepare(plan: &Plan) -> Result<RecordDir, StartError> {
    let dir =
        RecordDir::create(&plan.dir).map_err(|error| StartError::io("create", &plan.dir, error))?;
    if dir.has(SHIM) || dir.has(EXIT) {
        return Err(StartError::Used { dir: plan.dir.clone() });
    }
    Ok(dir)
}

async fn launch(dir: &RecordDir, order: &Order) -> Result<ShimRecord, StartError> {
    let plan = &order.plan;
    dir.publish(PLAN, order)
        .map_err(|error| StartError::io("write a plan to", &plan.dir, error))?;
    let (ours, theirs) = StdUnixStream::pair()
        .map_err(|error| StartError::io("create a channel to", &plan.shim, error))?;
    let mut child = spawn(dir, order, theirs.into())
        .map_err(|error| StartError::io("execute", &plan.shim, error))?;
    let ours = ours
        .set_nonblocking(true)
        .and_then(|()| UnixStream::from_std(ours))
        .map_err(|error| StartError::io("use a channel to", &plan.shim, error))?;
    let mut agent = BufReader::new(ours);
    let outcome = tokio::time::timeout(START_BOUND, converse(plan, &mut agent)).await;
    let outcome = outcome.unwrap_or(Err(StartError::TimedOut { after: START_BOUND }));
    let record = outcome.and_then(|()| read_record(dir, plan));
    if record.is_err() {
        // An error means that it went by itself.
        let _ = child.kill().await;
        take_back(dir).await;
    }
    // Collects the shim when it ends, and holds the channel open for as long as this process lives.
    tokio::spawn(async move {
        let _ = child.wait().await;
        drop(agent);
    });
    record
}

/// Ends what a shim that did not get to the end may have started, so that nothing is there to adopt.
async fn take_back(dir: &RecordDir) {
    // Records that cannot be read or removed are met again by whoever uses the directory next.
    if let Ok(Some(record)) = dir.read::<ShimRecord>(SHIM) {
        sweep(&record, Session::Known).await;
        let _ = dir.remove(SHIM);
    }
}

fn spawn(dir: &RecordDir, order: &Order, channel: OwnedFd) -> std::io::Result<Child> {
    let mut shim = Command::new(&order.plan.shim);
    shim.arg(SHIM_ARGUMENT).arg(&order.plan.dir).env_clear().env(ATTEMPT_ID, &order.id);
    shim.stdin(Stdio::from(channel));
    if order.plan.output == Output::Log {
        shim.stdout(Stdio::null()).stderr(dir.append(SHIM_LOG)?);
    }
    shim.spawn()
}

async fn converse(plan: &Plan, shim: &mut BufReader<UnixStream>) -> Result<(), StartError> {
    loop {
        match next_report(shim).await {
            Some(Report::Ready) => {
                // If it is gone, its silence says so.
                let _ = shim.get_mut().write_all(&[GO]).await;
            }
            Some(Report::Started) => return Ok(()),
            Some(Report::Failed(failure)) => return Err(StartError::reported(plan, failure)),
            None => return Err(shim_died(plan)),
        }
    }
}

async fn next_report(shim: &mut BufReader<UnixStream>) -> Option<Report> {
    let mut line = String::new();
    shim.take(MAX_REPORT).read_line(&mut line).await.ok()?;
    serde_json::from_str(&line).ok()
}

fn read_record(dir: &RecordDir, plan: &Plan) -> Result<ShimRecord, StartError> {
    let record = dir.read(SHIM).map_err(|error| StartError::io("read", &plan.dir, error))?;
    record.ok_or_else(|| shim_died(plan))
}

fn shim_died(plan: &Plan) -> StartError {
    StartError::Shim { shim: plan.shim.clone(), log: plan.dir.join(SHIM_LOG) }
}
