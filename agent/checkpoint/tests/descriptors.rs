//! More large files than descriptors; alone in its process, since the limit is the process's.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::{Job, noise};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

#[test]
fn files_that_cannot_be_pinned_are_copied_in_the_capture() {
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: Some(100), maximum }).unwrap();
    let mut job = Job::new();
    for file in 0..150 {
        job.write(&format!("dir/{file}"), noise(file, 130 << 10));
    }
    let captured = job.capture().unwrap();
    let open = std::fs::read_dir("/proc/self/fd").unwrap().count();
    assert!(open < 60, "{open} descriptors are open");
    let record = common::committed(common::finish(captured, common::UNASKED).unwrap());
    job.assert_same(&record);
    let (_target, root) = job.untar(&record);
    assert!(std::fs::read(root.join("dir/149")).unwrap() == noise(149, 130 << 10));
}
