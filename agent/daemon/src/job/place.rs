//! Where the parts of a job are on this node, and what its attempts see of them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use nodus_checkpoint::Root;
use nodus_protocol::JobName;
use nodus_protocol::event::Progress;
use nodus_protocol::spec::{Continuity, Format, JobSpec};

/// The directory whose contents are the job's own, whatever node it runs on.
pub const OWN: &str = "/nodus";
/// Results that are no recovery state.
pub const OUTPUTS: &str = "/nodus/outputs";
/// Where the program finds the events socket.
pub const RUNTIME: &str = "/run/nodus";
/// The name of the events socket in its directory.
pub const EVENTS_SOCKET: &str = "events.sock";

/// What a service manager tells one process of a service, and no other.
const OF_A_SERVICE: [&str; 6] = [
    "NOTIFY_SOCKET",
    "WATCHDOG_USEC",
    "WATCHDOG_PID",
    "LISTEN_FDS",
    "LISTEN_PID",
    "LISTEN_FDNAMES",
];

/// Variables that say something by being there, so that nobody else may set them.
const SAID_BY_US: [&str; 3] = ["NODUS_RESTORED", "NODUS_CURSOR_COMPLETED", "NODUS_CURSOR_TOTAL"];

/// Where the parts of one job are on this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Holds what the job sees as `/nodus`: `state`, `outputs` and so on. The job's user owns it.
    pub home: PathBuf,
    /// The agent's records of the job and its attempts, and their logs.
    pub records: PathBuf,
    /// Holds the job's events socket.
    pub runtime: PathBuf,
}

impl Place {
    /// Where a path of the job really is: below `/nodus/` in the job's home, else as it is.
    #[must_use]
    pub fn physical(&self, logical: &Path) -> PathBuf {
        match logical.strip_prefix(OWN) {
            Ok(own) if own != Path::new("") => self.home.join(own),
            _ => logical.to_owned(),
        }
    }

    /// The paths that a checkpoint of the job holds.
    #[must_use]
    pub fn roots(&self, spec: &JobSpec) -> Vec<Root> {
        let dir = |path: &PathBuf| match path.starts_with(OWN) {
            true => self.physical(path),
            // A link that the user has named is a way to the files, and stays one after a restore.
            false => real(path),
        };
        let root = |path: &PathBuf| Root { path: path.clone(), dir: dir(path) };
        spec.recovery.checkpoint.paths.iter().map(root).collect()
    }

    /// The job's events socket.
    #[must_use]
    pub fn events_socket(&self) -> PathBuf {
        self.runtime.join(EVENTS_SOCKET)
    }

    /// What an attempt in a private view sees where: `(source, target)`, directories only, so that
    /// the new socket of a restarted agent is seen.
    #[must_use]
    pub fn binds(&self, spec: &JobSpec) -> Vec<(PathBuf, PathBuf)> {
        let own = spec.recovery.checkpoint.paths.iter().map(PathBuf::as_path);
        let tops: BTreeSet<PathBuf> = own
            .chain([Path::new(nodus_protocol::spec::DEFAULT_PATH), Path::new(OUTPUTS)])
            .filter_map(|path| path.strip_prefix(OWN).ok()?.components().next())
            .map(|top| Path::new(OWN).join(top))
            .collect();
        let own = tops.into_iter().map(|target| (self.physical(&target), target));
        own.chain([(self.runtime.clone(), PathBuf::from(RUNTIME))]).collect()
    }
}

/// The path with its links resolved, as far as it exists.
#[must_use]
pub fn real(path: &Path) -> PathBuf {
    for above in path.ancestors() {
        if let (Ok(real), Ok(rest)) = (above.canonicalize(), path.strip_prefix(above)) {
            return if rest == Path::new("") { real } else { real.join(rest) };
        }
    }
    path.to_owned()
}

/// Whether the attempt sees its own `/nodus` and `/run/nodus`, or the node's directories.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sight {
    /// Its own, in a private mount namespace.
    Own,
    /// The node's: only the environment variables point to the right places.
    Node,
}

/// What the environment of an attempt is made of.
pub struct Surroundings<'a> {
    /// The job.
    pub spec: &'a JobSpec,
    /// The environment of whoever submitted it.
    pub submitted: &'a BTreeMap<String, String>,
    /// Where its parts are.
    pub place: &'a Place,
    /// What the attempt sees of them.
    pub sight: Sight,
    /// Its number.
    pub attempt: u32,
    /// Whether it started from a checkpoint.
    pub restored: bool,
    /// The cursor of a Restartable job.
    pub cursor: Option<Progress>,
}

impl Surroundings<'_> {
    /// The whole environment of the attempt. `NODUS_*` of the submitter (who may be a job of ours
    /// itself), and what the submitter was told as a service, is not passed on; what the job asks for wins over the rest, but not over ours.
    #[must_use]
    pub fn environment(&self) -> BTreeMap<String, String> {
        let foreign = |key: &str| key.starts_with("NODUS_") || OF_A_SERVICE.contains(&key);
        let inherited = self.submitted.iter().filter(|(key, _)| !foreign(key));
        let asked = self.spec.env.iter().filter(|(key, _)| !SAID_BY_US.contains(&key.as_str()));
        let mut env: BTreeMap<String, String> =
            inherited.chain(asked).map(|(key, value)| (key.clone(), value.clone())).collect();
        env.extend(self.own().into_iter().map(|(key, value)| (key.to_owned(), value)));
        env
    }

    fn own(&self) -> Vec<(&'static str, String)> {
        let state = self.seen(&self.spec.recovery.checkpoint.paths[0]);
        let mut own = vec![
            ("NODUS_STATE_DIR", state.clone()),
            ("NODUS_CHECKPOINT_DIR", state),
            ("NODUS_OUTPUTS_DIR", self.seen(Path::new(OUTPUTS))),
            ("NODUS_EVENTS_SOCKET", self.socket()),
            ("NODUS_JOB", self.spec.name.to_string()),
            ("NODUS_ATTEMPT", self.attempt.to_string()),
            ("NODUS_CHECKPOINT_FORMAT", self.spec.recovery.checkpoint.format.to_string()),
        ];
        if self.restored {
            own.push(("NODUS_RESTORED", "1".to_owned()));
        }
        if self.spec.recovery.continuity == Continuity::Restartable {
            let completed = self.cursor.map_or(0, |cursor| cursor.completed);
            let total = self.cursor.and_then(|cursor| cursor.total);
            own.push(("NODUS_CURSOR_COMPLETED", completed.to_string()));
            own.push(("NODUS_CURSOR_TOTAL", total.map(|n| n.to_string()).unwrap_or_default()));
        }
        own
    }

    fn seen(&self, logical: &Path) -> String {
        let path = match self.sight {
            Sight::Own => logical.to_owned(),
            Sight::Node => self.place.physical(logical),
        };
        path.to_string_lossy().into_owned()
    }

    fn socket(&self) -> String {
        let path = match self.sight {
            Sight::Own => Path::new(RUNTIME).join(EVENTS_SOCKET),
            Sight::Node => self.place.events_socket(),
        };
        path.to_string_lossy().into_owned()
    }
}

/// Whether the agent copies the files of such a job.
#[must_use]
pub fn copies_files(spec: &JobSpec) -> bool {
    spec.recovery.continuity == Continuity::Checkpointed
        && spec.recovery.checkpoint.format == Format::Files
}

/// A job's own place below two roots, for an agent that serves many jobs.
#[must_use]
pub fn shared_place(state_root: &Path, records: &Path, runtime: &Path, job: &JobName) -> Place {
    Place {
        home: state_root.join(job.as_str()),
        records: records.join(job.as_str()),
        runtime: runtime.join(job.as_str()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(text: &str) -> JobSpec {
        JobSpec::from_yaml(&format!("name: n\ncommand: [a]\n{text}")).unwrap()
    }

    fn place() -> Place {
        Place { home: "/r/n".into(), records: "/rec".into(), runtime: "/run/x".into() }
    }

    fn env(spec: &JobSpec, sight: Sight, cursor: Option<Progress>) -> BTreeMap<String, String> {
        let submitted =
            [("NODUS_ATTEMPT", "9"), ("PATH", "/bin"), ("A", "1"), ("NOTIFY_SOCKET", "/x")]
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .into();
        let place = place();
        let restored = cursor.is_none();
        Surroundings {
            spec,
            submitted: &submitted,
            place: &place,
            sight,
            attempt: 2,
            restored,
            cursor,
        }
        .environment()
    }

    #[test]
    fn own_paths_are_the_jobs_and_others_are_the_nodes() {
        let spec = spec("recovery: {checkpoint: {paths: [/nodus/state, /data/x]}}\n");
        let roots = place().roots(&spec);
        assert_eq!(roots[0].dir, Path::new("/r/n/state"));
        assert_eq!(roots[1].dir, Path::new("/data/x"));
        assert_eq!(place().physical(Path::new("/nodus")), Path::new("/nodus"));
        let targets: Vec<_> = place().binds(&spec).into_iter().map(|(_, target)| target).collect();
        assert_eq!(targets, ["/nodus/outputs", "/nodus/state", "/run/nodus"].map(PathBuf::from));
    }

    #[test]
    fn a_link_that_was_named_is_a_way_to_the_files() {
        let dir = tempfile::tempdir().unwrap();
        let (target, link) = (dir.path().join("target"), dir.path().join("link"));
        std::fs::create_dir(&target).unwrap();
        std::os::unix::fs::symlink(&target, &link).unwrap();
        let target = target.canonicalize().unwrap();
        assert_eq!(real(&link), target);
        assert_eq!(real(&link.join("new/er")), target.join("new/er"));
        let job = spec(&format!("recovery: {{checkpoint: {{paths: [{}]}}}}\n", link.display()));
        assert_eq!(place().roots(&job)[0], Root { path: link, dir: target });
    }

    #[test]
    fn the_environment_of_an_attempt() {
        let own = env(&spec("env: {A: '2', NODUS_JOB: x}\n"), Sight::Own, None);
        assert_eq!(own["A"], "2");
        assert_eq!(own["PATH"], "/bin");
        assert_eq!(own["NODUS_JOB"], "n");
        assert_eq!(own["NODUS_ATTEMPT"], "2");
        assert_eq!(own["NODUS_RESTORED"], "1");
        assert_eq!(own["NODUS_STATE_DIR"], "/nodus/state");
        assert_eq!(own["NODUS_EVENTS_SOCKET"], "/run/nodus/events.sock");
        assert!(!own.contains_key("NODUS_CURSOR_COMPLETED"));
        let node = env(&spec(""), Sight::Node, None);
        assert_eq!(node["NODUS_STATE_DIR"], "/r/n/state");
        assert_eq!(node["NODUS_CHECKPOINT_DIR"], "/r/n/state");
        assert_eq!(node["NODUS_EVENTS_SOCKET"], "/run/x/events.sock");
    }

    #[test]
    fn what_only_the_agent_may_say() {
        let spec = spec("env: {NODUS_RESTORED: '1', NODUS_MINE: x}\n");
        let first = env(&spec, Sight::Own, Some(Progress { completed: 1, total: None }));
        assert!(!first.contains_key("NODUS_RESTORED"), "it was not restored");
        assert_eq!(first["NODUS_MINE"], "x");
        assert!(!first.contains_key("NOTIFY_SOCKET"));
    }

    #[test]
    fn the_cursor_of_a_restartable_job() {
        let spec = spec("recovery: {continuity: Restartable}\n");
        let first = env(&spec, Sight::Own, None);
        assert_eq!(first["NODUS_CURSOR_COMPLETED"], "0");
        assert_eq!(first["NODUS_CURSOR_TOTAL"], "");
        let later = env(&spec, Sight::Own, Some(Progress { completed: 42, total: Some(120) }));
        assert_eq!(later["NODUS_CURSOR_COMPLETED"], "42");
        assert_eq!(later["NODUS_CURSOR_TOTAL"], "120");
        assert!(!later.contains_key("NODUS_RESTORED"));
    }
}
