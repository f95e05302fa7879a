//! Attempts of real programs: started, killed in every way, found again and ended.
// The lint knows test functions only, not what they share.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fs;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nodus_agent::attempt::log::Follow;
use nodus_agent::attempt::{
    AttemptError, Ended, ExitRecord, ExitStatus, Found, Output, Plan, Running, Signal, StartError,
    UserIds, View, adopt, start, view_supported,
};
use tokio_util::sync::CancellationToken;

/// Far more than anything here takes, so that passing it means that something hangs.
const BOUND: Duration = Duration::from_secs(30);
const NOBODY: u32 = 65534;
const SHIM: &str = env!("CARGO_BIN_EXE_nodus-agent");

fn plan(scratch: &Path, script: &str) -> Plan {
    Plan {
        dir: scratch.join("attempt"),
        shim: SHIM.into(),
        command: ["sh", "-c", script].map(String::from).to_vec(),
        env: BTreeMap::from([
            ("PATH".into(), "/usr/bin:/bin".into()),
            ("SCRATCH".into(), scratch.to_str().unwrap().into()),
        ]),
        workdir: "/".into(),
        output: Output::Log,
        user: None,
        view: View::Host,
        die_with_parent: false,
        cgroup: false,
        cpu: None,
        stop_grace: Duration::from_secs(5),
    }
}

fn scratch() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

/// A scratch directory that every user can enter and write to.
fn open_scratch() -> tempfile::TempDir {
    let scratch = scratch();
    open_to_all(scratch.path());
    scratch
}

fn open_to_all(path: &Path) {
    use std::os::unix::fs::PermissionsExt as _;
    fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();
}

async fn bounded<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(BOUND, what).await.expect("ends in time")
}

async fn started(plan: &Plan) -> Running {
    bounded(start(plan)).await.unwrap()
}

async fn ended(running: &Running) -> ExitRecord {
    match bounded(running.wait()).await.unwrap() {
        Ended::Exited(record) => record,
        Ended::Lost { left } => panic!("lost, with {left:?} left"),
    }
}

fn log(plan: &Plan) -> String {
    fs::read_to_string(plan.dir.join("output.log")).unwrap()
}

/// Waits until a look gives something.
async fn seen<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + BOUND;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "never seen");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// What a program wrote to a file of its scratch directory, once it is a whole line.
async fn line_in(path: PathBuf) -> String {
    let whole = || fs::read_to_string(&path).ok().filter(|text| text.ends_with('\n'));
    seen(whole).await.trim().to_owned()
}

fn is_alive(pid: i32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat.rsplit_once(')').unwrap().1.starts_with(" Z"))
}

fn kill(pid: i32) {
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, Signal::KILL).unwrap();
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[tokio::test]
async fn the_exit_status_and_the_output_are_exact() {
    for (script, expected) in [
        ("echo out; echo err >&2; exit 0", ExitStatus::Code(0)),
        ("echo out; echo err >&2; exit 77", ExitStatus::Code(77)),
        ("echo out; echo err >&2; kill -SEGV $$", ExitStatus::Signal(11)),
    ] {
        let scratch = scratch();
        let plan = plan(scratch.path(), script);
        let record = ended(&started(&plan).await).await;
        assert_eq!((record.status, record.left, record.oom), (expected, vec![], false), "{script}");
        assert_eq!(log(&plan), "out\nerr\n");
    }
}

#[tokio::test]
async fn the_program_has_the_environment_of_the_plan_and_nothing_else_of_ours() {
    let scratch = scratch();
    let script = "env | sort; pwd; cat; echo end; exec sleep 1000";
    let mut plan = plan(scratch.path(), script);
    plan.cpu = Some(3);
    plan.workdir = scratch.path().into();
    let running = started(&plan).await;
    let proc = PathBuf::from(format!("/proc/{}", running.program()));
    let whole = || fs::read_to_string(running.log_path()).ok().filter(|t| t.ends_with("end\n"));
    let text = seen(whole).await;
    let mark = text.lines().find(|line| line.starts_with("NODUS_ATTEMPT_ID=")).unwrap();
    let home = scratch.path().display();
    let expected = format!(
        "{mark}\nNODUS_CPU=3\nPATH=/usr/bin:/bin\nPWD={home}\nSCRATCH={home}\n{home}\nend\n"
    );
    assert_eq!(text, expected);

    let is_sleep = || fs::read_to_string(proc.join("comm")).ok().filter(|name| name == "sleep\n");
    seen(is_sleep).await; // A shell blocks signals while it forks.
    let status = fs::read_to_string(proc.join("status")).unwrap();
    for set in ["SigBlk:", "SigIgn:"] {
        let line = status.lines().find_map(|line| line.strip_prefix(set)).unwrap();
        let signals = u64::from_str_radix(line.trim(), 16).unwrap();
        assert_eq!(signals & 0x7fff_ffff, 0, "{set}"); // The standard signals, 1 to 31.
    }
    // Seen in the end, since the program opens files of its own while it is loaded.
    seen(|| all_are_inherited(&proc.join("fd")).then_some(())).await;
    bounded(running.stop(BOUND)).await.unwrap();
}

/// Whether a program has its standard files, and besides only what we would leave open to any child.
fn all_are_inherited(fds: &Path) -> bool {
    let names = fs::read_dir(fds).unwrap().map(|fd| fd.unwrap().file_name().into_string().unwrap());
    names.filter(|name| !["0", "1", "2"].contains(&name.as_str())).all(|name| {
        let info = fs::read_to_string(format!("/proc/self/fdinfo/{name}")).unwrap_or_default();
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
        flags.is_some_and(|text| u64::from_str_radix(text.trim(), 8).unwrap() & 0o2_000_000 == 0)
    })
}

#[tokio::test]
async fn what_cannot_be_started_says_why_and_leaves_the_directory_usable() {
    let scratch = scratch();
    let mut plan = plan(scratch.path(), "exit 0");
    let plain = scratch.path().join("plain");
    fs::write(&plain, "#!/bin/sh\n").unwrap();
    let working = plan.command.clone();

    plan.command = vec!["no-such-command".into()];
    let error = bounded(start(&plan)).await.unwrap_err();
    assert_eq!(error.to_string(), "command \"no-such-command\" not found");
    assert!(matches!(error, StartError::NotFound { .. }));

    plan.command = vec![plain.to_str().unwrap().into()];
    let error = bounded(start(&plan)).await.unwrap_err();
    assert!(
        matches!(&error, StartError::NotExecutable { source, .. }
        if source.kind() == std::io::ErrorKind::PermissionDenied),
        "{error:?}"
    );

    plan.command = working;
    plan.workdir = "/no/such/directory".into();
    let error = bounded(start(&plan)).await.unwrap_err();
    assert!(
        matches!(&error, StartError::Workdir { path, .. } if *path == plan.workdir),
        "{error:?}"
    );
    assert!(matches!(adopt(&plan.dir).await.unwrap(), Found::NeverStarted));

    plan.workdir = "/".into();
    assert_eq!(ended(&started(&plan).await).await.status, ExitStatus::Code(0));
    assert!(matches!(bounded(start(&plan)).await, Err(StartError::Used { .. })));
}

#[tokio::test]
async fn a_script_without_an_interpreter_line_runs_in_the_shell() {
    use std::os::unix::fs::PermissionsExt as _;
    let scratch = scratch();
    let mut plan = plan(scratch.path(), "");
    let script = scratch.path().join("plain-script");
    fs::write(&script, "echo got $1\n").unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    plan.command = vec!["plain-script".into(), "this".into()];
    plan.env.insert("PATH".into(), format!("/usr/bin:{}", scratch.path().display()));
    assert_eq!(ended(&started(&plan).await).await.status, ExitStatus::Code(0));
    assert_eq!(log(&plan), "got this\n");
}

#[tokio::test]
async fn the_program_is_killed() {
    let scratch = scratch();
    let running = started(&plan(scratch.path(), "exec sleep 1000")).await;
    kill(running.program());
    assert_eq!(ended(&running).await.status, ExitStatus::Signal(9));
    assert!(!running.contains(running.program()));
}

/// C95: a loss takes the program along, and what it had detached is found and ended.
#[tokio::test]
async fn c95_the_shim_is_killed() {
    let scratch = scratch();
    let script = "setsid sh -c 'echo $$ >$SCRATCH/detached; exec sleep 1000' & \
                  env -i sh -c 'echo $$; exec sleep 1000' >$SCRATCH/cleared & exec sleep 1000";
    let plan = plan(scratch.path(), script);
    let running = started(&plan).await;
    let detached: i32 = line_in(scratch.path().join("detached")).await.parse().unwrap();
    let cleared: i32 = line_in(scratch.path().join("cleared")).await.parse().unwrap();
    assert!(running.contains(detached) && running.contains(cleared));
    kill(running.shim());
    assert_eq!(bounded(running.wait()).await.unwrap(), Ended::Lost { left: vec![] });
    for pid in [running.program(), detached, cleared] {
        assert!(!is_alive(pid), "{pid} still runs");
    }
    assert!(matches!(adopt(&plan.dir).await.unwrap(), Found::Lost { left } if left.is_empty()));
}

#[tokio::test]
async fn what_the_program_leaves_behind_is_ended_before_the_end_is_told() {
    let scratch = scratch();
    // One that goes when asked, and one that does not.
    let script = "(setsid sh -c 'trap \"echo bye >$SCRATCH/bye; exit\" TERM; echo $$ >$SCRATCH/kind; \
                  while :; do sleep 0.05; done' &); \
                  (setsid sh -c 'trap \"\" TERM; echo $$ >$SCRATCH/stubborn; while :; do sleep 1; done' &); \
                  until [ -s $SCRATCH/kind ] && [ -s $SCRATCH/stubborn ]; do sleep 0.01; done; exit 5";
    let plan = plan(scratch.path(), script);
    let running = started(&plan).await;
    let record = ended(&running).await;
    assert_eq!((record.status, record.left), (ExitStatus::Code(5), vec![]));
    assert_eq!(line_in(scratch.path().join("bye")).await, "bye");
    for name in ["kind", "stubborn"] {
        let pid = line_in(scratch.path().join(name)).await.parse().unwrap();
        assert!(!is_alive(pid), "{name} still runs");
    }
    assert!(running.processes().is_empty());
}

#[tokio::test]
async fn stop_asks_first_and_then_kills() {
    let scratch = scratch();
    let kind = plan(
        scratch.path(),
        "trap 'echo stopping; exit 3' TERM; echo up; while :; do sleep 0.05; done",
    );
    let running = started(&kind).await;
    line_in(kind.dir.join("output.log")).await;
    let outcome = bounded(running.stop(BOUND)).await.unwrap();
    assert!(matches!(outcome, Ended::Exited(record) if record.status == ExitStatus::Code(3)));
    // The shell may say in between that its `sleep` was terminated.
    assert!(log(&kind).starts_with("up\n") && log(&kind).ends_with("stopping\n"));

    let mut deaf = plan(scratch.path(), "trap '' TERM; echo up; while :; do sleep 1; done");
    deaf.dir = scratch.path().join("deaf");
    let running = started(&deaf).await;
    line_in(deaf.dir.join("output.log")).await;
    let outcome = bounded(running.stop(Duration::from_millis(100))).await.unwrap();
    assert!(matches!(outcome, Ended::Exited(record) if record.status == ExitStatus::Signal(9)));
}

#[tokio::test]
async fn a_stopped_program_and_a_stopped_shim_can_be_stopped() {
    let scratch = scratch();
    let mut plan = plan(scratch.path(), "exec sleep 1000");
    let running = started(&plan).await;
    running.signal(Signal::STOP).unwrap();
    let outcome = bounded(running.stop(BOUND)).await.unwrap();
    assert!(matches!(outcome, Ended::Exited(record) if record.status == ExitStatus::Signal(15)));

    plan.dir = scratch.path().join("again");
    let running = started(&plan).await;
    let shim = rustix::process::Pid::from_raw(running.shim()).unwrap();
    rustix::process::kill_process(shim, Signal::STOP).unwrap();
    let outcome = bounded(running.stop(BOUND)).await.unwrap();
    assert!(matches!(outcome, Ended::Exited(record) if record.status == ExitStatus::Signal(15)));
}

/// What runs as the agent in the tests that kill it; told what to do by its environment.
#[tokio::test]
#[ignore = "is run by other tests, as a process of its own"]
async fn starter() {
    let Ok(plan) = std::env::var("TEST_PLAN") else { return };
    let plan: Plan = serde_json::from_str(&plan).unwrap();
    let running = started(&plan).await;
    println!("started {}", running.program());
    let _ = running.wait().await;
}

/// Runs [`starter`] in another process.
fn starter_process(plan: &Plan) -> std::process::Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "starter", "--ignored", "--nocapture"])
        .env("TEST_PLAN", serde_json::to_string(plan).unwrap())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

#[tokio::test]
async fn the_agent_is_killed_and_another_adopts() {
    let scratch = scratch();
    let script = "echo one; until [ -e $SCRATCH/go ]; do sleep 0.01; done; echo two; exit 42";
    let plan = plan(scratch.path(), script);
    let mut agent = starter_process(&plan);
    line_in(plan.dir.join("output.log")).await;
    agent.kill().unwrap();
    agent.wait().unwrap();

    let Found::Running(running) = bounded(adopt(&plan.dir)).await.unwrap() else {
        panic!("it runs on");
    };
    assert!(running.contains(running.program()));
    fs::write(scratch.path().join("go"), "").unwrap();
    assert_eq!(ended(&running).await.status, ExitStatus::Code(42));
    assert_eq!(log(&plan), "one\ntwo\n");
    assert!(matches!(adopt(&plan.dir).await.unwrap(),
        Found::Ended(record) if record.status == ExitStatus::Code(42)));
}

/// Whenever the agent dies during a start, the next one ends up with exactly one run.
#[tokio::test]
async fn the_agent_is_killed_at_any_moment_of_a_start() {
    for delay in (0..40).step_by(2) {
        let scratch = scratch();
        let plan = plan(scratch.path(), "echo run >>$SCRATCH/runs; exit 6");
        let mut agent = starter_process(&plan);
        tokio::time::sleep(Duration::from_millis(delay)).await;
        agent.kill().unwrap();
        agent.wait().unwrap();
        let record = match bounded(adopt(&plan.dir)).await.unwrap() {
            Found::NeverStarted => ended(&started(&plan).await).await,
            Found::Running(running) => ended(&running).await,
            Found::Ended(record) => record,
            found => panic!("{found:?} after {delay} ms"),
        };
        assert_eq!(record.status, ExitStatus::Code(6));
        let runs = fs::read_to_string(scratch.path().join("runs")).unwrap();
        assert_eq!(runs, "run\n", "after {delay} ms");
    }
}

#[tokio::test]
async fn all_are_killed_and_what_is_left_is_ended_at_adoption() {
    let scratch = scratch();
    let plan =
        plan(scratch.path(), "(setsid sleep 1000 & echo $! >$SCRATCH/left); exec sleep 1000");
    let mut agent = starter_process(&plan);
    let left: i32 = line_in(scratch.path().join("left")).await.parse().unwrap();
    let Found::Running(running) = bounded(adopt(&plan.dir)).await.unwrap() else {
        panic!("it runs");
    };
    let (program, shim) = (running.program(), running.shim());
    drop(running);
    agent.kill().unwrap();
    agent.wait().unwrap();
    kill(shim);
    seen(|| (!is_alive(program)).then_some(())).await;
    assert!(is_alive(left));
    let found = bounded(adopt(&plan.dir)).await.unwrap();
    assert!(matches!(found, Found::Lost { left } if left.is_empty()));
    assert!(!is_alive(left));
}

#[tokio::test]
async fn an_attempt_that_lives_for_its_parent_ends_with_it_in_order() {
    let scratch = scratch();
    let script = "trap 'echo bye; exit 9' TERM; echo up; while :; do sleep 0.05; done";
    let mut plan = plan(scratch.path(), script);
    plan.die_with_parent = true;
    let mut parent = starter_process(&plan);
    line_in(plan.dir.join("output.log")).await;
    parent.kill().unwrap();
    parent.wait().unwrap();
    let record = seen(|| fs::read(plan.dir.join("exit.json")).ok()).await;
    let record: ExitRecord = serde_json::from_slice(&record).unwrap();
    assert_eq!(record.status, ExitStatus::Code(9));
    assert_eq!(log(&plan), "up\nbye\n");
}

#[tokio::test]
async fn output_can_be_ours() {
    let scratch = scratch();
    let mut plan = plan(scratch.path(), "echo to the terminal");
    plan.output = Output::Inherit;
    let output = starter_process(&plan).wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.lines().any(|line| line == "to the terminal"), "{text}");
    assert!(!plan.dir.join("output.log").exists());
}

#[tokio::test]
async fn what_is_no_shim_is_noticed() {
    let scratch = scratch();
    let mut plan = plan(scratch.path(), "exit 0");
    plan.shim = "/bin/true".into();
    assert!(matches!(bounded(start(&plan)).await, Err(StartError::Shim { .. })));
    plan.shim = scratch.path().join("missing");
    assert!(matches!(bounded(start(&plan)).await, Err(StartError::Io { .. })));
    assert!(matches!(adopt(&plan.dir).await.unwrap(), Found::NeverStarted));
}

/// A disk that the program has filled does not take its exit status.
#[test]
fn a_full_disk() {
    if !is_root() {
        return; // It takes a file system of its own.
    }
    let scratch = scratch();
    let mount = "mount -t tmpfs -o size=256k tmpfs \"$0\" && exec \"$@\"";
    let status = Command::new("unshare")
        .args(["-m", "sh", "-c", mount])
        .arg(scratch.path())
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "on_a_full_disk", "--ignored", "--nocapture"])
        .env("TEST_DISK", scratch.path())
        .status()
        .unwrap();
    assert!(status.success());
}

#[tokio::test]
#[ignore = "is run by another test, on a small file system"]
async fn on_a_full_disk() {
    let Ok(disk) = std::env::var("TEST_DISK") else { return };
    let script = "cat /dev/zero >$SCRATCH/big; echo x >$SCRATCH/more || exit 28";
    let plan = plan(Path::new(&disk), script);
    assert_eq!(ended(&started(&plan).await).await.status, ExitStatus::Code(28));
}

#[tokio::test]
async fn a_reboot_and_an_empty_directory_are_told_apart() {
    let scratch = scratch();
    let plan = plan(scratch.path(), "exec sleep 1000");
    assert!(matches!(adopt(&plan.dir).await.unwrap(), Found::NeverStarted));
    let running = started(&plan).await;
    let path = plan.dir.join("shim.json");
    let true_record = fs::read_to_string(&path).unwrap();
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    fs::write(&path, true_record.replace(boot.trim(), "another-boot")).unwrap();
    assert!(matches!(adopt(&plan.dir).await.unwrap(), Found::Rebooted));
    fs::write(&path, "{").unwrap();
    assert!(matches!(adopt(&plan.dir).await, Err(AttemptError::Io { .. })));
    assert!(is_alive(running.program()), "nothing was done to it");
    bounded(running.stop(BOUND)).await.unwrap();
}

/// Counts up in a file, so that one can see whether it runs.
const COUNT: &str =
    "i=0; while :; do i=$((i+1)); echo $i >$SCRATCH/n.new; mv $SCRATCH/n.new $SCRATCH/n; done";

async fn check_freeze(plan: &Plan, scratch: &Path) {
    let running = started(plan).await;
    let count = || fs::read_to_string(scratch.join("n")).ok();
    let first = seen(count).await;
    seen(|| count().filter(|now| *now != first)).await;
    let frozen = running.freeze().unwrap();
    let still = count().unwrap();
    // The time in which it would have counted on by hundreds.
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(count().unwrap(), still);
    drop(frozen);
    seen(|| count().filter(|now| *now != still)).await;

    // An agent that dies while it holds the attempt: another one lets go.
    std::mem::forget(running.freeze().unwrap());
    let still = count().unwrap();
    let Found::Running(adopted) = bounded(adopt(&plan.dir)).await.unwrap() else {
        panic!("it runs");
    };
    seen(|| count().filter(|now| *now != still)).await;
    bounded(adopted.stop(BOUND)).await.unwrap();
}

#[tokio::test]
async fn frozen_by_signals() {
    let scratch = scratch();
    check_freeze(&plan(scratch.path(), COUNT), scratch.path()).await;
}

#[tokio::test]
async fn frozen_by_the_cgroup_where_there_is_one() {
    let scratch = scratch();
    let mut plan = plan(scratch.path(), COUNT);
    plan.cgroup = true;
    check_freeze(&plan, scratch.path()).await;
    let order: serde_json::Value =
        serde_json::from_slice(&fs::read(plan.dir.join("plan.json")).unwrap()).unwrap();
    if let Some(group) = order["cgroup"].as_str() {
        assert!(!Path::new(group).exists(), "{group} is left");
        assert!(!plan.dir.join("frozen").exists());
    }
}

#[tokio::test]
async fn the_log_is_followed_to_its_end() {
    let scratch = scratch();
    let plan = plan(scratch.path(), "for i in 1 2 3; do echo $i; sleep 0.05; done");
    let running = started(&plan).await;
    let over = CancellationToken::new();
    let mut follow = Follow::open(&running.log_path(), 0, over.clone()).await.unwrap();
    let read = async {
        let mut text = Vec::new();
        while let Some(chunk) = follow.next().await.unwrap() {
            text.extend_from_slice(&chunk);
        }
        text
    };
    let end = async {
        ended(&running).await;
        over.cancel();
    };
    let (text, ()) = bounded(async { tokio::join!(read, end) }).await;
    assert_eq!(text, b"1\n2\n3\n");
}

#[tokio::test]
async fn another_user() {
    if !is_root() {
        return; // Nobody else can become somebody else.
    }
    let scratch = open_scratch();
    let mut plan = plan(scratch.path(), "id -u; id -g; id -G; echo to-stdout >>/dev/stdout");
    plan.user = Some(UserIds { uid: NOBODY, gid: NOBODY, groups: vec![NOBODY, 1234] });
    assert_eq!(ended(&started(&plan).await).await.status, ExitStatus::Code(0));
    let text = log(&plan);
    assert_eq!(text, "65534\n65534\n65534 1234\nto-stdout\n");

    // The kernel's guard against a killed shim survives the change of user.
    plan.dir = scratch.path().join("guarded");
    plan.command = ["sleep", "1000"].map(String::from).to_vec();
    let running = started(&plan).await;
    kill(running.shim());
    assert_eq!(bounded(running.wait()).await.unwrap(), Ended::Lost { left: vec![] });
    assert!(!is_alive(running.program()));
}

/// Two attempts that hard-code the same paths, each with its own directories.
async fn check_private_views(scratch: &Path, user: Option<&UserIds>) {
    let mut attempts = Vec::new();
    for name in ["a", "b"] {
        let home = scratch.join(name);
        let own = |dir: &str| home.join(dir);
        for dir in ["state", "outputs", "run", "work"] {
            fs::create_dir_all(own(dir)).unwrap();
            open_to_all(&own(dir));
        }
        let script = format!(
            "echo {name} >/nodus/state/name; echo {name} >/nodus/outputs/name; pwd; id -u; \
             cat /proc/self/stat >/dev/null; ls /dev/null; touch /tmp/$MARK; ls /sys >/dev/null; \
             until grep -q second /run/nodus/owner 2>/dev/null; do sleep 0.01; done; \
             cat /nodus/state/name; touch /nodus/stray 2>/dev/null || echo no stray; \
             cd /nodus/state && pwd"
        );
        let mut plan = plan(&home, &script);
        plan.env.insert("MARK".into(), format!("{name}-{}", std::process::id()));
        plan.workdir = own("work");
        plan.user = user.cloned();
        plan.view = View::Private {
            binds: vec![
                (own("state"), "/nodus/state".into()),
                (own("outputs"), "/nodus/outputs".into()),
                (own("run"), "/run/nodus".into()),
            ],
        };
        let running = started(&plan).await;
        fs::write(own("run/owner"), "first\n").unwrap();
        attempts.push((name, home, plan, running));
    }
    for (name, home, plan, running) in attempts {
        // An owner that starts anew replaces its file; the mounted directory shows it.
        fs::write(home.join("run/owner.new"), "second\n").unwrap();
        fs::rename(home.join("run/owner.new"), home.join("run/owner")).unwrap();
        assert_eq!(ended(&running).await.status, ExitStatus::Code(0), "{}", log(&plan));
        let uid = user.map_or(rustix::process::getuid().as_raw(), |user| user.uid);
        let work = home.join("work");
        let expected =
            format!("{}\n{uid}\n/dev/null\n{name}\nno stray\n/nodus/state\n", work.display());
        assert_eq!(log(&plan), expected);
        assert_eq!(fs::read_to_string(home.join("state/name")).unwrap(), format!("{name}\n"));
        assert_eq!(fs::read_to_string(home.join("outputs/name")).unwrap(), format!("{name}\n"));
        let mark = Path::new("/tmp").join(&plan.env["MARK"]);
        fs::remove_file(&mark).expect("/tmp is the host's");
    }
}

#[tokio::test]
async fn private_views_of_two_attempts() {
    let mounts = || fs::read_to_string("/proc/self/mountinfo").unwrap();
    let (before, had_nodus) = (mounts(), Path::new("/nodus").exists());
    if let Err(reason) = view_supported(Path::new(SHIM)).await {
        assert!(!is_root(), "root can: {reason}");
        return;
    }
    check_private_views(scratch().path(), None).await;
    if is_root() {
        let scratch = open_scratch();
        let user = UserIds { uid: NOBODY, gid: NOBODY, groups: vec![] };
        check_private_views(scratch.path(), Some(&user)).await;
    }
    assert_eq!(mounts(), before, "nothing is mounted on the host");
    assert_eq!(Path::new("/nodus").exists(), had_nodus, "nothing is left on the host");
}

/// The same without root, in a user namespace.
#[test]
fn private_views_of_an_ordinary_user() {
    if !is_root() {
        return; // The test before was that.
    }
    // Where the tests were built, an ordinary user may not be let in.
    let scratch = open_scratch();
    let exe = scratch.path().join("tests");
    let shim = scratch.path().join("shim");
    fs::copy(std::env::current_exe().unwrap(), &exe).unwrap();
    fs::copy(SHIM, &shim).unwrap();
    let status = Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .arg(&exe)
        .args(["--exact", "as_an_ordinary_user", "--ignored", "--nocapture"])
        .env("TEST_SHIM", &shim)
        .env("TMPDIR", scratch.path())
        .status()
        .unwrap();
    assert!(status.success());
}

#[tokio::test]
#[ignore = "is run by another test, as another user"]
async fn as_an_ordinary_user() {
    let Ok(shim) = std::env::var("TEST_SHIM") else { return };
    assert!(!is_root());
    if let Err(reason) = view_supported(Path::new(&shim)).await {
        eprintln!("no private views for ordinary users here: {reason}");
        return;
    }
    check_private_views(scratch().path(), None).await;
}

/// Where the target is there already, only it changes, and only for the attempt.
#[tokio::test]
async fn a_private_view_of_a_directory_that_exists() {
    if view_supported(Path::new(SHIM)).await.is_err() {
        return;
    }
    let scratch = scratch();
    let (source, target) = (scratch.path().join("source"), scratch.path().join("target"));
    for (dir, text) in [(&source, "own\n"), (&target, "host\n")] {
        fs::create_dir(dir).unwrap();
        fs::write(dir.join("name"), text).unwrap();
    }
    // The records lie in what is covered, and are written all the same.
    let mut plan = plan(&target, "cat $SCRATCH/name; echo new >$SCRATCH/new; exit 4");
    plan.view = View::Private { binds: vec![(source.clone(), target.clone())] };
    assert_eq!(ended(&started(&plan).await).await.status, ExitStatus::Code(4));
    assert_eq!(log(&plan), "own\n");
    assert!(source.join("new").exists() && !target.join("new").exists());
}

#[tokio::test]
async fn a_view_that_cannot_be_had_is_an_error_and_the_host_view_works_then() {
    let scratch = scratch();
    let mut plan = plan(scratch.path(), "exit 0");
    plan.view =
        View::Private { binds: vec![(scratch.path().join("missing"), "/nodus/state".into())] };
    let error = bounded(start(&plan)).await.unwrap_err();
    assert!(matches!(&error, StartError::View { .. }), "{error:?}");
    plan.view = View::Host;
    assert_eq!(ended(&started(&plan).await).await.status, ExitStatus::Code(0));
}
