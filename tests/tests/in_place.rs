//! Files that a program writes in place: what it writes once it was told `checkpoint.captured` is not
//! in the checkpoint, whether the file system can clone (xfs) or the capture has to copy.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

use nodus_tests::{Agent, Events, Job, LoopFs, is_root, skipped, stored};

/// Large enough to be copied only after the capture, were it not known to be written in place.
const SIZE: usize = 24 << 20;

fn fill(path: &Path, byte: u8) {
    let file = File::options().write(true).create(true).truncate(false).open(path);
    let file = file.expect("the state directory can be written");
    file.write_all_at(&vec![byte; SIZE], 0).expect("there is room");
    file.sync_all().expect("the disk takes it");
}

/// One checkpoint of `before`, which becomes `after` as soon as the program may write again.
fn checkpoint(job: &Job, events: &mut Events, file: &Path, before: u8, after: u8) -> u64 {
    let asked = job.ask();
    let seq = events.expect_request();
    fill(file, before);
    events.ack(seq);
    events.expect("checkpoint.captured");
    fill(file, after);
    events.expect("checkpoint.committed");
    let done = stored(asked);
    assert_eq!(done["outcome"]["consistency"], "Acked", "{done}");
    seq
}

fn written_in_place(state: &Path) {
    fs::create_dir_all(state).expect("it can be made");
    let file = state.join("model.bin");
    fill(&file, 1);
    let agent = Agent::ready();
    let (job, mut puppet) = Job::start(&agent, "train", &format!("paths: [{}]", state.display()));
    let mut events = puppet.events();
    events.subscribe_notify();
    job.wait_for_subscribers(1);
    job.ask_and_answer(&mut events);
    // Now it is known to be written in place: the same file, changed since the last capture.
    for round in [10, 20] {
        let seq = checkpoint(&job, &mut events, &file, round, round + 1);
        let copy = fs::read(job.restored(seq).join("model.bin")).expect("it is in the checkpoint");
        assert_eq!(copy.len(), SIZE);
        assert!(copy.iter().all(|byte| *byte == round), "of one moment, that of the ack");
    }
}

#[test]
fn where_the_file_system_clones() {
    if !is_root() {
        skipped("where_the_file_system_clones", "mounts need root");
        return;
    }
    let xfs = LoopFs::xfs(400);
    written_in_place(&xfs.path().join("state"));
}

#[test]
fn where_it_does_not() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    written_in_place(&dir.path().canonicalize().expect("it is there").join("state"));
}

/// A program that never subscribes is held still for the capture and goes on afterwards.
#[test]
fn a_frozen_program_goes_on() {
    let agent = Agent::ready();
    let (job, mut puppet) = Job::start(&agent, "train", "quiesce: Freeze");
    for round in 0..3 {
        puppet.save("a", &round.to_string());
        let seq = job.checkpoint_now();
        assert_eq!(job.checkpoint(seq)["consistency"], "Quiet");
        assert_eq!(job.restored_file(seq, "a"), round.to_string());
    }
    puppet.save("a", "still here");
}
