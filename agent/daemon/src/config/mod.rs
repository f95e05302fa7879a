//! The agent's configuration: `/etc/nodus/agent.toml` and its drop-ins, read once.
//!
//! ```text
//! agent.toml, agent.toml.d/*.toml  ->  fragments  ->  merged  ->  Settings
//! ```
//!
//! The shape of the files is in [`file`]; it refuses unknown keys and wrong values where they
//! stand. [`Settings`] has every value, and cannot hold a wrong one.

mod file;
mod settings;
#[cfg(test)]
mod tests;

use std::io;
use std::path::{Path, PathBuf};

use file::Fragment;

pub use file::{Capacity, Threads};
pub use settings::{DEFAULT_FILE, Limits, Priors, Settings};

/// Why the configuration cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A file or the directory of drop-ins cannot be read.
    #[error("cannot read the configuration {}", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A file says something that is not allowed.
    #[error("{}, line {line}: {message}", path.display())]
    Invalid {
        /// Which file.
        path: PathBuf,
        /// Counts from 1.
        line: usize,
        /// The key and what is allowed.
        message: String,
    },
}

impl Settings {
    /// Reads `file`, then the `*.toml` files of the directory `<file>.d` in the order of their
    /// names. Of a key that stands in several, the last one counts.
    ///
    /// Without a file at [`DEFAULT_FILE`] the defaults are in force; any other has to exist.
    ///
    /// # Errors
    /// Where a file cannot be read or is not understood.
    pub fn load(file: &Path) -> Result<Self, ConfigError> {
        let base = match read(file)? {
            Some(text) => parse(file, &text)?,
            None if file == Path::new(DEFAULT_FILE) => Fragment::default(),
            None => {
                let source = io::ErrorKind::NotFound.into();
                return Err(ConfigError::Read { path: file.to_owned(), source });
            }
        };
        let mut merged = base;
        for path in drop_ins(file)? {
            // One that was removed since the listing says nothing.
            if let Some(text) = read(&path)? {
                merged = parse(&path, &text)?.over(merged);
            }
        }
        Ok(Self::from(merged))
    }
}

fn read(path: &Path) -> Result<Option<String>, ConfigError> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(ConfigError::Read { path: path.to_owned(), source }),
    }
}

fn drop_ins(file: &Path) -> Result<Vec<PathBuf>, ConfigError> {
    let mut name = file.as_os_str().to_owned();
    name.push(".d");
    let dir = PathBuf::from(name);
    let entries = match std::fs::read_dir(&dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => return Err(ConfigError::Read { path: dir, source }),
    };
    let paths: io::Result<Vec<PathBuf>> =
        entries.map(|entry| entry.map(|entry| entry.path())).collect();
    let mut paths = paths.map_err(|source| ConfigError::Read { path: dir, source })?;
    paths.retain(|path| is_drop_in(path));
    paths.sort();
    Ok(paths)
}

/// Editors leave hidden files behind.
fn is_drop_in(path: &Path) -> bool {
    let hidden = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
    !hidden && path.extension().is_some_and(|extension| extension == "toml")
}

fn parse(path: &Path, text: &str) -> Result<Fragment, ConfigError> {
    toml::from_str(text).map_err(|error| {
        let start = error.span().map_or(0, |span| span.start.min(text.len()));
        let line = 1 + text.as_bytes()[..start].iter().filter(|&&byte| byte == b'\n').count();
        ConfigError::Invalid { path: path.to_owned(), line, message: error.message().to_owned() }
    })
}
