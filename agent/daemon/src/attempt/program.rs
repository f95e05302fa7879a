//! From a fresh child of the shim to the attempt's program.

use std::convert::Infallible;
use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use nix::unistd::{dup2_stderr, dup2_stdin, dup2_stdout, execve};
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal, setpgid};
use rustix::thread::{Gid, Uid, set_thread_gid, set_thread_groups, set_thread_uid};

use super::cgroup::Cgroup;
use super::channel::{Failure, Stage};
use super::plan::UserIds;
use super::record::Order;
use super::{ATTEMPT_ID, CPU};

/// Where commands are looked up if the environment has no `PATH`.
const DEFAULT_PATH: &str = "/usr/local/bin:/usr/bin:/bin";
/// Runs a script that does not name its interpreter, as every shell and `execvp` does it.
const SHELL: &str = "/bin/sh";

/// Becomes the program; returns only with the reason why it could not.
pub(super) fn become_program(order: &Order, log: Option<&File>, shim: super::Pid) -> Failure {
    let Err(failure) = prepare(order, log, shim).and_then(|()| execute(order));
    failure
}

fn prepare(order: &Order, log: Option<&File>, shim: super::Pid) -> Result<(), Failure> {
    let failed =
        |stage, detail: &'static str| move |error: io::Error| Failure::new(stage, detail, &error);
    setpgid(None, None)
        .map_err(io::Error::from)
        .map_err(failed(Stage::Other, "a process group"))?;
    if let Some(group) = &order.cgroup {
        // Without it the attempt is supervised by descent alone, as where there are no cgroups.
        let _ = Cgroup::at(group.clone()).join();
    }
    redirect(log).map_err(failed(Stage::Other, "the program's standard files"))?;
    if let Some(user) = &order.plan.user {
        switch_user(user)
            .map_err(|error| Failure::new(Stage::User, user.uid.to_string(), &error))?;
    }
    die_with(shim).map_err(failed(Stage::Other, "the parent's death signal"))?;
    let workdir = &order.plan.workdir;
    std::env::set_current_dir(workdir)
        .map_err(|error| Failure::new(Stage::Workdir, workdir.to_string_lossy(), &error))?;
    crate::sys::reset_signals().map_err(failed(Stage::Other, "the signals"))
}

fn redirect(log: Option<&File>) -> io::Result<()> {
    dup2_stdin(File::open("/dev/null")?)?;
    if let Some(log) = log {
        dup2_stdout(log.as_fd())?;
        dup2_stderr(log.as_fd())?;
    }
    Ok(())
}

/// Takes on the user for good: as root, all three ids of user and group change.
fn switch_user(user: &UserIds) -> io::Result<()> {
    let groups: Vec<Gid> = user.groups.iter().map(|&gid| Gid::from_raw(gid)).collect();
    set_thread_groups(&groups)?;
    set_thread_gid(Gid::from_raw(user.gid))?;
    set_thread_uid(Uid::from_raw(user.uid))?;
    Ok(())
}

/// Has the kernel kill this process when the shim ends: nothing may run that nobody watches.
///
/// Comes after the switch of user, which would clear it.
fn die_with(shim: super::Pid) -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    if getppid().map(Pid::as_raw_pid) == Some(shim) {
        Ok(())
    } else {
        Err(io::Error::from_raw_os_error(nix::errno::Errno::ESRCH as i32)) // Too late already.
    }
}

fn execute(order: &Order) -> Result<Infallible, Failure> {
    let plan = &order.plan;
    let name = plan.command.first().map_or("", String::as_str);
    let failed = |stage, error: &io::Error| Failure::new(stage, name, error);
    let invalid = |error: &io::Error| failed(Stage::Exec, error);
    let arguments = strings(&plan.command).map_err(|error| invalid(&error))?;
    let environment = strings(&environment(order)).map_err(|error| invalid(&error))?;
    let mut last = io::Error::from_raw_os_error(nix::errno::Errno::ENOENT as i32);
    let mut stage = Stage::NotFound;
    for path in candidates(name, plan.env.get("PATH").map_or(DEFAULT_PATH, String::as_str)) {
        let Err(error) = exec_at(&path, &arguments, &environment);
        if path.exists() || error.kind() == io::ErrorKind::PermissionDenied {
            (stage, last) = (Stage::Exec, error);
        }
    }
    Err(failed(stage, &last))
}

fn exec_at(path: &Path, arguments: &[CString], env: &[CString]) -> io::Result<Infallible> {
    let file = CString::new(path.as_os_str().as_encoded_bytes())?;
    let Err(error) = execve(&file, arguments, env);
    if error == nix::errno::Errno::ENOEXEC {
        let shell = CString::new(SHELL)?;
        let script = [&[shell.clone(), file], &arguments[1..]].concat();
        let Err(error) = execve(&shell, &script, env);
        return Err(error.into());
    }
    Err(error.into())
}

/// The files that a command name can mean, in the order in which they are tried.
fn candidates(name: &str, path: &str) -> Vec<PathBuf> {
    if name.is_empty() {
        return Vec::new();
    }
    if name.contains('/') {
        return vec![name.into()];
    }
    // An empty entry means the working directory.
    let dir = |dir: &str| Path::new(if dir.is_empty() { "." } else { dir }).join(name);
    path.split(':').map(dir).collect()
}

fn environment(order: &Order) -> Vec<String> {
    let mut all = order.plan.env.clone();
    all.insert(ATTEMPT_ID.into(), order.id.clone());
    if let Some(cpu) = order.plan.cpu {
        all.insert(CPU.into(), cpu.to_string());
    }
    all.into_iter().map(|(name, value)| format!("{name}={value}")).collect()
}

fn strings(texts: &[String]) -> io::Result<Vec<CString>> {
    Ok(texts.iter().map(|text| CString::new(text.as_str())).collect::<Result<_, _>>()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_looked_up_as_shells_do() {
        let check = |name: &str, path: &str, expected: &[&str]| {
            let expected: Vec<PathBuf> = expected.iter().map(PathBuf::from).collect();
            assert_eq!(candidates(name, path), expected);
        };
        check("train", "/a:/b", &["/a/train", "/b/train"]);
        check("./train", "/a:/b", &["./train"]);
        check("/opt/train", "/a", &["/opt/train"]);
        check("train", "/a::rel", &["/a/train", "./train", "rel/train"]);
        check("", "/a", &[]);
    }
}
