//! The process between the agent and an attempt's program.
//!
//! It is a program of its own (the same executable, started with `__shim`), because it has to
//! outlive the agent, and single-threaded, because it forks and changes namespaces. It is a
//! session leader and a subreaper: whatever the program starts, and however it is detached, stays its
//! descendant. When the program has ended it ends what is left, and only then says how it ended,
//! so that whoever reads `exit.json` knows that the files are still.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use rustix::pipe::{PipeFlags, pipe_with};

use super::cgroup::Cgroup;
use super::channel::{Failure, GO, Report, Stage};
use super::memory::MemoryWatch;
use super::plan::{Output, View};
use super::process::{Identity, Pid};
use super::program;
use super::reaper::{Reaper, Woken};
use super::record::{
    EXIT, ExitRecord, LOG_FILE, Order, PLAN, RecordDir, SHIM, ShimRecord, boot_id,
};
use super::view;

/// In place of the record directory: only find out whether private views work.
pub(super) const PROBE_VIEW: &str = "--probe-view";

/// How long the exit status is offered to a disk that does not take it.
const RECORD_BOUND: Duration = Duration::from_secs(600);
/// Between two tries of that.
const RECORD_PAUSE: Duration = Duration::from_secs(1);

/// The shim's whole life; `arguments` are those after `__shim`.
///
/// The process must have one thread only.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let argument = arguments.into_iter().next().unwrap_or_default();
    let done = if argument == PROBE_VIEW {
        view::probe().map_err(anyhow::Error::from)
    } else {
        run(Path::new(&argument))
    };
    let Err(error) = done else { return ExitCode::SUCCESS };
    // The log of the shim, or what the prober reads; there is nobody left to tell if it is closed.
    let _ = writeln!(io::stderr(), "{error:#}");
    ExitCode::FAILURE
}

fn run(path: &Path) -> anyhow::Result<()> {
    let dir = RecordDir::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    let order: Order = dir
        .read(PLAN)
        .and_then(|order| order.ok_or_else(|| io::ErrorKind::NotFound.into()))
        .with_context(|| format!("cannot read {PLAN} in {}", path.display()))?;
    // Whoever started us may ignore signals, SIGCHLD above all, and that is inherited.
    crate::sys::reset_signals().context("cannot reset the signals")?;
    let reaper = Reaper::new().context("cannot take over the signals")?;
    // A leader of a session already, where somebody started it by hand.
    let _ = rustix::process::setsid();
    rustix::thread::set_name(c"nodus-shim").context("cannot set the process name")?;
    nix::sys::prctl::set_child_subreaper(true).context("cannot become a subreaper")?;
    rustix::process::chdir("/").context("cannot change to /")?;

    let mut agent = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let mut record = ShimRecord {
        id: order.id.clone(),
        boot: boot_id()?,
        shim: Identity::of(own_pid())?,
        program: None,
        cgroup: order.cgroup.clone(),
    };
    dir.publish(SHIM, &record).context("cannot write shim.json")?;
    say(&mut agent, &Report::Ready)?;
    let mut word = [0];
    if agent.read(&mut word)? == 0 || word != [GO] {
        dir.remove(SHIM)?;
        anyhow::bail!("the agent was gone before the program was started");
    }
    match launch(&dir, &order, &mut record) {
        Ok(program) => {
            // Whether it hears that changes nothing: it can also read the record.
            let _ = say(&mut agent, &Report::Started);
            supervise(&dir, &order, reaper.of(program), agent)
        }
        Err(failure) => {
            dir.remove(SHIM)?;
            say(&mut agent, &Report::Failed(failure))
        }
    }
}

fn own_pid() -> Pid {
    rustix::process::getpid().as_raw_pid()
}

fn say(agent: &mut UnixStream, report: &Report) -> anyhow::Result<()> {
    let mut line = serde_json::to_vec(report)?;
    line.push(b'\n');
    agent.write_all(&line).context("cannot report to the agent")
}

/// Starts the program; returns when it is executed, with its record written.
fn launch(dir: &RecordDir, order: &Order, record: &mut ShimRecord) -> Result<Pid, Failure> {
    let failed =
        |detail: &'static str| move |error: io::Error| Failure::new(Stage::Other, detail, &error);
    dir.reserve(EXIT).map_err(failed("the space for the exit status"))?;
    let log = open_log(dir, order).map_err(failed("the log file"))?;
    if let View::Private { binds } = &order.plan.view {
        view::enter(binds)
            .map_err(|error| Failure::new(Stage::View, error.to_string(), &error.source))?;
    }
    let (from_child, to_shim) =
        pipe_with(PipeFlags::CLOEXEC).map_err(|error| failed("a pipe")(error.into()))?;
    let shim = own_pid();
    match crate::sys::fork().map_err(failed("a process"))? {
        crate::sys::Fork::Child => {
            let failure = program::become_program(order, log.as_ref(), shim);
            // With the shim gone, nobody has to know.
            let _ = serde_json::to_writer(File::from(to_shim), &failure);
            std::process::exit(1)
        }
        crate::sys::Fork::Parent(child) => {
            drop(to_shim);
            record.program = Some(Identity::of(child).map_err(failed("the program's start time"))?);
            dir.publish(SHIM, record).map_err(failed("shim.json"))?;
            executed(File::from(from_child))?;
            Ok(child)
        }
    }
}

/// Waits until the program's process has either closed its end by executing or said why not.
fn executed(from_child: File) -> Result<(), Failure> {
    let failed = |error: io::Error| Failure::new(Stage::Other, "the program's start", &error);
    let mut reader = BufReader::new(from_child);
    if reader.fill_buf().map_err(failed)?.is_empty() {
        return Ok(());
    }
    Err(serde_json::from_reader(reader).unwrap_or_else(|error| failed(error.into())))
}

fn open_log(dir: &RecordDir, order: &Order) -> io::Result<Option<File>> {
    if order.plan.output == Output::Inherit {
        return Ok(None);
    }
    let log = dir.append(LOG_FILE)?;
    if let Some(user) = &order.plan.user {
        // Or else the program could not open its own /dev/stdout.
        std::os::unix::fs::fchown(&log, Some(user.uid), Some(user.gid))?;
    }
    Ok(Some(log))
}

fn supervise(
    dir: &RecordDir,
    order: &Order,
    mut reaper: Reaper,
    agent: UnixStream,
) -> anyhow::Result<()> {
    if order.plan.die_with_parent {
        reaper.stop_when_gone(agent.into(), order.plan.stop_grace);
    } else {
        drop(agent);
        nix::unistd::dup2_stdin(File::open("/dev/null")?)?;
    }
    let group = order.cgroup.clone().map(Cgroup::at);
    let memory = MemoryWatch::new(group.as_ref());
    let (status, told) = reaper.wait_for_program().context("cannot wait for the program")?;
    let ended = jiff::Timestamp::now();
    let left = reaper.end_descendants(group.as_ref()).context("cannot end what is left")?;
    let oom = memory.is_to_blame(status);
    leave_record(dir, &mut reaper, &ExitRecord { status, oom, told, ended, left })?;
    if let Some(group) = group {
        group.remove();
    }
    Ok(())
}

fn leave_record(dir: &RecordDir, reaper: &mut Reaper, record: &ExitRecord) -> anyhow::Result<()> {
    let deadline = Instant::now() + RECORD_BOUND;
    loop {
        let Err(error) = dir.publish_reserved(EXIT, record) else { return Ok(()) };
        if Instant::now() >= deadline {
            return Err(error).context("cannot write exit.json");
        }
        let next = Instant::now() + RECORD_PAUSE;
        while reaper.sleep(Some(next))? != Woken::Due {}
    }
}
