//! Failures from the field that take the whole product to reproduce, by their numbers.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use nodus_tests::wait::{self, LONG};
use nodus_tests::{
    Agent, AgentConfig, Job, LoopFs, NotifySocket, Puppets, Running, Standalone, is_root, skipped,
};
use rustix::process::Signal;
use serde_json::{Value, json};
use walkdir::WalkDir;

const MIB: usize = 1 << 20;

/// Bytes that compression cannot shrink.
fn noise(bytes: usize) -> Vec<u8> {
    let mut noise = vec![0_u8; bytes];
    let mut random = fs::File::open("/dev/urandom").expect("every system has it");
    std::io::Read::read_exact(&mut random, &mut noise).expect("it has no end");
    noise
}

#[test]
fn c06_a_file_cut_short_by_a_kill_is_not_what_a_restore_starts_from() {
    let agent = Agent::ready();
    let (job, mut puppet) = Job::with_recovery(&agent, "train", "maxRetries: 5");
    let mut events = puppet.subscriber();
    job.wait_for_subscribers(1);
    puppet.save("last.ckpt", "whole");
    let asked = job.ask();
    let good = events.expect_request();
    events.ack(good);
    nodus_tests::stored(asked);

    let mut asked = job.ask();
    let broken = events.expect_request();
    fs::write(job.state_dir().join("last.ckpt"), "wh").expect("the state directory");
    puppet.kill_9();
    drop(events);
    let killed = Instant::now();
    let listed = wait::some("the end of that checkpoint", LONG, || {
        let all = job.ctl().checkpoints("train");
        all.into_iter().find(|checkpoint| checkpoint["seq"] == broken)
    });
    assert!(killed.elapsed() < Duration::from_secs(2), "{:?}", killed.elapsed());
    assert_ne!(listed["consistency"], "Acked", "{listed}");
    let says_so = listed["reason"] == "GoneBeforeAck" || listed["consistency"] == "Torn";
    assert!(says_so, "{listed}");
    asked.ends();

    let next = job.next_process();
    assert_eq!(next.env("NODUS_RESTORED").as_deref(), Some("1"));
    let restored = fs::read_to_string(job.state_dir().join("last.ckpt"));
    assert_eq!(restored.expect("it was restored"), "whole");
    assert_eq!(job.describe()["attempts"][1]["restoredFrom"], good);
}

#[test]
fn c12_a_checkpoint_that_crashes_the_job_is_given_up_after_two_attempts() {
    let agent = Agent::ready();
    let (job, mut puppet) = Job::with_recovery(&agent, "train", "maxRetries: 5");
    puppet.save("progress", "fine");
    let fine = job.checkpoint_now();
    puppet.save("progress", "poison");
    let poison = job.checkpoint_now();
    puppet.exit(1);

    let mut starts = Vec::new();
    loop {
        let puppet = job.next_process();
        let from = job.describe()["attempts"].as_array().and_then(|all| all.last().cloned());
        let from = from.expect("an attempt runs")["restoredFrom"].as_u64();
        starts.push(from.expect("each later attempt starts from a checkpoint"));
        if starts.last() == Some(&fine) {
            break;
        }
        assert!(starts.len() < 5, "it goes on with {starts:?}");
        puppet.exit(1);
    }
    assert_eq!(starts, [poison, poison, fine]);
    let listed = job.checkpoint(poison);
    assert_eq!(listed["state"], "Suspect", "it is marked, and still there: {listed}");
    let state = fs::read_to_string(job.state_dir().join("progress"));
    assert_eq!(state.expect("it was restored"), "fine");
    let attempts = job.describe()["attempts"].clone();
    let reason = attempts[3]["restoreReason"].to_string();
    assert!(reason.contains("Suspect") || reason.contains("suspect"), "{attempts}");
}

#[test]
fn c13_numbers_go_on_after_the_agent_lost_everything_it_knew() {
    const RECOVERY: &str = "maxRetries: 0, checkpoint: {keepLast: 10}";
    let mut agent = Agent::ready();
    let (job, mut puppet) = Job::with_recovery(&agent, "train", RECOVERY);
    let mut seqs = Vec::new();
    for content in ["one", "two", "three"] {
        puppet.save("progress", content);
        seqs.push(job.checkpoint_now());
    }
    agent.kill_9();
    puppet.kill_9();
    wait::until("the attempt to be over", LONG, || agent.processes().is_empty());
    fs::remove_dir_all(agent.state_dir()).expect("it is there");
    agent.start();

    let mut puppet = job.submit(RECOVERY);
    puppet.save("progress", "four");
    let fourth = job.checkpoint_now();
    assert!(fourth > seqs[2], "{fourth} after {seqs:?}");
    for (seq, content) in seqs.iter().zip(["one", "two", "three"]) {
        assert_eq!(job.restored_file(*seq, "progress"), content, "checkpoint {seq}");
    }
    assert_eq!(job.restored_file(fourth, "progress"), "four");
}

#[test]
fn c13_a_store_that_cannot_be_listed_gets_no_guessed_number() {
    let agent = Agent::ready();
    let (job, mut puppet) = Job::start(&agent, "train", "");
    puppet.save("progress", "1");
    job.checkpoint_now();
    job.suspend();
    let checkpoints = job.directory_in(&agent.store()).join("checkpoints");
    let aside = agent.home().join("aside");
    fs::rename(&checkpoints, &aside).expect("a directory can be renamed");
    fs::write(&checkpoints, "not a directory").expect("a new file");

    // Whether the next attempt is refused or runs without checkpoints, nothing gets a number.
    job.ctl().run(&["resume", "train"]);
    let done = job.ctl().run(&["checkpoint", "now", "train"]);
    assert_ne!(done.status, 0, "{}", done.stdout);
    assert_eq!(fs::read_to_string(&checkpoints).expect("it is still there"), "not a directory");
}

#[test]
fn c14_a_store_that_fails_for_a_while_is_seen_and_then_used_again() {
    if !is_root() {
        return skipped("c14", "a loop file system needs root");
    }
    let disk = LoopFs::ext4(64);
    let remount = |how: &str| {
        let mut mount = Command::new("mount");
        mount.arg("-o").arg(format!("remount,{how}")).arg(disk.path());
        assert!(mount.status().expect("mount is there").success(), "{how}");
    };
    let agent = AgentConfig::default().store(&disk.path().join("store")).start();
    let (job, mut puppet) = Job::start(&agent, "train", "");
    puppet.save("progress", "1");
    let first = job.checkpoint_now();

    remount("ro");
    puppet.save("progress", "2");
    let done = job.ctl().run(&["checkpoint", "now", "train"]).ends_with(1);
    assert!((done.stdout + &done.stderr).contains("StoreUnavailable"));
    let failed = job.newest();
    assert_eq!(
        (&failed["state"], &failed["reason"]),
        (&json!("Failed"), &json!("StoreUnavailable"))
    );
    agent.wait_for_log("StoreUnavailable");
    let conditions = job.describe()["conditions"].to_string();
    assert!(conditions.contains("StoreUnavailable"), "{conditions}");

    remount("rw");
    puppet.save("progress", "3");
    let third = job.checkpoint_now();
    assert_eq!(job.stored(), [first, third]);
    assert!(!job.checkpoint(third)["bases"].to_string().contains(&failed["seq"].to_string()));
    assert_eq!(job.restored_file(third, "progress"), "3");
    assert!(job.describe()["conditions"].is_null(), "it is over: {}", job.describe());
}

/// Runs a program in standalone mode with its store below its state, as `place` puts it there; what
/// else `place` returns is dropped before the directories are.
fn store_inside<T>(place: impl FnOnce(&Path) -> (PathBuf, T)) {
    let home = tempfile::TempDir::with_prefix("nodus-test-").expect("a temporary directory");
    let state = home.path().join("state");
    fs::create_dir(&state).expect("a new directory");
    let data = noise(MIB);
    fs::write(state.join("data"), &data).expect("a new file");
    let (store, _held) = place(&state);
    let text = |path: &Path| path.to_str().expect("a plain name").to_owned();
    let ctl = nodus_tests::Ctl::standalone(home.path());
    for round in 0..5 {
        fs::write(state.join("round"), format!("{round}")).expect("a new file");
        let done = ctl.run(&[
            "run",
            "--standalone",
            "--name",
            "train",
            "--checkpoint",
            &text(&state),
            "--store",
            &text(&store),
            "--state-root",
            &text(&home.path().join("jobs")),
            "--",
            "true",
        ]);
        if done.status != 0 {
            assert!(done.stderr.contains("store"), "it says why: {}", done.stderr);
            return; // refused at the start, which is as good
        }
    }
    let archives = WalkDir::new(&store).into_iter().filter_map(Result::ok);
    let archives = archives.filter(|entry| entry.file_name() == "data-0.tar.zst");
    let largest = archives.filter_map(|entry| Some(entry.metadata().ok()?.len())).max();
    let largest = largest.expect("checkpoints were stored");
    assert!(largest < (MIB + MIB / 10) as u64, "{largest} bytes: it holds earlier checkpoints");
    let all = ctl.run(&["checkpoint", "list", "train", "--store", &text(&store), "-o", "json"]);
    let notes = all.ok().stdout;
    assert!(notes.contains("store"), "leaving the store out is noted: {notes}");
}

#[test]
fn c31_a_store_inside_the_state_directory_is_not_stored_in_itself() {
    store_inside(|state| (state.join(".ckpt"), ()));
}

#[test]
fn c31_not_through_a_link_either() {
    store_inside(|state| {
        let real = state.join(".ckpt");
        fs::create_dir(&real).expect("a new directory");
        let link = state.parent().expect("it is in a directory").join("link");
        std::os::unix::fs::symlink(&real, &link).expect("a new link");
        (link, ())
    });
}

#[test]
fn c31_nor_through_a_bind_mount() {
    if !is_root() {
        return skipped("c31", "a bind mount needs root");
    }
    struct Mounted(PathBuf);
    impl Drop for Mounted {
        fn drop(&mut self) {
            let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
        }
    }
    store_inside(|state| {
        let real = state.join(".ckpt");
        let elsewhere = state.parent().expect("it is in a directory").join("mounted");
        for directory in [&real, &elsewhere] {
            fs::create_dir(directory).expect("a new directory");
        }
        let mut mount = Command::new("mount");
        mount.arg("--bind").arg(&real).arg(&elsewhere);
        assert!(mount.status().expect("mount is there").success());
        (elsewhere.clone(), Mounted(elsewhere))
    });
}

#[test]
fn c32_the_agents_own_files_are_not_in_a_checkpoint_of_where_it_lives() {
    let mut agent = Agent::ready();
    let work = agent.home().join("work");
    fs::create_dir(&work).expect("a new directory");
    // A job that saves the whole place in which its agent keeps everything.
    let home = agent.home().to_str().expect("a plain name").to_owned();
    let puppets = Puppets::listen(&work, "train");
    let variable = puppets.variable();
    let ctl = agent.ctl();
    let options = ["run", "--name", "train", "-d", "--checkpoint", &home, "--env", &variable, "--"];
    let program = Puppets::program();
    let done = ctl.run(&[&options[..], &[&program]].concat());
    if done.status != 0 {
        assert!(done.stderr.contains("checkpoint"), "it says why: {}", done.stderr);
        return; // refused at the start, which is as good
    }
    let puppet = puppets.accept();
    fs::write(work.join("progress"), "1").expect("a new file");
    let seq = ctl.checkpoint_now("train");
    let elsewhere = tempfile::TempDir::new().expect("a temporary directory");
    let to = elsewhere.path().join("restored");
    let text = to.to_str().expect("a plain name");
    ctl.run(&["restore", "train", "--seq", &seq.to_string(), "--to", text]).ok();
    assert!(to.join("work/progress").exists());
    for own in ["run", "lib", "store"] {
        let left: Vec<_> = WalkDir::new(to.join(own)).into_iter().filter_map(Result::ok).collect();
        let files: Vec<_> = left.iter().filter(|entry| !entry.file_type().is_dir()).collect();
        assert!(files.is_empty(), "{own} of the agent is in the checkpoint: {files:?}");
    }
    drop(puppet);
    agent.kill_9_and_restart();
}

#[test]
fn c34_a_state_directory_that_was_emptied_never_becomes_a_checkpoint() {
    let agent = Agent::ready();
    let (job, mut puppet) = Job::start(&agent, "train", "");
    for name in ["a", "b", "c"] {
        puppet.save(name, name);
    }
    let good = job.checkpoint_now();
    for entry in fs::read_dir(job.state_dir()).expect("it is there").filter_map(Result::ok) {
        fs::remove_file(entry.path()).expect("files can be removed");
    }
    job.ctl().run(&["checkpoint", "now", "train"]).ends_with(6);
    job.ctl().run(&["notice", "reclaim", "--in", "1m"]).ok();
    wait::until("the notice to be acted on", LONG, || job.newest()["cause"] == "Reclaim");
    wait::until("its checkpoint to end", LONG, || job.newest()["state"] == "Skipped");
    job.suspend();
    let others: Vec<Value> = job
        .ctl()
        .checkpoints("train")
        .into_iter()
        .filter(|checkpoint| checkpoint["seq"] != good)
        .collect();
    assert!(others.len() >= 3, "{others:?}");
    for checkpoint in others {
        assert_eq!(checkpoint["state"], "Skipped", "{checkpoint}");
        assert_eq!(checkpoint["reason"], "Empty", "{checkpoint}");
    }
    assert_eq!(job.stored(), [good]);
    let _puppet = job.resume();
    for name in ["a", "b", "c"] {
        let restored = fs::read_to_string(job.state_dir().join(name));
        assert_eq!(restored.expect("it was restored"), name);
    }
}

#[test]
fn c34_a_first_snapshot_of_nothing_is_no_checkpoint() {
    let run = Standalone::new("empty");
    let mut once = run.run(&["true"]);
    assert_eq!(once.ends().code(), Some(0), "{:?}", once.stderr());
    let files = WalkDir::new(run.store()).into_iter().filter_map(Result::ok);
    let records: Vec<_> = files.filter(|entry| entry.file_name() == "checkpoint.json").collect();
    assert!(records.is_empty(), "{records:?}");
}

/// An agent under a watchdog of a second, whose `WATCHDOG_PID` is `pid`, a shell expression.
fn watched(agent: &Agent, notify: &NotifySocket, pid: &str) -> Running {
    let plain = agent.command();
    let mut command = Command::new("sh");
    command.args(["-c", &format!("export WATCHDOG_PID={pid}; exec \"$0\" \"$@\"")]);
    command.arg(plain.get_program()).args(plain.get_args()).env_clear();
    command.envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.env("WATCHDOG_USEC", "1000000").env("NOTIFY_SOCKET", notify.path());
    let running = Running::start(&mut command);
    assert!(notify.wait_for("READY=1", LONG), "{:?}", running.stderr());
    running
}

#[test]
fn c94_the_watchdog_is_fed_while_a_checkpoint_is_under_way() {
    let agent = AgentConfig::default().stopped();
    let notify = NotifySocket::new(&agent.home().join("watchdog"));
    let running = watched(&agent, &notify, "$$");
    let (job, _puppet) = Job::start(&agent, "train", "");
    let mut file = fs::File::create(job.state_dir().join("model")).expect("the state directory");
    for _ in 0..16 {
        file.write_all(&noise(32 * MIB)).expect("there is room");
    }
    let mut asked = job.ask();
    let mut fed = Vec::new();
    while asked.ended_within(Duration::ZERO).is_none() {
        fed.extend(notify.times_of("WATCHDOG=1", Duration::from_millis(300)));
    }
    fed.extend(notify.times_of("WATCHDOG=1", Duration::from_secs(2)));
    let longest = fed.windows(2).map(|pair| pair[1] - pair[0]).max().expect("it was fed");
    assert!(longest < Duration::from_millis(1000), "once not for {longest:?}");
    nodus_tests::stored(asked);

    // Stuck for good, it does not say that it is alive.
    running.signal(Signal::STOP);
    notify.times_of("WATCHDOG=1", Duration::from_millis(100)); // what was on its way
    assert!(notify.times_of("WATCHDOG=1", Duration::from_millis(1500)).is_empty());
}

#[test]
fn c94_a_watchdog_of_another_process_is_not_fed() {
    let agent = AgentConfig::default().stopped();
    let notify = NotifySocket::new(&agent.home().join("watchdog"));
    let _running = watched(&agent, &notify, "1");
    assert!(notify.times_of("WATCHDOG=1", Duration::from_millis(1500)).is_empty());
}

#[test]
fn c95_ready_means_that_a_connection_succeeds() {
    let mut agent = Agent::ready();
    for _ in 0..20 {
        agent.kill_9();
        agent.start();
        let connected = std::os::unix::net::UnixStream::connect(agent.control_socket());
        connected.expect("it said that it is ready");
    }
}

#[test]
fn c95_a_store_that_fails_does_not_keep_the_socket_from_being_served() {
    let config = AgentConfig::default();
    let store = config.home().join("store-is-a-file");
    fs::write(&store, "not a directory").expect("a new file");
    let agent = config.store(&store).start();
    agent.ctl().run(&["list"]).ok();
}

#[test]
fn c95_an_agent_that_cannot_start_says_so_and_is_never_ready() {
    let mut agent = AgentConfig::default().setting("no_such_key = 1").stopped();
    agent.start_unready();
    let status = agent.process().ends();
    assert!(status.code().is_some_and(|code| code != 0), "{status}");
    assert!(!agent.notify().wait_for("READY=1", Duration::from_millis(10)));
    assert!(agent.log().contains("no_such_key"), "{}", agent.log());
}

/// What is left out of checkpoints is not lost by a restore: the store itself, above all.
#[test]
fn c31_a_store_inside_the_state_directory_outlives_a_restore() {
    let run = Standalone::new("train");
    let project = run.home().to_owned();
    let run = run.option("--checkpoint").option(project.to_str().expect("a plain name"));
    fs::write(project.join("data"), "saved").expect("the home can be written");
    let mut first = run.run(&["sh", "-c", "echo ready; exec sleep 60"]);
    first.says("ready");
    first.ctrl_c();
    assert_eq!(first.ends().code(), Some(75), "{:?}", first.stderr());

    fs::write(project.join("data"), "changed while nobody looked").expect("as above");
    fs::write(project.join("more"), "x").expect("as above");
    let mut second = run.run(&["sh", "-c", "cat data; ls"]);
    assert_eq!(second.ends().code(), Some(0), "{:?}", second.stderr());
    let said = second.stdout().join("\n");
    assert!(said.starts_with("saved") && !said.contains("more"), "it was not restored: {said}");
    assert!(!run.checkpoints().is_empty(), "the store was lost");
    run.ctl(&["checkpoint", "verify", "train"]).ok();
}
