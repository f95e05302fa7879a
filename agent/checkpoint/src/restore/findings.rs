//! What a restore could not or would not do as recorded, gathered from all its threads.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// Paths that a warning names; more are only counted.
const EXAMPLES: usize = 16;

/// What a warning is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum About {
    /// Symbolic links whose targets do not exist, or that lead to themselves.
    DanglingLink,
    /// An extended attribute that could not be set.
    Xattr {
        /// Its name, escaped as in the manifest.
        name: String,
        /// What the system said.
        cause: String,
    },
    /// Set-uid and set-gid bits that were left off.
    SetId,
    /// File capabilities that were left off.
    Capability,
    /// An owner or group that could not be set.
    Owner {
        /// What the system said.
        cause: String,
    },
    /// FIFOs, sockets and devices, which are never made.
    Special,
    /// The files that were there before, where they could not be removed.
    Leftover {
        /// What the system said.
        cause: String,
    },
}

/// Something that a person should know of a restore that succeeded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// What it is about.
    pub about: About,
    /// How many paths it concerns.
    pub paths: u64,
    /// Some of them, escaped as in the manifest.
    pub examples: Vec<String>,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.about {
            About::DanglingLink => f.write_str("links lead nowhere, as they did when captured"),
            About::Xattr { name, cause } => {
                write!(f, "attribute {name} could not be set ({cause})")
            }
            About::SetId => f.write_str("set-uid and set-gid bits were left off"),
            About::Capability => f.write_str("file capabilities were left off"),
            About::Owner { cause } => write!(f, "owners could not be set ({cause})"),
            About::Special => f.write_str("FIFOs, sockets and devices are not made"),
            About::Leftover { cause } => {
                write!(f, "the previous files could not be removed ({cause})")
            }
        }?;
        let more = if self.paths > self.examples.len() as u64 { ", ..." } else { "" };
        let paths = if self.paths == 1 { "path" } else { "paths" };
        write!(f, ": {} {paths}: {}{more}", self.paths, self.examples.join(", "))
    }
}

/// Collects warnings.
#[derive(Default)]
pub(super) struct Findings(Mutex<BTreeMap<About, (u64, Vec<String>)>>);

impl Findings {
    /// Adds one path to a warning.
    pub(super) fn add(&self, about: About, path: &Path) {
        use std::os::unix::ffi::OsStrExt as _;
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (count, examples) = all.entry(about).or_default();
        *count += 1;
        if examples.len() < EXAMPLES {
            examples.push(crate::format::text::escape(path.as_os_str().as_bytes()));
        }
    }

    /// The first of those that make a strict restore fail: what was recorded and could not be set.
    pub(super) fn unmet(&self) -> Option<Warning> {
        let unmet = |about: &About| matches!(about, About::Xattr { .. } | About::Owner { .. });
        self.warnings().into_iter().find(|warning| unmet(&warning.about))
    }

    /// All of them so far; the examples in the order of their text, whatever thread was first.
    pub(super) fn warnings(&self) -> Vec<Warning> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let warning = |(about, (paths, examples)): (&About, &(u64, Vec<String>))| {
            let mut examples = examples.clone();
            examples.sort();
            Warning { about: about.clone(), paths: *paths, examples }
        };
        all.iter().map(warning).collect()
    }
}
