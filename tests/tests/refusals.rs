//! What is not stored, and that everybody who looks can see why: the command that asked, the
//! listing, the description and the agent's log.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::Path;

use nodus_tests::{Agent, AgentConfig, Job, LoopFs, is_root, skipped, tree};
use serde_json::Value;

/// Bytes that do not compress, different for each seed.
fn noise(bytes: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut noise = Vec::with_capacity(bytes + 8);
    while noise.len() < bytes {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        noise.extend_from_slice(&state.to_le_bytes());
    }
    noise.truncate(bytes);
    noise
}

const MIB: usize = 1 << 20;

/// The reason is on every surface: what the asker got, the listing, the description, the log.
fn assert_seen(agent: &Agent, job: &Job, state: &str, reason: &str) -> Value {
    let listed = job.newest();
    assert_eq!(listed["state"], state, "{listed}");
    assert_eq!(listed["reason"], reason, "{listed}");
    let last = &job.describe()["lastOutcome"];
    assert_eq!(last["seq"], listed["seq"], "{last}");
    assert_eq!(last["result"]["outcome"], state, "{last}");
    assert_eq!(last["result"]["reason"], reason, "{last}");
    agent.wait_for_log(reason);
    listed
}

/// Asks for a checkpoint that is not stored; what the asker got.
fn refused(job: &Job, status: i32, reason: &str) {
    let done = job.ctl().run(&["checkpoint", "now", "train"]).ends_with(status);
    assert!((done.stdout + &done.stderr).contains(reason), "the reason {reason} is said");
}

#[test]
fn unchanged_is_skipped() {
    let agent = Agent::ready();
    let (job, mut puppet) = Job::start(&agent, "train", "");
    puppet.save("a", "1");
    let first = job.checkpoint_now();
    refused(&job, 6, "Unchanged");
    assert_seen(&agent, &job, "Skipped", "Unchanged");
    puppet.save("a", "2");
    let next = job.checkpoint_now();
    assert_eq!(next, first + 2, "a skipped one uses up its number");
    assert_eq!(job.stored(), [first, next]);
}

#[test]
fn empty_never_replaces_good() {
    let agent = Agent::ready();
    let (job, mut puppet) = Job::start(&agent, "train", "");
    puppet.save("a", "1");
    let good = job.checkpoint_now();
    fs::remove_file(job.state_dir().join("a")).expect("it was saved");
    refused(&job, 6, "Empty");
    assert_seen(&agent, &job, "Skipped", "Empty");
    assert_eq!(job.stored(), [good]);
    // A name without content is no progress either.
    fs::write(job.state_dir().join("b"), "").expect("the state directory is there");
    refused(&job, 6, "Empty");

    job.suspend();
    let puppet = job.resume();
    assert_eq!(puppet.env("NODUS_RESTORED").as_deref(), Some("1"));
    assert_eq!(fs::read_to_string(job.state_dir().join("a")).expect("restored"), "1");
}

#[test]
fn too_large_before_the_copy() {
    let agent = Agent::ready();
    let (job, mut puppet) = Job::start(&agent, "train", "maxSize: 1Mi");
    puppet.save("a", "1");
    let good = job.checkpoint_now();
    fs::write(job.state_dir().join("big"), noise(2 * MIB, 1)).expect("the state directory");
    refused(&job, 1, "CheckpointTooLarge");
    let listed = assert_seen(&agent, &job, "Failed", "CheckpointTooLarge");
    let message = listed["message"].to_string();
    assert!(message.contains("1.00Mi"), "the limit is named: {message}");
    assert_eq!(job.stored(), [good]);

    fs::remove_file(job.state_dir().join("big")).expect("it is there");
    puppet.save("a", "2");
    job.checkpoint_now();
}

#[test]
fn too_large_during_the_copy() {
    let agent = Agent::ready();
    let (job, mut puppet) = Job::start(&agent, "train", "maxSize: 300Mi");
    puppet.save("progress", "1");
    let good = job.checkpoint_now();
    let state = job.state_dir();
    // The first keeps the copy busy while the second, which is copied after it, grows.
    fs::write(state.join("a-large"), noise(256 * MIB, 1)).expect("the state directory");
    fs::write(state.join("b-growing"), noise(MIB, 2)).expect("the state directory");
    let more = noise(64 * MIB, 3);
    let mut events = puppet.events();
    events.subscribe_notify();
    job.wait_for_subscribers(1);

    let mut asked = job.ask();
    let seq = events.expect_request();
    events.ack(seq);
    events.expect("checkpoint.captured");
    let growing = OpenOptions::new().append(true).open(state.join("b-growing"));
    growing.expect("it is there").write_all(&more).expect("there is room");
    let failed = events.expect("checkpoint.failed");
    assert_eq!(failed["reason"], "CheckpointTooLarge", "{failed}");
    assert_eq!(asked.ends().code(), Some(1), "{:?}", asked.stderr());
    assert_seen(&agent, &job, "Failed", "CheckpointTooLarge");
    assert_eq!(job.stored(), [good]);
    assert_nothing_half_written(&job, &agent.store(), &[good]);
}

/// The job's directory in the store has these checkpoints and nothing else.
fn assert_nothing_half_written(job: &Job, store: &Path, seqs: &[u64]) {
    let directory = job.directory_in(store).join("checkpoints");
    let entries = fs::read_dir(&directory).expect("the store has the job");
    let mut names: Vec<String> = entries
        .map(|entry| entry.expect("it can be listed").file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    let mut expected: Vec<String> = seqs.iter().map(u64::to_string).collect();
    expected.sort();
    assert_eq!(names, expected);
}

#[test]
fn c51_a_full_disk_fails_that_checkpoint_and_leaves_the_earlier_ones() {
    if !is_root() {
        return skipped("c51", "a loop file system needs root");
    }
    let disk = LoopFs::ext4(192);
    let filler = disk.path().join("filler");
    fs::write(&filler, vec![7_u8; 64 * MIB]).expect("it fits");
    let agent = AgentConfig::default().store(&disk.path().join("store")).start();
    let (job, mut puppet) = Job::start(&agent, "train", "");
    let mut events = puppet.events();
    events.subscribe_notify();
    job.wait_for_subscribers(1);
    let model = job.state_dir().join("model");
    let mut save = |bytes: usize, seed: u64| {
        fs::write(&model, noise(bytes, seed)).expect("the state directory");
        let asked = job.ask();
        let seq = events.expect_request();
        events.ack(seq);
        let ended = events.expect_any(&["checkpoint.committed", "checkpoint.failed"]);
        (asked, seq, ended)
    };

    let (asked, first, _) = save(40 * MIB, 1);
    nodus_tests::stored(asked);
    let expected = tree::read(&job.state_dir()).expect("the state can be read");
    let free = disk.free();

    let (mut asked, second, told) = save(80 * MIB, 2);
    assert_eq!(asked.ends().code(), Some(1), "{:?}", asked.stderr());
    assert_eq!(told["reason"], "NoSpace", "the program is told: {told}");
    let listed = assert_seen(&agent, &job, "Failed", "NoSpace");
    assert_eq!(listed["seq"], second);
    let message = listed["message"].to_string();
    let names_it = message.contains(disk.path().to_str().expect("a plain name"));
    assert!(names_it, "the message names the disk: {message}");
    assert!(free.abs_diff(disk.free()) <= MIB as u64, "{free} were free, now {}", disk.free());
    assert_nothing_half_written(&job, &agent.store(), &[first]);
    job.ctl().run(&["checkpoint", "verify", "train", &first.to_string()]).ok();
    let restored = tree::read(&job.restored(first)).expect("it was restored");
    tree::assert_same_entries(&expected, &restored);
    assert_eq!(job.ctl().phase("train"), "Running", "the program goes on");

    fs::remove_file(&filler).expect("it is there");
    let (asked, third, _) = save(80 * MIB, 3);
    nodus_tests::stored(asked);
    assert_eq!(job.stored(), [first, third]);
}

#[test]
fn intervals_from_a_minute_to_six_hours_are_accepted_and_others_refused() {
    let agent = Agent::ready();
    let ctl = agent.ctl();
    for (number, interval) in ["1m", "6h", "auto"].into_iter().enumerate() {
        let name = format!("ok-{number}");
        ctl.submit(&name, &["--interval", interval], &["true"]);
    }
    for interval in ["59s", "6h1s", "0", "sometimes"] {
        let options = ["run", "--name", "bad", "-d", "--interval", interval, "--", "true"];
        let done = ctl.run(&options).ends_with(2);
        assert!(done.stderr.contains("recovery.checkpoint.interval"), "{}", done.stderr);
        assert!(done.stderr.contains("1m to 6h"), "{}", done.stderr);
        assert!(done.stderr.contains(interval), "{}", done.stderr);
    }
    assert!(!ctl.run(&["list"]).ok().stdout.contains("bad"), "nothing runs under that name");
}

#[test]
fn a_wrong_description_is_refused_before_anything_runs() {
    let agent = Agent::ready();
    let ctl = agent.ctl();
    let paths: Vec<String> = (0..65).map(|number| format!("/data/{number}")).collect();
    let too_many = format!("recovery: {{checkpoint: {{paths: [{}]}}}}", paths.join(", "));
    for (wrong, named) in [
        ("recovery: {checkpoint: {paths: [state]}}", "recovery.checkpoint.paths"),
        ("recovery: {checkpoint: {paths: [/a, /a/b]}}", "recovery.checkpoint.paths"),
        ("recovery: {checkpoint: {maxSize: 1TB}}", "recovery.checkpoint.maxSize"),
        ("recovery: {checkpoint: {retainAfterFinish: long}}", "retainAfterFinish"),
        ("recovery: {checkpoint: {keepLast: 0}}", "keepLast"),
        ("recovery: {continuity: Sometimes}", "Sometimes"),
        ("recovery: {retries: 1}", "retries"),
        (too_many.as_str(), "recovery.checkpoint.paths"),
    ] {
        let done = ctl.submit_yaml(&format!("name: bad\ncommand: [touch, ran]\n{wrong}\n"));
        let done = done.ends_with(2);
        assert!(done.stderr.contains(named), "{wrong}: {}", done.stderr);
    }
    assert!(!agent.home().join("ran").exists());
    ctl.run(&["describe", "bad"]).ends_with(4);
}

#[test]
fn no_agent_is_said_with_what_to_do() {
    let agent = AgentConfig::default().stopped();
    let done = agent.ctl().run(&["run", "--name", "n", "--", "true"]).ends_with(3);
    assert!(done.stderr.contains("--standalone"), "{}", done.stderr);
}
