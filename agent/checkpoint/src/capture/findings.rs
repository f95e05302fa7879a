//! What a capture noticed beside the files themselves.

use std::collections::BTreeMap;

use crate::format::MAX_LISTED;
use crate::format::text::escape;

/// Paths, the first few by name and all by number.
#[derive(Clone, Debug, Default)]
pub(crate) struct Paths {
    pub(crate) listed: Vec<String>,
    pub(crate) count: u64,
}

impl Paths {
    pub(crate) fn add(&mut self, path: String) {
        self.count += 1;
        if self.listed.len() < MAX_LISTED {
            self.listed.push(path);
        }
    }
}

/// Everything that decides how far the checkpoint can be trusted, and what a reader should know.
#[derive(Clone, Debug, Default)]
pub(crate) struct Findings {
    /// Would not stand still, however often they were read.
    pub(crate) unstable: Paths,
    /// Changed during capture or copy, and then stood still.
    pub(crate) moved: Paths,
    /// Held open for writing by a process of the attempt.
    pub(crate) writers: Paths,
    /// Directories of which some files were stored and others had vanished.
    pub(crate) partly_gone: Paths,
    notes: BTreeMap<Note, Paths>,
}

/// What is worth a sentence in the commit record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Note {
    Vanished,
    Special,
    Mount,
    Own,
    SillyRename,
    NoRoot,
    CopiedAgain,
    Xattrs,
}

impl Note {
    fn sentence(self) -> &'static str {
        match self {
            Self::Vanished => "vanished while they were listed",
            Self::Special => "left out, as neither file, directory nor link",
            Self::Mount => "not entered, as another file system is mounted there",
            Self::Own => "left out, as they are this agent's own",
            Self::SillyRename => {
                "left out, as deleted files that a network file system still shows"
            }
            Self::NoRoot => "not there",
            Self::CopiedAgain => "copied again, as they changed after the capture",
            Self::Xattrs => "stored without extended attributes that could not be read",
        }
    }
}

impl Findings {
    pub(crate) fn note(&mut self, note: Note, path: String) {
        self.notes.entry(note).or_default().add(path);
    }

    /// The paths that make the checkpoint torn, and how many they are.
    pub(crate) fn torn(&self, acked: bool) -> (Vec<String>, u64) {
        let unasked = [&self.moved, &self.writers, &self.partly_gone];
        let unasked = unasked.into_iter().filter(|_| !acked);
        let mut all = Paths::default();
        for paths in std::iter::once(&self.unstable).chain(unasked) {
            let unlisted = paths.count - paths.listed.len() as u64;
            all.count += unlisted;
            for path in &paths.listed {
                if !all.listed.contains(path) {
                    all.add(path.clone());
                }
            }
        }
        (all.listed, all.count)
    }

    /// One sentence for each kind of finding, with a few examples.
    pub(crate) fn notes(&self) -> Vec<String> {
        const EXAMPLES: usize = 3;
        let sentence = |(note, paths): (&Note, &Paths)| {
            let examples = &paths.listed[..paths.listed.len().min(EXAMPLES)];
            let more = if paths.count > EXAMPLES as u64 { ", …" } else { "" };
            format!("{} {}: {}{more}", paths.count, note.sentence(), examples.join(", "))
        };
        self.notes.iter().map(sentence).collect()
    }
}

/// A path as findings show it: the job's path, then the way below it.
pub(crate) fn shown(root: &[u8], path: &[u8]) -> String {
    let separator: &[u8] = if path.is_empty() { b"" } else { b"/" };
    escape(&[root, separator, path].concat())
}
