//! Capture, archive and commit through the public interface.

mod common;

use std::fs;

use common::{Job, noise};

#[test]
fn a_plain_tree_is_committed_whole() {
    let mut job = Job::new();
    job.write("step.json", b"{\"step\":1}");
    job.write("empty", b"");
    job.write("a/b/model.bin", noise(1, 9 << 20));
    job.write("a.b", vec![7; 200 << 10]);
    fs::create_dir(job.state().join("none")).unwrap();
    std::os::unix::fs::symlink("step.json", job.state().join("last")).unwrap();
    let record = job.commit();
    job.assert_same(&record);
    job.assert_no_leftovers();
    let (_target, root) = job.untar(&record);
    assert_eq!(fs::read(root.join("a/b/model.bin")).unwrap(), noise(1, 9 << 20));
    assert_eq!(fs::read(root.join("step.json")).unwrap(), b"{\"step\":1}");
}
