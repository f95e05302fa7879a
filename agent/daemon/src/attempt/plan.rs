//! What an attempt is to run, and how.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Everything that decides how an attempt's program is started.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Plan {
    /// The attempt's own record directory; made by [`start`](super::start), readable by us alone.
    pub dir: PathBuf,
    /// The executable that becomes the shim when its first argument is `__shim`.
    pub shim: PathBuf,
    /// The program, looked up in the `PATH` of `env`, and its arguments.
    pub command: Vec<String>,
    /// The program's whole environment, but for what the attempt adds itself: see
    /// [`ATTEMPT_ID`](super::ATTEMPT_ID) and [`CPU`](super::CPU).
    pub env: BTreeMap<String, String>,
    /// Where the program starts; looked up as the program sees paths.
    pub workdir: PathBuf,
    /// Where what it prints goes.
    pub output: Output,
    /// Who it runs as; `None`: as we do.
    pub user: Option<UserIds>,
    /// What it sees of the file system.
    pub view: View,
    /// Whether the attempt ends, in order, when the process that started it does.
    pub die_with_parent: bool,
    /// Whether to give it a cgroup of its own, where we may: exact kills, freezing, a CPU limit.
    pub cgroup: bool,
    /// How many CPUs it may use; a limit only where it has a cgroup.
    pub cpu: Option<u32>,
    /// How long the program has between SIGTERM and SIGKILL when its parent is gone.
    #[serde(with = "millis")]
    pub stop_grace: Duration,
}

/// Where standard output and standard error of the program go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Output {
    /// To the end of [`LOG_FILE`](super::LOG_FILE) in the record directory.
    Log,
    /// To our own.
    Inherit,
}

/// The numeric identity of a user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserIds {
    /// The user.
    pub uid: u32,
    /// The primary group.
    pub gid: u32,
    /// All supplementary groups.
    pub groups: Vec<u32>,
}

/// What the program sees of the file system.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum View {
    /// What everybody sees.
    Host,
    /// The same, with some directories of its own.
    Private {
        /// Pairs of a directory that exists and the absolute path where only the attempt sees it.
        binds: Vec<(PathBuf, PathBuf)>,
    },
}

/// A duration as whole milliseconds.
mod millis {
    use std::time::Duration;

    use serde::{Deserialize as _, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(value: &Duration, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_u64(u64::try_from(value.as_millis()).unwrap_or(u64::MAX))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Duration, D::Error> {
        u64::deserialize(d).map(Duration::from_millis)
    }
}
