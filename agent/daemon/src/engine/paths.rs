//! Whether a job's paths can be saved on this node.

use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};

use nodus_checkpoint::identity;
use nodus_protocol::control::ProblemCode;
use nodus_protocol::spec::JobSpec;

use super::{Refusal, Settings};
use crate::job::place::{Place, real};
use crate::job::record::Owner;

/// Refuses paths of which no checkpoint could ever be taken: a place of our own, or something that
/// holds no files.
///
/// # Errors
/// Names the path and what would be allowed.
pub(super) fn check(
    settings: &Settings,
    spec: &JobSpec,
    place: &Place,
    owner: &Owner,
) -> Result<(), Refusal> {
    let ours: Vec<PathBuf> = settings
        .own_dirs
        .iter()
        .chain([&settings.store, &place.records])
        .map(|dir| real(dir))
        .collect();
    // What the user cannot see is not told.
    let credentials = crate::job::credentials(owner);
    let _as_user = identity::enter(credentials.as_ref())?;
    for (index, path) in spec.recovery.checkpoint.paths.iter().enumerate() {
        let physical = place.physical(path);
        let problem = not_ours(&ours, &real(&physical)).or_else(|| not_files(&physical));
        if let Some(allowed) = problem {
            let path = path.display();
            let detail =
                format!("recovery.checkpoint.paths[{index}]: \"{path}\" is not allowed: {allowed}");
            return Err(Refusal::new(ProblemCode::Invalid, detail));
        }
    }
    Ok(())
}

fn not_ours(ours: &[PathBuf], path: &Path) -> Option<String> {
    let own = ours.iter().find(|own| path.starts_with(own))?;
    Some(format!("a path outside {}, which is Nodus's own, is", own.display()))
}

fn not_files(path: &Path) -> Option<String> {
    let kind = std::fs::metadata(path).ok()?.file_type();
    let special =
        kind.is_fifo() || kind.is_socket() || kind.is_char_device() || kind.is_block_device();
    special.then(|| "a directory or a regular file is".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_of_our_own_holds_no_state_however_it_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let store = dir.path().join("store");
        std::fs::create_dir(&store).unwrap();
        std::os::unix::fs::symlink(&store, dir.path().join("link")).unwrap();
        let ours = [real(&store)];
        for inside in ["store", "store/jobs/x", "link", "link/new"] {
            let refused = not_ours(&ours, &real(&dir.path().join(inside)));
            assert!(refused.is_some_and(|why| why.contains("store")), "{inside}");
        }
        for outside in ["", "state", "stored"] {
            assert_eq!(not_ours(&ours, &real(&dir.path().join(outside))), None, "{outside}");
        }
    }

    #[test]
    fn what_holds_no_files_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        let mode = rustix::fs::Mode::RWXU;
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        assert!(not_files(&fifo).is_some());
        assert!(not_files(Path::new("/dev/null")).is_some());
        assert_eq!(not_files(dir.path()), None);
        assert_eq!(not_files(&dir.path().join("none")), None);
    }
}
