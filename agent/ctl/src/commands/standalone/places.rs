//! Where a standalone run keeps its files.

use std::path::{Path, PathBuf};

use crate::args::Places;
use crate::console::Surroundings;
use crate::error::{Error, Result};

/// The two directories, absolute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Directories {
    /// Checkpoints.
    pub(super) store: PathBuf,
    /// Jobs' own directories.
    pub(super) state_root: PathBuf,
}

/// What the flags say; else below `$XDG_STATE_HOME/nodus`, else below `~/.local/state/nodus`.
pub(super) fn directories(flags: &Places, around: &Surroundings) -> Result<Directories> {
    let pick = |flag: &Option<PathBuf>, name: &str| match flag {
        Some(dir) => Ok(around.here.join(dir)),
        None => state_home(around).map(|home| home.join("nodus").join(name)),
    };
    Ok(Directories {
        store: pick(&flags.store, "store")?,
        state_root: pick(&flags.state_root, "jobs")?,
    })
}

/// A relative `XDG_STATE_HOME` is invalid and ignored, as its specification asks.
fn state_home(around: &Surroundings) -> Result<PathBuf> {
    let absolute = |name: &str| {
        let dir = around.variable(name).map(Path::new);
        dir.filter(|dir| dir.is_absolute()).map(Path::to_owned)
    };
    absolute("XDG_STATE_HOME").or_else(|| Some(absolute("HOME")?.join(".local/state"))).ok_or_else(
        || {
            let why = "HOME is not set: give --store DIR and --state-root DIR";
            Error::Usage(why.to_owned())
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(variables: &[(&str, &str)], flags: &Places, store: &str, state_root: &str) {
        let around = Surroundings {
            here: "/here".into(),
            environment: variables.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect(),
            stdout_is_terminal: false,
            stderr_is_terminal: false,
        };
        let expected = Directories { store: store.into(), state_root: state_root.into() };
        assert_eq!(directories(flags, &around).unwrap(), expected);
    }

    #[test]
    fn flags_win_and_relative_ones_are_meant_from_here() {
        let none = Places::default();
        check(
            &[("HOME", "/home/me")],
            &none,
            "/home/me/.local/state/nodus/store",
            "/home/me/.local/state/nodus/jobs",
        );
        let xdg = [("HOME", "/home/me"), ("XDG_STATE_HOME", "/state")];
        check(&xdg, &none, "/state/nodus/store", "/state/nodus/jobs");
        let flags = Places { store: Some("s".into()), state_root: Some("/r".into()) };
        check(&[], &flags, "/here/s", "/r");
    }
}
