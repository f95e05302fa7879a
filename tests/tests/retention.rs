//! Which checkpoints are kept: while a job runs, after it has finished, and when it is deleted.

use std::path::Path;

use nodus_tests::wait::{self, LONG};
use nodus_tests::{Agent, Job};
use walkdir::WalkDir;

fn bytes_below(directory: &Path) -> u64 {
    let entries = WalkDir::new(directory).into_iter().filter_map(Result::ok);
    let files =
        entries.filter_map(|entry| entry.metadata().ok()).filter(std::fs::Metadata::is_file);
    files.map(|file| file.len()).sum()
}

#[test]
fn after_the_finish_only_the_final_checkpoint_is_left() {
    let agent = Agent::ready();
    let (job, mut puppet) = Job::start(&agent, "train", "retainAfterFinish: 3s");
    for step in 1..=3 {
        puppet.save("progress", &step.to_string());
        job.checkpoint_now();
    }
    puppet.save("progress", "4");
    puppet.exit(0);
    job.wait_for_phase("Succeeded");
    let all = job.stored();
    let last = *all.last().expect("the exit left one");
    assert_eq!(job.checkpoint(last)["cause"], "Exit");
    assert!(all.len() > 1, "nothing is deleted before its time: {all:?}");
    wait::until("the earlier ones to be deleted", LONG, || job.stored() == [last]);
    assert_eq!(job.restored_file(last, "progress"), "4");
}

#[test]
fn while_it_runs_the_newest_are_kept_and_the_newest_acked() {
    let agent = Agent::ready();
    let (job, mut puppet) = Job::start(&agent, "train", "keepLast: 2, ackTimeout: 1s");
    let mut events = puppet.subscriber();
    job.wait_for_subscribers(1);
    puppet.save("progress", "acked");
    let asked = job.ask();
    let acked = events.expect_request();
    events.ack(acked);
    nodus_tests::stored(asked);

    let mut newest = Vec::new();
    for step in 1..=3 {
        puppet.save("progress", &step.to_string());
        newest.push(job.checkpoint_now()); // no answer: it goes on without
    }
    let kept = [acked, newest[1], newest[2]];
    wait::until(&format!("only {kept:?} to be kept"), LONG, || job.stored() == kept);
    assert_eq!(job.restored_file(acked, "progress"), "acked");
}

#[test]
fn with_the_job_its_checkpoints_are_deleted() {
    let agent = Agent::ready();
    let (job, mut puppet) = Job::start(&agent, "train", "");
    puppet.save("progress", "1");
    job.checkpoint_now();
    let directory = job.directory_in(&agent.store());
    assert!(directory.exists());
    job.suspend();
    job.ctl().run(&["delete", "job/train"]).ok();
    job.ctl().run(&["describe", "job/train"]).ends_with(4);
    wait::until("its checkpoints to be deleted", LONG, || !directory.exists());
}

/// Thirty preemptions, each with an emergency checkpoint of its own: the store does not grow.
#[test]
fn c09_thirty_rounds_do_not_fill_the_store() {
    const SIZE: u64 = 1 << 20;
    let agent = Agent::ready();
    let (job, mut puppet) = Job::start(&agent, "train", "keepLast: 3, maxSize: 200Mi");
    for round in 0..30_u8 {
        // Blocks that compression cannot shrink and no earlier round has.
        let noise: Vec<u8> = (0..SIZE)
            .map(|at| {
                let mixed = (at + (u64::from(round) << 32)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
                ((mixed ^ (mixed >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9) >> 56) as u8
            })
            .collect();
        std::fs::write(job.state_dir().join("model"), noise).expect("the state directory");
        puppet.save("progress", &round.to_string());
        job.suspend();
        let used = bytes_below(&agent.store());
        assert!(used <= 4 * SIZE + (256 << 10), "round {round}: {used} bytes");
        puppet = job.resume();
    }
    let saved = std::fs::read_to_string(job.state_dir().join("progress"));
    assert_eq!(saved.expect("restored"), "29");
    let checkpoints = job.directory_in(&agent.store()).join("checkpoints");
    let unfinished = WalkDir::new(checkpoints).min_depth(1).into_iter().filter_map(Result::ok);
    let unfinished: Vec<_> =
        unfinished.filter(|entry| entry.file_name().to_string_lossy().starts_with('.')).collect();
    // The file whose lock a writer holds is not unfinished work.
    let unfinished: Vec<_> =
        unfinished.into_iter().filter(|entry| entry.file_name() != ".lock").collect();
    assert!(unfinished.is_empty(), "{unfinished:?}");
}
