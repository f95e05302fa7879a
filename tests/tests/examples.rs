//! The examples do what their README says.

use std::process::Command;

use nodus_tests::training::{assert_goes_on, example, python};
use nodus_tests::{Running, Standalone, binary, source};

/// Suspends the program with Ctrl-C in the middle and runs it again.
fn suspend_and_resume(program: &[&str]) {
    let run = Standalone::new("resume").env("STEPS", "40").env("STEP_SECONDS", "0.05");
    let mut first = run.run(program);
    first.says("step 7/");
    first.ctrl_c();
    assert_eq!(first.ends().code(), Some(75), "{:?}", first.stderr());
    let mut second = run.run(program);
    assert_eq!(second.ends().code(), Some(0), "{:?}", second.stderr());
    assert_goes_on(&first.stdout().join("\n"), &second.stdout().join("\n"), 7, 40);
    let all = run.checkpoints();
    let suspend = all.iter().find(|checkpoint| checkpoint["cause"] == "Suspend");
    assert_eq!(suspend.expect("it was suspended")["consistency"], "Acked", "it answered: {all:?}");
}

#[test]
fn the_example_in_python() {
    suspend_and_resume(&[python(), &example()]);
}

#[test]
fn the_example_in_rust() {
    let program = binary("resume-example");
    suspend_and_resume(&[program.to_str().expect("a build directory has a plain name")]);
}

/// Outside Nodus it is an ordinary program.
#[test]
fn the_example_runs_without_nodus() {
    let home = tempfile::TempDir::new().expect("a temporary directory");
    let mut command = Command::new(python());
    command.arg(example()).env_remove("NODUS_ATTEMPT").env("STEPS", "3");
    command.env("STEP_SECONDS", "0").env("NODUS_STATE_DIR", home.path());
    let mut alone = Running::start(&mut command);
    assert_eq!(alone.ends().code(), Some(0), "{:?}", alone.stderr());
    assert_eq!(alone.stdout().last().map(String::as_str), Some("training complete"));
}

#[test]
fn the_demo_shows_a_run_that_goes_on() {
    let home = tempfile::TempDir::new().expect("a temporary directory");
    let mut command = Command::new(source("examples/resume/demo"));
    command.arg(home.path().join("demo")).env("NODUSCTL", binary("nodusctl"));
    let mut demo = Running::start(&mut command);
    let status = demo.ends();
    let (said, errors) = (demo.stdout().join("\n"), demo.stderr().join("\n"));
    assert!(status.success(), "{said}\n{errors}");
    let (first, second) = said.split_at(said.find("resumed from").expect("it went on"));
    assert_goes_on(first, second, 12, 30);
    assert!(first.contains("Suspend"), "the checkpoint is listed: {first}");
}
